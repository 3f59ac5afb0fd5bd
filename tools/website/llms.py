"""llms.txt, llms-full.txt and every page as Markdown, for programs that read the site; the page for agents as a skill.

Zensical would make the first two, but only for a site whose address is known.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.website.pages import UNSEARCHED

# History, tables of tests and measurements are linked, and left out of the whole text.
LINKED_ONLY = ("benchmarks/", "design/", "tests.md", "changes.md", "contributing.md", "pages.md")
SKILL = """---
name: shardmill
description: Run a model over every item of a dataset with shardmill: which command, which options, how to check it.
---

"""


def read_navigation(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The pages of the navigation, each with its section.

    >>> list(read_navigation({"project": {"nav": [{"Start": [{"Install": "install.md"}, "embed.md"]}]}}))
    [('Start', 'install.md'), ('Start', 'embed.md')]
    """
    for section in settings["project"]["nav"]:
        for title, entries in section.items():
            yield from ((title, page) for page in _pages_of(entries))


def _pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from _pages_of(inner)


def write(pages: Path, site: Path) -> None:
    settings = tomllib.loads((pages.parent / "zensical.toml").read_text())
    about = _descriptions((pages / "pages.md").read_text())
    texts = {page: _read(pages / page) for _, page in read_navigation(settings)}
    lines, section = [f"# {settings['project']['site_name']}\n\n> {settings['project']['site_description']}"], ""
    for title, page in read_navigation(settings):
        if title != section:
            section = title
            lines.append(f"\n## {title}\n")
        said = f": {about[page]}" if page in about else ""
        lines.append(f"- [{_heading(texts[page])}]({page}){said}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    whole = [text for page, text in texts.items() if not page.startswith(LINKED_ONLY)]
    (site / "llms-full.txt").write_text("\n\n".join(whole))
    for path in sorted(pages.rglob("*.md")):
        there = site / path.relative_to(pages)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(_read(path))
    skill = site / "skill" / "shardmill" / "SKILL.md"
    skill.parent.mkdir(parents=True, exist_ok=True)
    skill.write_text(SKILL + texts["agents.md"])


def _read(page: Path) -> str:
    return page.read_text().removeprefix(UNSEARCHED)


def _heading(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _descriptions(index: str) -> dict[str, str]:
    """What the table of all pages says of each.

    >>> _descriptions("| [Map](map.md) | every item as a point |")
    {'map.md': 'every item as a point'}
    """
    rows = re.findall(r"^\| \[[^]]*\]\(([^)#]+)\) \| (.+?) \|$", index, re.MULTILINE)
    return {page: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", said) for page, said in rows}
