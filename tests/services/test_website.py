"""The site, built: every page can be read by everybody, at three widths; the search answers without a server;
and what the page for agents types."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.debian import require
from tests.support.libraries import needed
from tests.support.services import unavailable
from tests.support.waiting import PATIENCE_S, wait_for
from tools.website.pages import ROOT

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
WIDTHS = {"desk": 1400, "tablet": 820, "phone": 390}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed("zensical")
    folder = tmp_path_factory.mktemp("website")
    command = [sys.executable, "-m", "tools.website", "--folder", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all links lead somewhere" in done.stdout
    return folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    needed("playwright")
    from playwright.sync_api import sync_playwright

    chromium = require("chromium", "chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Any, site: Path, name: str, width: str = "desk", scheme: str = "light") -> Any:
    page = browser.new_context(viewport={"width": WIDTHS[width], "height": 900}, color_scheme=scheme).new_page()
    page.goto((site / name).as_uri())
    page.wait_for_selector("html.js")
    return page


def test_what_programs_read_is_there(site: Path) -> None:
    for name in ("llms.txt", "llms-full.txt", "embed.md", "skill/shardmill/SKILL.md", "examples/train_pairs.py.html"):
        assert (site / name).stat().st_size > 500, name


@pytest.mark.parametrize("name", ["index.html", "embed.html", "cli.html", "kubernetes.html", "benchmarks.html"])
@pytest.mark.parametrize(("width", "scheme"), [("desk", "light"), ("tablet", "dark"), ("phone", "light")])
def test_everybody_can_read_it(browser: Any, site: Path, name: str, width: str, scheme: str) -> None:
    axe = Path(sys.prefix) / "lib" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        unavailable("axe-core is not installed: `make test-all` installs it beside the packages of the tests.")
    page = open_page(browser, site, name, width, scheme)
    lightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(lightness) < 200) == (scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no part is wider than the screen"
    # Code and tables get their parts once zensical has drawn them.
    wait_for(lambda: page.evaluate("document.querySelectorAll('.md-code__nav:not([aria-label])').length") == 0)
    page.evaluate(axe.read_text())
    found = page.evaluate("axe.run().then((said) => said.violations)")
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []
    page.context.close()


@pytest.mark.parametrize(
    ("query", "heading", "leads_to"),
    [("resume after a crash", "Resume after a crash", "run-folder.html"), ("pgvector", "pgvector", "postgres.html")],
)
def test_the_search_finds_it_without_a_server(
    browser: Any, site: Path, query: str, heading: str, leads_to: str
) -> None:
    page = open_page(browser, site, "index.html")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.keyboard.press("/")
    page.get_by_role("combobox").or_(page.locator("input[type=search], input[type=text]")).first.fill(query)
    hit = page.locator(f"a[href*='{leads_to}']:visible").filter(has_text=heading).first
    hit.wait_for()
    hit.click()
    page.wait_for_url(f"**/{leads_to}**")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.context.close()


def test_what_agents_are_told_to_type_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shardmill: Cli) -> None:
    page = (ROOT / "docs/agents.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text(
        'def count(rows):\n    return [{"words": len(r["text"].split())} for r in rows]\n'
    )
    (tmp_path / "reviews.jsonl").write_text('{"id": 1, "text": "good tea"}\n{"id": 2, "text": "fine"}\n')
    said = {}
    for line in re.findall(r"^\$ shardmill (.+)$", page, re.MULTILINE):
        verb, *rest = line.split()
        answer = shardmill(verb, *rest)
        assert answer.status == 0, (line, answer)
        said[verb] = json.loads(answer.out)
    assert said["peek"]["columns"] == {"id": "int64", "text": "string"}
    assert {"state", "share", "eta_s"} <= said["apply"].keys()
    assert (said["verify"]["verified"], said["verify"]["rows"], said["verify"]["errors"]) == (True, 2, 0)
    assert said["show"] == []
