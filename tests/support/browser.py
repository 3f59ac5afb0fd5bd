"""Debian's Chromium, driven by Playwright, and what its pages must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support import debian
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """A browser without a window."""
    playwright = needed("playwright.sync_api")
    program = debian.require("chromium", "chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox", *flags])
        yield opened
        opened.close()


class Watched:
    """Opens pages, and lists what they complain of and every request that goes elsewhere than to `home`."""

    def __init__(self, browser: Any, home: str) -> None:
        self._browser, self._home = browser, home
        self._contexts: list[Any] = []
        self.complaints: list[str] = []

    def open(self, viewport: dict[str, int] = DESK, **options: Any) -> Any:
        context = self._browser.new_context(viewport=viewport, **options)
        self._contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE_S)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._note)
        page.on("response", lambda said: said.status >= 400 and self.complaints.append(said.url))
        page.on("dialog", lambda dialog: self.complaints.append("a dialog of a script"))
        return page

    def _hear(self, said: Any) -> None:
        # A picture of a page with WebGL, taken without a GPU, is called slow.
        if said.type in ("error", "warning") and "GPU stall due to ReadPixels" not in said.text:
            self.complaints.append(said.text)

    def _note(self, request: Any) -> None:
        if not request.url.startswith(self._home):
            self.complaints.append(f"a request to {request.url}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()
