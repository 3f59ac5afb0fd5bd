"""Splitting: every item exactly once, in order, whatever the chunks; a dataset is there as a whole or not at all."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardmill
from shardmill.core.errors import RunExists, SourceError, SpecError, StaleResume, StoreError
from shardmill.run import Run, start
from shardmill.sources import Fields, discover
from shardmill.store import Store, open_store
from shardmill.testing import InProcessEngine
from shardmill.verbs.split import Cut, SplitSpec, StreamingDatasetSplitter, parse_splits, split, split_files
from shardmill.verbs.split.blocks import Buffers, LineBlock
from shardmill.verbs.split.reading import feed_files, feed_iterable
from shardmill.verbs.split.spec import COMPRESSIONS, FORMATS
from tests.support.corpora import fake_rows, fake_spec
from tests.support.more_sources import WRITERS as MORE_WRITERS
from tests.support.more_sources import as_arrow
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]
ROWS = fake_rows(100)
THREE = parse_splits("train=0.6,validation=0.2,test=0.2")


def memory() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def unpack(data: bytes, name: str) -> bytes:
    codec = {"gz": "gzip", "zst": "zstd"}.get(name.rpartition(".")[2])
    return bytes(pa.input_stream(pa.BufferReader(data), compression=codec).read()) if codec else data


def read_chunk(data: bytes, name: str) -> list[Any]:
    if name.endswith(".parquet"):
        return list(pq.read_table(pa.BufferReader(data)).to_pylist())
    text = unpack(data, name)
    if ".jsonl" in name:
        return [json.loads(line) for line in text.splitlines()]
    chunk = json.loads(text)
    assert chunk["item_count"] == len(chunk["items"]) == chunk["end_index"] - chunk["start_index"] + 1
    return list(chunk["items"])


def read_back(store: Store, metadata: dict[str, Any], part: str = "") -> list[Any]:
    """The items of a dataset, with every count, size, digest and index checked on the way."""
    items: list[Any] = []
    for chunk in metadata["chunks"]:
        if chunk["split"] != part:
            continue
        data = store.get(f"datasets/{metadata['dataset_name']}/{chunk['path']}")
        assert (len(data), hashlib.sha256(data).hexdigest()) == (chunk["size_bytes"], chunk["sha256"])
        rows = read_chunk(data, chunk["path"])
        assert (chunk["start_index"], chunk["end_index"]) == (len(items), len(items) + len(rows) - 1)
        assert chunk["item_count"] == len(rows)
        items += rows
    return items


def make(rows: list[Any], **spec: Any) -> tuple[Store, dict[str, Any]]:
    store = memory()
    return store, split(feed_iterable(rows), store, SplitSpec("d", **spec), quiet=True).metadata


# Every item, once, in order.

rows_of_any_kind = st.lists(
    st.fixed_dictionaries({"n": st.integers(-(2**40), 2**40), "t": st.text(max_size=20)}), min_size=1, max_size=60
)
cuts = st.builds(Cut, items=st.integers(1, 70)) | st.builds(Cut, bytes=st.integers(1, 2000))


@settings(max_examples=40, deadline=None)
@given(rows_of_any_kind, cuts, st.sampled_from(["parquet", "json", "jsonl"]), st.sampled_from(["none", "gzip", "zstd"]))
def test_every_item_is_there_once_in_order(rows: list[Any], cut: Cut, format: str, compress: str) -> None:
    store, made = make(rows, cut=cut, format=format, compress=compress)
    assert read_back(store, made) == rows
    assert made["total_items"] == len(rows)
    assert made["total_chunks"] == len(made["chunks"])
    if cut.items:
        assert all(chunk["item_count"] == cut.items for chunk in made["chunks"][:-1])


@settings(max_examples=30, deadline=None)
@given(rows_of_any_kind, st.integers(1, 2000))
def test_a_chunk_by_bytes_is_never_over_its_bytes_but_for_one_item(rows: list[Any], size: int) -> None:
    _, made = make(rows, cut=Cut(bytes=size), format="jsonl")
    assert all(chunk["size_bytes"] <= size or chunk["item_count"] == 1 for chunk in made["chunks"])


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 300), cuts, cuts, st.integers(0, 2**40))
def test_parts_and_order_do_not_depend_on_the_chunks(count: int, one: Cut, other: Cut, seed: int) -> None:
    rows = [{"n": i} for i in range(count)]
    how: dict[str, Any] = {"format": "jsonl", "splits": THREE, "by": f"random:{seed}"}
    for shuffle in (None, seed):
        seen = [make(rows, cut=cut, shuffle=shuffle, **how) for cut in (one, other)]
        parts = [{part: read_back(*made, part) for part, _ in THREE} for made in seen]
        assert parts[0] == parts[1]
        assert sorted(row["n"] for part in parts[0].values() for row in part) == list(range(count))
        if shuffle is None:
            assert all(part == sorted(part, key=lambda row: row["n"]) for part in parts[0].values())
        else:
            unshuffled = {part: sorted(row["n"] for row in rows) for part, rows in parts[0].items()}
    assert unshuffled == {part: [r["n"] for r in read_back(*make(rows, cut=one, **how), part)] for part, _ in THREE}


def test_a_shuffle_moves_nearly_everything_and_a_seed_gives_one_order() -> None:
    rows = [{"n": i} for i in range(2000)]
    orders = [[r["n"] for r in read_back(*make(rows, shuffle=seed))] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sum(i == n for i, n in enumerate(orders[0])) < 20


def test_shares_are_as_asked_for() -> None:
    _, made = make([{"n": i} for i in range(20_000)], splits=THREE, by="random:3", format="jsonl")
    counts = {part: sum(c["item_count"] for c in made["chunks"] if c["split"] == part) for part, _ in THREE}
    assert all(abs(counts[part] / 20_000 - share) < 0.015 for part, share in THREE)


def test_a_hash_of_a_field_keeps_what_belongs_together() -> None:
    rows = [{"user": f"u{i % 40}", "n": i} for i in range(400)]
    store, made = make(rows, splits=THREE, by="hash:user")
    users = [{row["user"] for row in read_back(store, made, part)} for part, _ in THREE]
    assert sum(map(len, users)) == 40
    assert set.union(*users) == {f"u{i}" for i in range(40)}
    with pytest.raises(SourceError, match="has no 'user'"):
        make([*rows, {"n": 1}], splits=THREE, by="hash:user", format="jsonl")


@pytest.mark.parametrize("workers", [1, 3, 7, 100])
def test_for_workers_the_chunks_are_even(write_jsonl: Write, workers: int) -> None:
    feed, store = feed_files([str(write_jsonl(ROWS))]), memory()
    made = split(feed, store, SplitSpec("d", Cut(workers=workers)), quiet=True).metadata
    counts = [chunk["item_count"] for chunk in made["chunks"]]
    assert (len(counts), sum(counts)) == (workers, 100)
    assert max(counts) - min(counts) <= 1
    assert read_back(store, made) == ROWS
    with pytest.raises(SpecError, match="read twice"):
        make(ROWS, cut=Cut(workers=2))


# Sources.


def test_every_format_of_file(tmp_path: Path, write_jsonl: Write) -> None:
    lines = write_jsonl(ROWS)
    (tmp_path / "t.txt").write_text("one\n\n  two\r\nthree")
    (tmp_path / "c.csv").write_text('a,b\n1,"x\ny"\n2,\n')
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()) + gzip.compress(b'{"id":"z","text":""}'))
    pq.write_table(pa.table({"a": pa.array([1, None], pa.int32())}), tmp_path / "p.parquet")
    store = memory()
    splitter = StreamingDatasetSplitter(store.url, quiet=True)
    config = {"chunk_size": 30}
    texts = [{"text": "one"}, {"text": "  two"}, {"text": "three"}]
    for i, (name, format, wanted) in enumerate(
        [
            ("items.jsonl", "jsonl", ROWS),
            ("t.txt", "text", texts),
            ("c.csv", "csv", [{"a": "1", "b": "x\ny"}, {"a": "2", "b": ""}]),
            ("p.jsonl.gz", "gzipped_jsonl", [*ROWS, {"id": "z", "text": ""}]),
            ("p.parquet", "parquet", [{"a": 1}, {"a": None}]),
        ]
    ):
        made = splitter.stream_and_split_from_file(str(tmp_path / name), f"d{i}", config, file_format=format)
        assert read_back(store, made) == wanted, name
    kept = store.get("datasets/d4/chunks/chunk-000000.parquet")
    assert pq.read_schema(pa.BufferReader(kept)).field("a").type == pa.int32()
    with pytest.raises(SourceError, match="'xml' is not a supported format"):
        splitter.stream_and_split_from_file(str(lines), "x", config, file_format="xml")


@pytest.mark.parametrize("kind", MORE_WRITERS)
@pytest.mark.parametrize("format", FORMATS)
def test_formats_that_are_not_lines(tmp_path: Path, kind: str, format: str) -> None:
    """Read by the readers that runs have, alone and as a second file."""
    extension, write = MORE_WRITERS[kind]
    rows = [{"key": f"k{i}", "body": f'a "b"\n[{i}], {{é' + "x" * (i % 7), "n": i} for i in range(2500)]
    for i, part in enumerate((rows[:2000], rows[2000:])):
        (tmp_path / f"{i}.{extension}").write_bytes(write(part))
    done = split_files([str(tmp_path / f"?.{extension}")], memory().url, items=700, format=format, quiet=True)
    assert read_back(open_store(done.place.partition("/datasets/")[0]), done.metadata) == rows
    assert done.metadata["total_chunks"] == 4


def test_a_saved_dataset_and_a_compressed_array(tmp_path: Path) -> None:
    folder, store = tmp_path / "saved", memory()
    folder.mkdir()
    for i, part in enumerate((ROWS[:60], ROWS[60:])):
        (folder / f"data-{i}.arrow").write_bytes(as_arrow(pa.Table.from_pylist(part), 7, stream=True))
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}]}')
    made = split_files([str(folder)], store.url, items=30, quiet=True).metadata
    assert read_back(store, made) == [*ROWS[60:], *ROWS[:60]]
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(ROWS, indent=1).encode()))
    made = split_files([str(tmp_path / "a.json.gz")], store.url, items=30, format="jsonl", quiet=True).metadata
    assert read_back(store, made) == ROWS


def test_what_cannot_be_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, , {"a": 2}]')
    (tmp_path / "b.pkl").write_bytes(pickle.dumps([{"a": 1}, {"a": b"bytes"}]))
    table = pa.table({"a": pa.array([b"ok", b"\xff"]).view(pa.string())})
    (tmp_path / "c.arrow").write_bytes(as_arrow(table, 1, stream=True))
    two = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    (tmp_path / "d.arrow").write_bytes(as_arrow(two, 1, stream=True))
    for name, reason in (
        ("a.json", "a.json: element 2: it is empty"),
        ("b.pkl", "b.pkl: record 2: 'a' is binary"),
        ("c.arrow", "c.arrow: a row after row 1 is not valid UTF-8"),
        ("d.arrow", "d.arrow has two columns named 'a'"),
    ):
        with pytest.raises(SourceError, match=reason):
            split_files([str(tmp_path / name)], memory().url, format="jsonl", quiet=True)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([b'{"a": 1}', b"", b" ", b'"' + b"x" * 90 + b'"']), max_size=40), st.booleans())
def test_lines_over_the_edges_of_blocks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool
) -> None:
    """Lines longer and shorter than a block, blank ones too."""
    path = tmp_path_factory.mktemp("blocks") / "r.jsonl"
    path.write_bytes(b"\n".join([*lines, b"{}"]) + (b"\n" if ends else b""))
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("BLOCK_BYTES", 16), ("_LINE_BYTES", 8)):
            patch.setattr(f"shardmill.verbs.split.lines.{name}", size)
        blocks = list(feed_files([str(path)]).blocks())
    assert [line for block in blocks for line in block.lines()] == [line for line in [*lines, b"{}"] if line.strip()]


def test_a_buffer_is_used_again_only_when_nobody_looks() -> None:
    buffers = Buffers(100)
    first = buffers.take(50)
    first[:3] = b"abc"
    kept = first[1:3]
    del first
    buffers.take(50)[:3] = b"xyz"
    assert bytes(kept) == b"bc"
    del kept
    views = [buffers.take(50), buffers.take(50)]
    assert {bytes(view[:3]) for view in views} == {b"abc", b"xyz"}
    assert len(buffers.take(101)) == 101


def test_lines_are_copied_byte_by_byte(tmp_path: Path) -> None:
    raw = b'\xef\xbb\xbf{"a": 1 }\r\n\n \n{"b" : "\xc3\xa9"}'
    (tmp_path / "r.jsonl").write_bytes(raw)
    done = split_files([str(tmp_path / "r.jsonl")], str(tmp_path / "o"), format="jsonl", quiet=True)
    assert Path(done.place, "chunks/chunk-000000.jsonl").read_bytes() == b'{"a": 1 }\r\n{"b" : "\xc3\xa9"}\n'


def test_a_database_by_connection_and_by_path(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "d.db")
    connection.execute("create table docs (id integer, content text, price real)")
    connection.executemany("insert into docs values (?, ?, ?)", [(i, f"doc {i}", i / 2) for i in range(50)])
    connection.commit()
    query, store = "select id, content from docs order by id", memory()
    splitter = StreamingDatasetSplitter(store.url, quiet=True)
    wanted = [{"id": i, "content": f"doc {i}"} for i in range(50)]
    for i, source in enumerate([connection, str(tmp_path / "d.db"), f"sqlite:///{tmp_path}/d.db"]):
        made = splitter.stream_and_split_from_database(
            db_connection=source, query=query, dataset_name=f"d{i}", chunk_config={"chunk_size": 20}, batch_size=7
        )
        assert read_back(store, made) == wanted
    with pytest.raises(SourceError, match="two columns named 'id'"):
        splitter.stream_and_split_from_database(connection, "select id, id from docs", "e", {"chunk_size": 5})
    with pytest.raises(SourceError, match="oracle:// is not"):
        splitter.stream_and_split_from_database("oracle://h/d", query, "f", {"chunk_size": 5})


def test_the_seeds_layout(write_jsonl: Write, tmp_path: Path) -> None:
    splitter = StreamingDatasetSplitter(bucket_name=tmp_path / "s", format="json", compress="gzip", quiet=True)
    config = {"total_chunks": 3, "chunk_size": 40, "optimal_batch_size": 32}
    made = splitter.stream_and_split_from_file(
        file_path=str(write_jsonl(ROWS)), dataset_name="large-docs", chunk_config=config, file_format="jsonl"
    )
    assert (made["total_items"], made["total_chunks"], made["actual_chunks"], made["chunk_size"]) == (100, 3, 3, 40)
    folder = tmp_path / "s/datasets/large-docs"
    assert json.loads((folder / "chunk-metadata.json").read_text()) == made
    last = made["chunks"][-1]
    assert last["s3_key"] == "datasets/large-docs/chunks/chunk-000002.json.gz"
    chunk = json.loads(gzip.decompress((folder / last["path"]).read_bytes()))
    assert (chunk["chunk_id"], chunk["start_index"], chunk["end_index"]) == ("chunk-000002", 80, 99)
    assert chunk["items"] == ROWS[80:]
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    made = splitter.stream_and_split_from_file(str(tmp_path / "t.txt"), "texts", config, file_format="text")
    assert read_back(open_store(tmp_path / "s"), made) == ["one", "two"]


def test_a_bare_name_is_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    (tmp_path / "folder").mkdir()
    urls = [StreamingDatasetSplitter(n)._store.url for n in ("argo-gpu-artifacts-12345", "folder", "./other")]
    assert urls == ["s3://argo-gpu-artifacts-12345", str(tmp_path / "folder"), str(tmp_path / "other")]


# What cannot be written is refused, by number and reason.


@pytest.mark.parametrize("line", ['{"id": 1,}', '{"id": "k"} {"id": "k"}', "{", '{"id":"\\ud800"}', "[1]"])
def test_a_line_that_is_no_row_is_named(write_jsonl: Write, tmp_path: Path, line: str) -> None:
    path = write_jsonl([*ROWS, line, *ROWS])
    with pytest.raises(SourceError, match="item 100"):
        split_files([str(path)], str(tmp_path / "o"), items=1000, quiet=True)
    assert not (tmp_path / "o/datasets/items/chunk-metadata.json").exists()


def test_json_chunks_take_any_json_and_nothing_else(write_jsonl: Write, tmp_path: Path) -> None:
    path = write_jsonl(['{"a": 1}', "[1]", '"x"', "3"])
    done = split_files([str(path)], str(tmp_path / "o"), format="json", quiet=True)
    assert read_back(open_store(tmp_path / "o"), done.metadata) == [{"a": 1}, [1], "x", 3]
    broken = write_jsonl(['{"a": 1} {"b":', "2}"], "broken.jsonl")
    with pytest.raises(SourceError, match="item 0 is not JSON"):
        split_files([str(broken)], str(tmp_path / "o"), format="json", quiet=True)


def test_fields_that_fit_no_column(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'a' holds values of several kinds"):
        make([{"a": 1}, {"a": "x"}])
    with pytest.raises(SourceError, match="item 1 cannot be written as JSON"):
        make([{"a": 1}, {"a": object()}])
    pieces = [{"a": i, "pad": "x" * 1000} for i in range(6000)]
    with pytest.raises(SourceError, match="item 6,000 has a field 'late'"):
        make([*pieces, {"a": 1, "late": 2}])
    with pytest.raises(SourceError, match="no items"):
        make([])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"format": "xml"}, "not a supported format"),
        ({"compress": "lz4"}, "is not a compression"),
        ({"by": "random:1"}, "needs --splits"),
        ({"splits": THREE, "by": "hash:"}, "not a way"),
        ({"name": "../x"}, "is not a valid dataset name"),
    ],
)
def test_a_wrong_spec(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        SplitSpec(**{"name": "d", **wrong})


@pytest.mark.parametrize("text", ["train", "train=0.5", "train=0.5,train=0.5", "a=2,b=-1", "../x=1"])
def test_wrong_shares(text: str) -> None:
    with pytest.raises(SpecError):
        parse_splits(text)


@pytest.mark.parametrize("text", ["a=1,a=1", "a=0.5,b=0.2,a=0.3", "a=0.5, a=0.5"])
def test_a_name_that_comes_twice_is_told_as_such(text: str) -> None:
    with pytest.raises(SpecError, match="'a' is named twice") as told:
        parse_splits(text)
    assert "add up" not in str(told.value)


def test_one_way_of_cutting() -> None:
    for given_ in ({}, {"items": 1, "bytes": 1}, {"items": 0}):
        with pytest.raises(SpecError):
            Cut(**given_)


# Again.


def test_again_is_done_and_otherwise_is_refused(write_jsonl: Write, tmp_path: Path) -> None:
    source, out = str(write_jsonl(ROWS)), str(tmp_path / "o")
    first = split_files([source], out, items=30, quiet=True)
    again = split_files([source], out, items=30, quiet=True)
    assert (first.was_there, again.was_there, again.metadata) == (False, True, first.metadata)
    with pytest.raises(StaleResume, match="items was 30, is 40"):
        split_files([source], out, items=40, quiet=True)
    write_jsonl(ROWS[:50])
    with pytest.raises(StaleResume, match="the source changed"):
        split_files([source], out, items=30, quiet=True)
    fresh = split_files([source], out, items=30, fresh=True, quiet=True)
    assert sorted(p.name for p in Path(fresh.place, "chunks").iterdir()) == [
        "chunk-000000.parquet",
        "chunk-000001.parquet",
    ]


def test_an_iterable_that_is_there_is_refused() -> None:
    splitter = StreamingDatasetSplitter(memory().url, quiet=True)
    splitter.from_iterable(ROWS, "d", {"chunk_size": 10})
    with pytest.raises(RunExists, match="is unknown whether"):
        splitter.from_iterable(ROWS, "d", {"chunk_size": 10})


class FailingStore:
    """A store in which the writing of one chunk fails."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def writer(self, key: str) -> Any:
        if key.endswith(self._key):
            raise StoreError("the store is out of order")
        return self._store.writer(key)


