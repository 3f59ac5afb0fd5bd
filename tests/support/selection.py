"""Which tests `make test` leaves to `make test-all`: the files and folders of tests/thorough.txt."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


@cache
def listed() -> tuple[str, ...]:
    """Paths below tests/, as the list has them."""
    lines = (TESTS / "thorough.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@cache
def is_thorough(path: Path) -> bool:
    """Whether a file is listed, or in a folder that is."""
    below = path.relative_to(TESTS)
    return any(str(part) in listed() for part in (below, *below.parents))


def read_features() -> dict[str, dict[str, list[str]]]:
    """Verbs, sources, sinks, stores and engines, each with its tests, as tests/features.toml has them."""
    return tomllib.loads((TESTS / "features.toml").read_text())


def files(place: str) -> list[Path]:
    """The files of tests at a path below tests/."""
    path = TESTS / place
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
