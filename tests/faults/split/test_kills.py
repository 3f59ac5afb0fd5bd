"""A split that is killed: nothing half-there is taken for a dataset, and a resume gives the same bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover
from shardmill.store import open_store
from shardmill.verbs.split import Cut, SplitSpec, parse_splits, split
from shardmill.verbs.split.reading import feed_files
from tests.support.corpora import fake_rows
from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S

processes = Forking()

ROWS = fake_rows(300)
SPECS = {
    "parquet": SplitSpec("d", Cut(items=20)),
    "jsonl": SplitSpec("d", Cut(bytes=1000), "jsonl", "zstd"),
    "parts": SplitSpec("d", Cut(items=20), "json", "gzip", 5, parse_splits("train=0.7,test=0.3")),
}


class KillAt:
    """Kills its own process at the nth time a step is reached."""

    def __init__(self, step: str, after: int) -> None:
        self.step, self.left = step, after

    def __call__(self, step: str) -> None:
        self.left -= step == self.step
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _split(source: str, out: str, name: str, on_step: Callable[[str], None] = lambda step: None) -> Any:
    feed = feed_files([source])
    return split(feed, open_store(out), SPECS[name], quiet=True, on_step=on_step, record_every_s=0)


def _kill_at(source: str, out: str, name: str, step: str, after: int) -> None:
    process = processes.Process(target=_split, args=(source, out, name, KillAt(step, after)))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


def _bytes(place: str) -> dict[str, bytes]:
    files = [p for p in Path(place).rglob("*") if p.is_file() and "chunks" in p.parts and not p.name.startswith(".")]
    return {str(p.relative_to(place)): p.read_bytes() for p in files}


@pytest.mark.parametrize("name", list(SPECS))
@pytest.mark.parametrize(
    ("step", "after"),
    [("chunk written", 0), ("chunk written", 5), ("recorded", 0), ("recorded", 7), ("before metadata", 0)],
)
def test_killed_and_resumed(tmp_path: Path, write_jsonl: Callable[..., Path], name: str, step: str, after: int) -> None:
    source = str(write_jsonl(ROWS))
    whole = _split(source, str(tmp_path / "whole"), name)
    out = str(tmp_path / "out")
    _kill_at(source, out, name, step, after)
    place = f"{out}/datasets/d"
    with pytest.raises(SourceError, match="incomplete dataset"):
        discover([place], Fields("text"))
    done = _split(source, out, name)
    assert not done.was_there
    assert done.kept >= (after if step == "recorded" else 0)
    assert [c["sha256"] for c in done.metadata["chunks"]] == [c["sha256"] for c in whole.metadata["chunks"]]
    assert _bytes(place) == _bytes(whole.place)
    assert _split(source, out, name).was_there


def test_a_chunk_that_was_spoilt_meanwhile_is_written_again(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source, out = str(write_jsonl(ROWS)), str(tmp_path / "out")
    whole = _split(source, str(tmp_path / "whole"), "parquet")
    _kill_at(source, out, "parquet", "recorded", 7)
    for chunk in Path(out).rglob("chunk-*.parquet"):
        chunk.write_bytes(b"short")
    done = _split(source, out, "parquet")
    assert done.kept == 0
    assert _bytes(done.place) == _bytes(whole.place)


def test_killed_again_and_again(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source, out = str(write_jsonl(ROWS)), str(tmp_path / "out")
    for _ in range(4):
        _kill_at(source, out, "jsonl", "recorded", 1)
    # As a split that is killed in the middle of a chunk leaves it.
    Path(out, "datasets/d/chunks/.chunk-000007.jsonl.zst.0a1b.partial").write_bytes(b"half")
    assert _bytes(_split(source, out, "jsonl").place) == _bytes(_split(source, str(tmp_path / "w"), "jsonl").place)
    assert list(Path(out).rglob(".*.partial")) == []
