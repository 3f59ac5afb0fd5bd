"""Folders with files for training beside files for testing: one split is read, not all of them unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardmill import make_spec, start
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover
from shardmill.sources.splits import split_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.jsonl", "train-more.jsonl", "test.jsonl"):
        (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text("".join(json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(3)))
    return tmp_path / "data"


def names(place: object, split: str = "", *more: object) -> list[str]:
    return [file.name for file in discover([str(place), *map(str, more)], Fields("text", split=split)).files]


def test_one_split_is_asked_for(folder: Path) -> None:
    with pytest.raises(SourceError, match="several splits: test, train"):
        names(folder)
    assert names(folder, "train") == ["train-more.jsonl", "train.jsonl"]
    assert len(names(folder, "all")) == 3


def test_files_and_globs_are_taken_as_they_are(folder: Path) -> None:
    assert len(names(folder / "*.jsonl")) == 3
    assert names(folder / "test.jsonl", "", folder / "train.jsonl") == ["test.jsonl", "train.jsonl"]
    assert names(folder / "*.jsonl", "test") == ["test.jsonl"]
    with pytest.raises(SourceError, match="no split 'test'"):
        names(folder / "train.jsonl", "test")


def test_a_folder_of_one_split_is_read(folder: Path) -> None:
    (folder / "test.jsonl").unlink()
    (folder / "others.jsonl").write_text('{"text": "o"}\n')
    assert len(names(folder)) == 3


def test_a_run_from_before_splits_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec({"source": str(folder), "text": "text", "task": "shardmill.testing:FakeTask"}, {})
    with monkeypatch.context() as before:
        before.setattr("shardmill.sources.discovery.choose_split", lambda place, files, path, split: files)
        begun = start(spec, tmp_path / "run")
    assert len(begun.table()) == 9
    assert start(spec, tmp_path / "run").plan.id == begun.plan.id
    with pytest.raises(SourceError, match="several splits"):
        start(spec, tmp_path / "another")


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00002.parquet", "train"),
        ("data/unlabelled-00000-of-00001.parquet", "unlabelled"),
        ("en/validation/part-1.jsonl", "validation"),
        ("my_dev.csv", "validation"),
        ("TEST.csv", "test"),
        ("trains.jsonl", ""),
        ("contest.jsonl", ""),
    ],
)
def test_names_are_read_as_datasets_reads_them(path: str, split: str) -> None:
    assert split_of(path) == split
