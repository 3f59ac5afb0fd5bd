"""The extras of pyproject.toml: what each brings, and what it is for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
_REQUIREMENTS: dict[str, list[str]] = _PYPROJECT["project"]["optional-dependencies"]
EXTRAS = tuple(_REQUIREMENTS)
PURPOSES: dict[str, str] = _PYPROJECT["tool"]["shardmill"]["extras"]
"""What extras are for, in the order of the page: the names of one or of several, and a text."""


def packages(extra: str) -> set[str]:
    """The packages that an extra names, itself or through other extras."""
    found = set()
    for requirement in _REQUIREMENTS[extra]:
        name, inner = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == "shardmill":
            found |= {package for each in inner.split(",") for package in packages(each)}
        else:
            found.add(name.lower())
    return found


def render_table() -> str:
    rows = ["| extra | torch | for |", "| --- | --- | --- |"]
    for names, purpose in PURPOSES.items():
        torch = "yes" if any("torch" in packages(name) for name in names.split()) else ""
        rows.append(f"| {', '.join(f'`{name}`' for name in names.split())} | {torch} | {purpose} |")
    return "\n".join(rows)
