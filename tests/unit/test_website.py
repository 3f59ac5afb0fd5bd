"""The site: which pages it has, where their links lead and what is wrong with a built page."""

from __future__ import annotations

import doctest
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tools.website import checks, llms, pages

SETTINGS = tomllib.loads((pages.ROOT / "tools/website/zensical.toml").read_text())
PLACES = pages.find_pages()
PLACES |= pages.find_pictures() | pages.find_listings(PLACES)


def test_every_page_has_its_place_in_the_navigation() -> None:
    listed = [page for _, page in llms.read_navigation(SETTINGS)]
    history = {page for page in pages.find_pages().values() if re.match(r"design/history/\d", page)}
    assert sorted(listed) == sorted(set(pages.find_pages().values()) - history), "see tools/website/zensical.toml"


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("README.md", "[Map](docs/map.md)", "[Map](map.md)"),
        ("README.md", "![A map](docs/images/map.png)", "![A map](images/map.png)"),
        ("docs/benchmarks/map.md", "[Map](../map.md#the-page)", "[Map](../map.md#the-page)"),
        ("docs/README.md", "[Design](design/README.md)", "[Design](design/index.md)"),
        ("docs/train.md", "[it](../examples/train_pairs.py)", "[it](examples/train_pairs.py.md)"),
        ("docs/tests.md", "**[a test](../tests/conftest.py)**", "**a test**"),
        ("docs/map.md", "[there](#the-page)", "[there](#the-page)"),
        ("docs/map.md", "[out](https://example.org/x.md)", "[out](https://example.org/x.md)"),
        ("docs/map.md", "```\n[Map](../README.md)\n```", "```\n[Map](../README.md)\n```"),
        ("docs/map.md", "| `a \\| b` |", "| `a | b` |"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, link: str, there: str) -> None:
    assert pages.rewrite(page, link, PLACES) == there


def test_what_is_no_page_can_lead_to_where_it_can_be_read() -> None:
    seen = pages.rewrite("docs/tests.md", "[a test](../tests/conftest.py)", PLACES, "https://example.org/blob/main")
    assert seen == "[a test](https://example.org/blob/main/tests/conftest.py)"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="b.html">', ""),
        ('<a href="b.html#here">', ""),
        ('<a href="c.html">', "leads nowhere: c.html"),
        ('<a href="b.html#there">', "no such anchor: b.html#there"),
        ('<img src="picture.png">', "leads nowhere: picture.png"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
        ('<a href="https://example.org">', ""),
    ],
)
def test_faults_of_a_page_are_found(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "a.html").write_text(text)
    (tmp_path / "b.html").write_text('<h2 id="here">Here</h2>')
    assert checks.find_faults(tmp_path) == ([f"a.html: {fault}"] if fault else [])


def test_programs_are_told_of_every_page(tmp_path: Path) -> None:
    for page, place in pages.find_pages().items():
        there = tmp_path / "pages" / place
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(pages.render(page, PLACES))
    (tmp_path / "zensical.toml").write_text((pages.ROOT / "tools/website/zensical.toml").read_text())
    site = tmp_path / "site"
    site.mkdir()
    llms.write(tmp_path / "pages", site)
    index = (site / "llms.txt").read_text()
    assert index.startswith("# shardmill\n\n> Run a model")
    assert "- [Map](map.md): every item of a result as a point on a page\n" in index
    linked = re.findall(r"\]\(([^)]+)\)", index)
    assert [page for page in linked if not (site / page).is_file()] == []
    whole = (site / "llms-full.txt").read_text()
    assert "\n# The spec file\n" in whole
    assert "\n# Features and their tests\n" not in whole
    assert (site / "skill/shardmill/SKILL.md").read_text().startswith("---\nname: shardmill\n")


@pytest.mark.parametrize("module", [pages, llms])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