def test_a_store_that_fails_ends_the_split_and_a_resume_ends_it_well(write_jsonl: Write) -> None:
    source, store = str(write_jsonl(ROWS)), memory()
    spec = SplitSpec("d", Cut(items=10), "jsonl")
    broken: Any = FailingStore(store, "chunk-000004.jsonl")
    with pytest.raises(StoreError, match="out of order"):
        split(feed_files([source]), broken, spec, quiet=True, record_every_s=0)
    assert store.head("datasets/d/chunk-metadata.json") is None
    done = split(feed_files([source]), store, spec, quiet=True)
    assert done.kept >= 1
    assert read_back(store, done.metadata) == ROWS
    assert store.head("datasets/d/chunk-progress.json") is None


@pytest.mark.timeout(30)
@pytest.mark.parametrize("format", FORMATS)
def test_a_source_that_fails_inside_a_chunk_ends_the_split(format: str) -> None:
    def items() -> Iterator[dict[str, str]]:
        yield from ({"a": "x" * 10_000} for _ in range(1000))
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="gone"):
        split(feed_iterable(items()), memory(), SplitSpec("d", Cut(items=10_000), format), quiet=True)


def test_a_source_that_fails_ends_the_split() -> None:
    def items() -> Iterator[dict[str, int]]:
        yield from ({"n": i} for i in range(100))
        raise OSError("the line is dead")

    store = memory()
    with pytest.raises(OSError, match="the line is dead"):
        split(feed_iterable(items()), store, SplitSpec("d", Cut(items=10)), quiet=True)
    assert store.head("datasets/d/chunk-metadata.json") is None


