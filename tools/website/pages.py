"""Which files become pages, under which names, and what their links lead to there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pages that are not in docs/, and their names on the site.
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "campaigns/README.md": "campaigns.md",
    "deploy/monitoring/README.md": "deploy/monitoring.md",
    "examples/plugin/README.md": "examples/plugin.md",
    "examples/wikipedia/README.md": "examples/wikipedia.md",
}
# What the search leaves out: these say in other words, or of every file, what other pages are about.
NOT_SEARCHED = ("docs/tests.md", "docs/design/history/", "CHANGELOG.md", "README.md", "docs/README.md")
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
PICTURES = {".png", ".svg"}
# Linked files of these folders are shown on pages of their own.
SHOWN = ("examples/", "deploy/")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json"}

_FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<picture>!?)\[(?P<label>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`")


def find_pages() -> dict[str, str]:
    """The name on the site of every Markdown file that is a page, by its path in the repository."""
    pages = dict(BESIDE)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        pages[f"docs/{name}"] = "pages.md" if name == "README.md" else name.replace("README.md", "index.md")
    return pages


def find_pictures() -> dict[str, str]:
    found = [path for path in (ROOT / "docs").rglob("*") if path.suffix in PICTURES]
    return {f"docs/{name}": name for name in (path.relative_to(ROOT / "docs").as_posix() for path in sorted(found))}


def find_listings(pages: dict[str, str]) -> dict[str, str]:
    """The files of examples and manifests that pages link to."""
    linked = {path for page in pages for path in _links(page) if path.startswith(SHOWN) and (ROOT / path).is_file()}
    return {path: f"{path}.md" for path in sorted(linked - pages.keys())}


def _links(page: str) -> Iterator[str]:
    for part in _FENCED.split((ROOT / page).read_text())[::2]:
        for found in _LINK.finditer(part):
            if "://" not in found["target"] and not found["target"].startswith("#"):
                yield resolve(page, found["target"])[0]


def resolve(page: str, target: str) -> tuple[str, str]:
    """The path in the repository that a link of a page leads to, and its anchor.

    >>> resolve("docs/benchmarks/map.md", "../map.md#speed")
    ('docs/map.md', 'speed')
    """
    place, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), place)) if place else page), anchor


def render(page: str, places: dict[str, str], source: str = "") -> str:
    """A page as it is on the site."""
    return rewrite(page, (ROOT / page).read_text(), places, source)


def rewrite(page: str, text: str, places: dict[str, str], source: str = "") -> str:
    """A text of a page with links to pages of the site; others lead to `source`, or become text without it."""

    def lead(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, anchor = resolve(page, target)
        if path in places:
            there = posixpath.relpath(places[path], posixpath.dirname(places[page]) or ".")
            return f"{found['picture']}[{found['label']}]({there}{'#' if anchor else ''}{anchor})"
        return f"[{found['label']}]({source.rstrip('/')}/{path})" if source else found["label"]

    return outside_code(text, lambda part: _as_python_markdown(_LINK.sub(lead, part)))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with all that is not a block of code changed.

    >>> outside_code("a\\n```\\na\\n```", str.upper)
    'A\\n```\\na\\n```'
    """
    return "".join(part if n % 2 else change(part) for n, part in enumerate(_FENCED.split(text)))


def _as_python_markdown(text: str) -> str:
    """In a table, GitHub needs a backslash before a bar inside code; the site's Markdown would show it."""
    lines = text.split("\n")
    return "\n".join(
        _CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line for line in lines
    )


def render_listing(path: str) -> str:
    """A page that shows a file."""
    text, language = (ROOT / path).read_text(), LANGUAGES.get(Path(path).suffix, "")
    return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
