"""Lists of files as a source, with one address a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source

TEXT = Fields("text")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/x.jsonl", "a/x.jsonl", "c/y z.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    return tmp_path


def texts(place: str) -> list[str]:
    source = open_source(discover([place], TEXT), TEXT)
    return [text for shard in source.shards(1) for batch in source.read(shard) for text in batch.texts.to_pylist()]


def test_files_come_in_the_order_of_the_list(folder: Path) -> None:
    (folder / "list.txt").write_text(f"b/x.jsonl\n\n{folder}/a/x.jsonl\nfile://{folder}/c/y z.jsonl\n")
    assert texts(f"manifest:{folder}/list.txt") == ["b/x.jsonl", "a/x.jsonl", "c/y z.jsonl"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "lists no file"),
        (b"a/x.jsonl\nd/gone.jsonl\n", "line 2 of .* names it"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b'{"files": []}', "not the manifest of an S3 inventory"),
    ],
)
def test_a_list_that_cannot_be_read(folder: Path, content: bytes, said: str) -> None:
    (folder / "list.txt").write_bytes(content)
    with pytest.raises(SourceError, match=said):
        texts(f"manifest:{folder}/list.txt")


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no\.txt: no such list of files"):
        discover([f"manifest:{tmp_path}/no.txt"], Fields("text"))
