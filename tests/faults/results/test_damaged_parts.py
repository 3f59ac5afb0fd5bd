"""A part with one damaged bit is found by whoever reads it, and named; also one that an earlier version wrote."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import CorruptState, SourceError
from shardmill.plan.spec import make_spec
from shardmill.results.edition_rows import read_rows_of
from shardmill.results.search import open_matrix
from shardmill.results.verify import digest
from shardmill.run import Run, start
from shardmill.sinks.parquet import read_part
from shardmill.store import parts
from shardmill.store.parts import open_part
from shardmill.testing import InProcessEngine
from tests.support.corpora import SHOUTING, fake_rows, fake_spec

Write = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Write) -> Run:
    return start(fake_spec(write_jsonl(fake_rows(60))), tmp_path / "run", engine=InProcessEngine())


def part(run: Run, shard: int = 0) -> Path:
    return Path(run.ledger.url) / run.ledger.commits.read()[shard].part


def flip(path: Path, at: int, bit: int = 6) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def vector_at(path: Path) -> int:
    """A place in the middle of the vectors."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    assert column.path_in_schema.startswith("embedding")
    return int(column.data_page_offset + column.total_compressed_size // 2)


def write_as_earlier(run: Run, shard: int) -> None:
    """The same rows as an earlier version wrote them: without checksums."""
    commit = run.ledger.commits.read()[shard]
    table = pq.read_table(part(run, shard))
    pq.write_table(table, part(run, shard))
    record = replace(commit, digest=digest(run.ledger.store, commit.part), part_bytes=part(run, shard).stat().st_size)
    (Path(run.ledger.url) / run.ledger.commits.key(shard)).write_text(json.dumps(asdict(record)))


def as_source(run: Run, folder: Path) -> None:
    work = {"source": f"run:{run.ledger.url}", "text": "id", "keep": ["embedding"], "task": SHOUTING}
    start(make_spec(work, {}), folder / "again", engine=InProcessEngine())


READERS: dict[str, Callable[[Run, Path], Any]] = {
    "merge to parquet": lambda run, folder: run.merge(folder / "all.parquet"),
    "merge to npy": lambda run, folder: run.merge(folder / "all.npy"),
    "table": lambda run, folder: run.table(),
    "batches": lambda run, folder: list(run.batches(["embedding"])),
    "search": lambda run, folder: open_matrix(run.ledger, run.plan),
    "delivery": lambda run, folder: [*read_rows_of(run.ledger, run.ledger.commits.read()[1])],
    "a run as a source": as_source,
}


@pytest.mark.parametrize("earlier", [False, True], ids=["now", "earlier"])
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_a_flipped_bit(run: Run, tmp_path: Path, reader: str, earlier: bool) -> None:
    if earlier:
        write_as_earlier(run, 1)
        run = Run(run.ledger.url)
    flip(part(run, 1), vector_at(part(run, 1)))
    with pytest.raises((CorruptState, SourceError), match="is damaged") as found:
        READERS[reader](run, tmp_path)
    assert str(part(run, 1)) in found.value.message
    assert f"shardmill resume {run.ledger.url}" in str(found.value.hint)
    assert not list(tmp_path.glob("all.*"))


def test_what_the_error_says_helps(run: Run, tmp_path: Path) -> None:
    flip(part(run, 1), vector_at(part(run, 1)))
    for commit in Path(run.ledger.url).glob("commits/000001.*"):
        commit.unlink()
    start(fake_spec(tmp_path / "items.jsonl"), tmp_path / "run", engine=InProcessEngine())
    assert Run(run.ledger.url).verify().verified


@pytest.mark.parametrize("earlier", [False, True], ids=["now", "earlier"])
def test_no_bit_can_change_a_value_without_an_error(run: Run, earlier: bool) -> None:
    """In pages, their headers and the footer; a bit that changes no value may be read over."""
    if earlier:
        write_as_earlier(run, 0)
        run = Run(run.ledger.url)
    commit = run.ledger.commits.read()[0]
    sound = part(run).read_bytes()
    expected = pa.Table.from_batches(read_part(run.ledger.store, commit))
    choose = random.Random(3)
    footer = range(len(sound) - 1_500, len(sound))
    for at in {*choose.sample(range(len(sound)), 300), *choose.sample(footer, 300)}:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << choose.randrange(8)
        part(run).write_bytes(damaged)
        parts._proved.clear()
        try:
            found = pa.Table.from_batches(read_part(run.ledger.store, commit))
        except CorruptState:
            continue
        assert found.equals(expected), f"byte {at} of {len(sound)}"


def test_other_programs_read_a_part_as_any_parquet(run: Run) -> None:
    path = part(run)
    assert pq.read_table(path).num_rows == run.ledger.commits.read()[0].rows
    with path.open("rb") as file:
        opened, marked = open_part(file, "")
    assert marked
    assert opened.metadata.num_rows == pq.ParquetFile(path).metadata.num_rows


def test_a_footer_longer_than_is_read_at_once(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_TAIL_BYTES", 16)
    made = start(fake_spec(write_jsonl(fake_rows(60))), tmp_path / "run", engine=InProcessEngine())
    with part(made).open("rb") as file:
        assert open_part(file, "")[1]
    assert made.table().num_rows == 60


def test_a_part_of_an_earlier_version_is_read_through_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_as_earlier(run, 0)
    run = Run(run.ledger.url)
    read = []
    whole = parts.hash_file
    monkeypatch.setattr(parts, "hash_file", lambda file: read.append(file) or whole(file))
    for _ in range(3):
        run.table()
    assert len(read) == 1
