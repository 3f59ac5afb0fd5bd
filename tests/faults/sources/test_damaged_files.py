"""Files that are damaged while a run is under way: what is done is kept, the error says where, and repair goes on."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, StaleResume
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec

ROWS = fake_rows(400)


def damage(path: Path, at: int, size: int = 24) -> None:
    """Flip bytes as a disk would, leaving the time of the file."""
    seen, before = path.stat(), path.read_bytes()
    path.write_bytes(before[:at] + bytes(b ^ 0x55 for b in before[at : at + size]) + before[at + size :])
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def repair(path: Path, data: bytes) -> None:
    seen = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def assert_complete(run: Run) -> None:
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in ROWS]
    assert run.verify().verified


def _start(path: Path, out: Path, on_step: Callable[[str, int], None] = lambda step, shard: None) -> Run:
    return start(fake_spec(path, shard_bytes=500), out, engine=InProcessEngine(on_step=on_step))


@pytest.mark.parametrize("checksums", [True, False])
def test_a_corrupt_page_of_parquet_names_its_row_group(tmp_path: Path, checksums: bool) -> None:
    path, out = tmp_path / "items.parquet", tmp_path / "run"
    pq.write_table(
        pa.Table.from_pylist(ROWS), path, row_group_size=50, compression="zstd", write_page_checksum=checksums
    )
    column = pq.ParquetFile(path).metadata.row_group(5).column(1)
    before = path.read_bytes()

    def rot(step: str, shard: int) -> None:
        if step == "claimed" and shard == 0:
            damage(path, column.data_page_offset + 40)

    with pytest.raises(SourceError, match=r"items\.parquet is not readable Parquet in row group 5: ") as caught:
        _start(path, out, rot)
    assert "again" in caught.value.hint
    done = Run(out).ledger.commits.shards()
    assert done
    repair(path, before)
    run = _start(path, out)
    assert_complete(run)
    assert done < run.ledger.commits.shards()


def test_a_gzip_cut_off_under_way(tmp_path: Path) -> None:
    """Two files, of which the second loses its end before its turn comes."""
    for name, rows in (("a", ROWS[:200]), ("b", ROWS[200:])):
        data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
        (tmp_path / f"{name}.jsonl.gz").write_bytes(data)
    path, before = tmp_path / "b.jsonl.gz", (tmp_path / "b.jsonl.gz").read_bytes()
    seen = path.stat()

    def cut(step: str, shard: int) -> None:
        if step == "claimed" and shard == 0:
            path.write_bytes(before[:-30])

    spec = fake_spec(tmp_path / "*.jsonl.gz", shard_bytes=1_000)
    with pytest.raises(StaleResume, match=r"b\.jsonl\.gz changed during the run: size"):
        start(spec, tmp_path / "run", engine=InProcessEngine(on_step=cut))
    path.write_bytes(before)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert_complete(start(spec, tmp_path / "run", engine=InProcessEngine()))


_READ_AFTER_CUT = """
import os, sys
from shardmill.core.errors import StaleResume
from shardmill.sources import Fields, discover, open_source
fields = Fields("text")
source = open_source(discover([sys.argv[1]], fields), fields)
shards = source.shards(1000)
os.truncate(sys.argv[1], os.path.getsize(sys.argv[1]) // 2)
for shard in shards:
    try:
        list(source.read(shard))
    except StaleResume as error:
        print(error.message)
"""


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_an_arrow_file_cut_off_after_planning_is_an_error_and_no_sigbus(tmp_path: Path, kind: str) -> None:
    path, table = tmp_path / "items.arrow", pa.Table.from_pylist(ROWS * 20)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    done = subprocess.run([sys.executable, "-c", _READ_AFTER_CUT, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) > 10
    assert all(line.startswith("items.arrow changed during the run: size") for line in said)
