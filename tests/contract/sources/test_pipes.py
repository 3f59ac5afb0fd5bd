"""Pipes as sources: read once into the run folder, by every format, and found again by their bytes."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, StaleResume
from shardmill.run import Run
from shardmill.run.carrying import carry_out
from shardmill.run.running import resume
from shardmill.run.spilling import keep_source
from shardmill.testing import InProcessEngine, check_source
from tests.support.cli import assert_told, process
from tests.support.corpora import fake_rows

ROWS: list[dict[str, Any]] = fake_rows(60)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
TABLE = pa.Table.from_pylist(ROWS)


def arrow_file(stream: bool) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=9)
    return bytes(sink.getvalue())


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return bytes(sink.getvalue())


CSV = ("id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in ROWS)).encode()
# What is sent, the name of the pipe, and the format that is named.
SENT: dict[str, tuple[bytes, str, str | None]] = {
    "JSON Lines": (LINES, "pipe", None),
    "JSON Lines without a last newline": (LINES[:-1], "pipe", None),
    "JSON Lines, gzip": (gzip.compress(LINES), "pipe", None),
    "JSON Lines, bzip2": (bz2.compress(LINES), "pipe", "jsonl"),
    "an array": (json.dumps(ROWS).encode(), "pipe", None),
    "CSV by format": (CSV, "pipe", "csv"),
    "CSV by name": (CSV, "pipe.csv", None),
    "CSV, gzip by name": (gzip.compress(CSV), "pipe.csv.gz", None),
    "Parquet": (parquet(), "pipe", None),
    "Arrow": (arrow_file(stream=False), "pipe", None),
    "Arrow stream": (arrow_file(stream=True), "pipe", None),
}


@contextmanager
def sending(data: bytes, folder: Path, name: str = "pipe") -> Iterator[str]:
    """A named pipe that is sent these bytes."""
    pipe = folder / name
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True)
    writer.start()
    yield str(pipe)
    writer.join(10)
    pipe.unlink()


def begin(data: bytes, folder: Path, out: Path, format: str | None = None) -> Run:
    with sending(data, folder) as pipe:
        work = {"source": pipe, "text": "text", "id": "id", "format": format, "task": "shardmill.testing:FakeTask"}
        return carry_out(work, {"shard_bytes": 500}, out, engine=InProcessEngine())


@pytest.mark.parametrize("kind", SENT)
def test_every_format_is_cut_as_a_file(tmp_path: Path, kind: str) -> None:
    data, name, format = SENT[kind]
    with sending(data, tmp_path, name) as pipe:
        kept = keep_source({"source": (pipe,), "format": format}, tmp_path / "run")
    assert check_source([kept["source"]], rows=ROWS, text="text", id="id", format=format) > 10


def test_the_same_bytes_resume_and_others_are_refused(tmp_path: Path) -> None:
    first = begin(LINES, tmp_path, tmp_path / "run")
    assert first.verify().verified
    assert len(first.plan.shards) > 3
    assert begin(LINES, tmp_path, tmp_path / "run").plan.id == first.plan.id
    with pytest.raises(StaleResume, match=r"holds a different run: it read pipe-.*, and the pipe given now is pipe-"):
        begin(LINES[: LINES.index(b"\n") + 1], tmp_path, tmp_path / "run")
    assert resume(tmp_path / "run").table().num_rows == 60


BROKEN = {
    LINES[:-9]: "ended in the middle of line 60",
    b"": "is empty",
    CSV: "cannot be told: it begins with b'id,text",
    parquet()[:-30]: "arquet",
    arrow_file(stream=True)[:-8]: "is truncated",
    gzip.compress(LINES)[:-20]: "pipe-",
}


@pytest.mark.parametrize("data", BROKEN)
def test_a_broken_pipe_begins_nothing(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, match=BROKEN[data]):
        begin(data, tmp_path, tmp_path / "run")
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_pipe_stands_alone(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Standard input cannot be combined with other sources"):
        keep_source({"source": ("-", "x.jsonl")}, tmp_path / "run")


def test_standard_input_and_what_the_commands_say(tmp_path: Path) -> None:
    words = ["plan", "-", "--text", "text", "--task", "shardmill.testing:FakeTask"]
    assert_told(process(*words, input=LINES.decode()), 2, "is a pipe: it is read once, into a run folder", "--out")
    said = process(*words, "--out", tmp_path / "run", input=LINES.decode())
    assert said.status == 0, said
    assert "a pipe, kept as spilled/pipe-" in said.out
