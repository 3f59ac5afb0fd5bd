"""What is wrong with a built site: links that lead nowhere, and things that are loaded from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself; a link that a reader follows may lead elsewhere.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}


class Page(HTMLParser):
    """The anchors of a page, where it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.anchors |= {said[name] for name in ("id", "name") if said.get(name)}
        if tag == "a" and said.get("href"):
            self.links.add(said["href"])
        loads = tag != "link" or _LOADING_LINKS & set(said.get("rel", "").split())
        if loads and said.get(_LOADED.get(tag, "")):
            self.loaded.add(said[_LOADED[tag]])


def find_faults(site: Path) -> list[str]:
    """A line for each fault of a site."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        # The page of an unknown address is shown at any depth, with addresses from the root.
        if name.name == "404.html":
            continue
        faults += [f"{name}: loads {each}" for each in sorted(page.loaded) if urlsplit(each).netloc]
        for link in sorted(page.links | page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                faults.append(f"{name}: leads nowhere: {link}")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                faults.append(f"{name}: no such anchor: {link}")
    return faults