# The result as a source.


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_split_dataset_is_a_source(write_jsonl: Write, tmp_path: Path, format: str, compress: str) -> None:
    source = write_jsonl(ROWS)
    done = split_files([str(source)], str(tmp_path / "o"), items=30, format=format, compress=compress, quiet=True)
    (Path(done.place) / "chunks" / f"chunk-999999.{format}").write_text("left over")
    run = start(fake_spec(done.place), tmp_path / "run", engine=InProcessEngine())
    assert Run(run.ledger.url).table().column("id").to_pylist() == [row["id"] for row in ROWS]


def test_a_part_is_a_source_of_its_own(write_jsonl: Write, tmp_path: Path) -> None:
    source = str(write_jsonl(ROWS))
    done = split_files([source], str(tmp_path / "o"), splits=THREE, by="random:1", quiet=True)
    stat = discover([f"{done.place}/test"], Fields("text"))
    assert [Path(f.place).relative_to(done.place).as_posix() for f in stat.files] == [
        "test/chunks/chunk-000000.parquet"
    ]
    assert len(discover([done.place], Fields("text", split="all")).files) == 3


def test_what_is_not_whole_is_no_source(write_jsonl: Write, tmp_path: Path) -> None:
    source = str(write_jsonl(ROWS))
    place = Path(split_files([source], str(tmp_path / "o"), quiet=True).place)
    chunk = place / "chunks/chunk-000000.parquet"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"chunk-000000.parquet has [\d,]+ bytes, not"):
        discover([str(place)], Fields("text"))
    (place / "chunk-metadata.json").rename(place / "chunk-progress.json")
    with pytest.raises(SourceError, match="incomplete dataset"):
        discover([str(place)], Fields("text"))


