"""Small files in the user's cache; that a broken one counts as empty is in tests/unit/models/test_memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.core.cache import Cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shardmill"


def test_only_the_user_may_read_it(folder: Path) -> None:
    cache = Cache("some.json", "values")
    cache.put("a", 1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache.path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_values_are_dropped(folder: Path) -> None:
    cache = Cache("some.json", "values", most=3)
    for name in ("a", "b", "c", "a", "d"):
        cache.put(name, name)
    assert list(cache.read()) == ["c", "a", "d"]
