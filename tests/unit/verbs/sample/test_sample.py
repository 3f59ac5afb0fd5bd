"""`shardmill sample`: docstrings of modules, written once and never over something else."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from tests.support.cli import Cli, assert_told

MODULE = '''"""A module.

More of it.

Not taken."""

def outer():
    """Does

    something."""
    class Inner:
        """Inside."""

class Twice:
    """Inside."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of a few modules."""
    folder = tmp_path / "library"
    (folder / "a" / "test").mkdir(parents=True)
    (folder / "site-packages").mkdir()
    (folder / "a" / "__init__.py").write_text(MODULE)
    (folder / "a" / "ä.py").write_text('"""Größe."""', encoding="utf-8")
    (folder / "broken.py").write_text("def (:")
    (folder / "a" / "test" / "of.py").write_text('"""A test."""')
    (folder / "site-packages" / "other.py").write_text('"""Installed."""')
    paths = sysconfig.get_paths
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {**paths(), "stdlib": str(folder)})
    return folder


def test_a_sample_has_names_and_first_paragraphs(shardmill: Cli, library: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "docs.jsonl"
    said = shardmill("sample", path)
    assert said.status == 0, said
    assert f"4 docstrings of the standard library: {path}" in said.err
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"name": "a", "doc": "A module.\n\nMore of it."},
        {"name": "a.outer", "doc": "Does\n\nsomething."},
        {"name": "a.outer.Inner", "doc": "Inside."},
        {"name": "a.ä", "doc": "Größe."},
    ]
    assert [file.name for file in path.parent.iterdir()] == ["docs.jsonl"]


def test_the_same_sample_is_left_and_another_file_is_kept(shardmill: Cli, library: Path, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    assert shardmill("sample", path).status == 0
    written = path.stat().st_ino
    assert shardmill("sample", path).status == 0
    assert path.stat().st_ino == written
    path.write_text("mine")
    assert_told(shardmill("sample", path), 2, "exists, with other content", "Name a new file")
    assert path.read_text() == "mine"


def test_what_cannot_be_written_or_read_is_told(
    shardmill: Cli, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_told(shardmill("sample", tmp_path), 2, "is a folder")
    assert_told(shardmill("sample", library / "broken.py" / "docs.jsonl"), 2, "cannot be written")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "empty")})
    assert_told(shardmill("sample", tmp_path / "docs.jsonl"), 2, "without the source of its standard library")
    assert not (tmp_path / "docs.jsonl").exists()