def test_a_chunk_of_json_with_another_count_is_refused(write_jsonl: Write, tmp_path: Path) -> None:
    made = split_files([str(write_jsonl(ROWS))], str(tmp_path / "o"), format="json", quiet=True)
    chunk = Path(made.place) / "chunks/chunk-000000.json"
    chunk.write_bytes(chunk.read_bytes().replace(b'"item_count": 100', b'"item_count": 101'))
    with pytest.raises(SourceError, match="has 100 items, but its end names another number"):
        discover([made.place], Fields("text"))


# The command.


def _command(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardmill", "split", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_command(write_jsonl: Write, tmp_path: Path) -> None:
    source, out = write_jsonl(ROWS), tmp_path / "o"
    words = [source, "--out", out, "--bytes", "2KB", "--format", "jsonl", "--compress", "zstd", "--shuffle", 7]
    words += ["--splits", "a=0.5,b=0.5", "--by", "hash:id"]
    said = _command(*words)
    assert (said.returncode, said.stdout) == (0, ""), said.stderr
    assert "100 items in" in said.stderr
    assert "Already complete: 100 items" in _command(*words).stderr
    assert json.loads(_command(*words, "--json").stdout)["total_items"] == 100
    refused = _command(source, "--out", out, "--items", 5)
    assert refused.returncode == 2
    assert "--fresh" in refused.stderr


@pytest.mark.services
def test_from_s3_to_s3(s3_server: str, write_jsonl: Write) -> None:
    folder = uuid.uuid4().hex
    store = open_store(f"{s3_server}/{folder}")
    store.put("in/rows.jsonl.gz", gzip.compress(write_jsonl(ROWS).read_bytes()))
    splitter = StreamingDatasetSplitter(store.url, splits=dict(THREE), quiet=True)
    made = splitter.stream_and_split_from_s3("shardmill", f"{folder}/in/rows.jsonl.gz", "d", {"chunk_size": 9})
    ids = [row["id"] for part, _ in THREE for row in read_back(store, made, part)]
    assert sorted(ids) == sorted(row["id"] for row in ROWS)
    assert open_store(s3_server).head(made["chunks"][0]["s3_key"]) is not None
    assert len(discover([f"{store.url}/datasets/d"], Fields("text", split="all")).files) == made["total_chunks"]
    again = splitter.stream_and_split_from_s3("shardmill", f"{folder}/in/rows.jsonl.gz", "d", {"chunk_size": 9})
    assert again == made


def test_the_name_is_public() -> None:
    assert shardmill.StreamingDatasetSplitter is StreamingDatasetSplitter


def test_a_note_and_the_metadata_come_after_the_chunks_and_their_names_are_on_the_disk(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system is asked for, in order: a name that was given is synced before anything that relies on it."""
    synced_files: set[int] = set()
    unsynced_names: set[Path] = set()
    announced: list[str] = []
    sync, rename, link = os.fsync, os.replace, os.link

    def watch_sync(handle: int) -> None:
        sync(handle)
        synced = os.fstat(handle).st_ino
        synced_files.add(synced)
        unsynced_names.difference_update([name for name in list(unsynced_names) if name.parent.stat().st_ino == synced])

    def watch_name(give: Callable[[Any, Any], None], old: Any, new: Any) -> None:
        if Path(new).name.startswith("chunk-0"):
            assert os.stat(old).st_ino in synced_files
            unsynced_names.add(Path(new))
        else:
            announced.append(Path(new).name)
            noted = {Path(new).parent / c["path"] for c in json.loads(Path(old).read_bytes())["chunks"]}
            assert not noted & unsynced_names
        give(old, new)

    monkeypatch.setattr(os, "fsync", watch_sync)
    monkeypatch.setattr(os, "replace", lambda old, new: watch_name(rename, old, new))
    monkeypatch.setattr(os, "link", lambda old, new: watch_name(link, old, new))
    feed = feed_files([str(write_jsonl(ROWS))])
    spec = SplitSpec("d", Cut(items=7), "jsonl", "none", None, parse_splits("train=0.7,test=0.3"))
    done = split(feed, open_store(str(tmp_path / "out")), spec, quiet=True)
    assert not unsynced_names
    assert announced[-1] == "chunk-metadata.json"
    assert len(done.metadata["chunks"]) > 10


@given(
    st.lists(st.sampled_from([b"{}", b"", b" ", b"x" * 300, b"y" * 70_000, b"\r", b" z"]), max_size=40),
    st.binary(max_size=9),
)
@settings(deadline=None)
def test_lines_are_found_wherever_newlines_lie(lines: list[bytes], rest: bytes) -> None:
    rest = rest.replace(b"\n", b"")
    block, left = LineBlock.cut(b"".join(line + b"\n" for line in lines) + rest)
    assert left == rest
    assert block.lines() == [line for line in lines if line.strip()]
    assert [bytes(block.part(i, i + 1).data) for i in range(len(block))] == [line + b"\n" for line in block.lines()]


def test_a_chunk_that_cannot_take_its_name_ends_the_split(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def refuse(old: Any, new: Any) -> None:
        if Path(new).name == "chunk-000003.jsonl":
            raise OSError(errno.ENOSPC, "no room")
        rename(old, new)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError, match="no space left"):
        split_files([str(write_jsonl(ROWS))], str(tmp_path / "out"), items=7, format="jsonl", quiet=True)
