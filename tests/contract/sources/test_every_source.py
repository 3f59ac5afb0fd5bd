"""One contract over every format and store: each row exactly once, in order, wherever the cuts fall."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.ranges import cover
from shardmill.sources import Fields, ItemBatch, Shard, SourceStat, discover, open_source
from shardmill.store import open_store

FIELDS = Fields(text="body", id=("key",), keep=("n:int64",))
Row = dict[str, object]


def local_root(folder: Path) -> str:
    return str(folder)


def memory_root(folder: Path) -> str:
    return f"memory://sources-{uuid.uuid4().hex}"


def s3_root(folder: Path) -> str:
    return f"s3://shardmill/sources-{uuid.uuid4().hex}"


NEAR_ROOTS = [local_root, memory_root]
SOURCE_ROOTS = [*NEAR_ROOTS, pytest.param(s3_root, marks=pytest.mark.services)]


@pytest.fixture(params=NEAR_ROOTS, ids=lambda root: root.__name__)
def near_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For what is tried with many examples: a server would take a minute."""
    return str(request.param(tmp_path))


@pytest.fixture(params=SOURCE_ROOTS, ids=lambda root: root.__name__)
def source_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param is s3_root:
        request.getfixturevalue("s3_server")
    return str(request.param(tmp_path))


def as_jsonl(rows: list[Row], newline: str, final: bool) -> bytes:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return (newline.join(lines) + (newline if final else "")).encode()


def as_csv(rows: list[Row], newline: str, final: bool, delimiter: str = ",") -> bytes:
    records = [["key", "body", "n"], *([row["key"], row["body"], row["n"]] for row in rows)]
    lines = [delimiter.join(quote(str(value)) for value in record) for record in records]
    return (newline.join(lines) + (newline if final else "")).encode()


def quote(value: str) -> str:
    """As RFC 4180 has it; Python 3.11's own writer leaves a lone carriage return unquoted."""
    return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n\t') else value


def as_tsv(rows: list[Row], newline: str, final: bool) -> bytes:
    return as_csv(rows, newline, final, "\t")


def as_parquet(rows: list[Row], newline: str, final: bool) -> bytes:
    out = io.BytesIO()
    kinds = pa.schema({"key": pa.string(), "body": pa.string(), "n": pa.int64()})
    pq.write_table(pa.Table.from_pylist(rows, kinds), out, row_group_size=3)
    return out.getvalue()


WRITERS = {"jsonl": as_jsonl, "csv": as_csv, "tsv": as_tsv, "parquet": as_parquet}


@pytest.fixture(params=WRITERS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read_all(stat: SourceStat, target_bytes: int, fields: Fields = FIELDS) -> list[Row]:
    """Every row, after checking what holds for all formats: shards tile the files, lines and batches add up."""
    source = open_source(stat, fields)
    shards = source.shards(target_bytes)
    assert shards == open_source(stat, fields).shards(target_bytes)
    assert [s.index for s in shards] == list(range(len(shards)))
    assert [s.file for s in shards] == sorted(s.file for s in shards)
    assert all(s.start < s.stop and s.weight_bytes > 0 for s in shards)
    for i in {s.file for s in shards}:
        ranges = [(s.start, s.stop) for s in shards if s.file == i]
        assert cover(ranges, min(ranges)[0], max(ranges)[1])
    return [row for shard in shards for batch in read_shard(source.read, shard) for row in batch_rows(batch)]


def read_shard(read: Callable[[Shard], Iterator[ItemBatch]], shard: Shard) -> Iterator[ItemBatch]:
    lines = 0
    for batch in read(shard):
        assert len(batch) == batch.kept.num_rows == len(batch.lines) <= 1024
        assert all(lines < line <= lines + batch.line_count for line in batch.lines)
        assert batch.lines == sorted(set(batch.lines))
        assert {i for i in range(len(batch)) if batch.texts[i].as_py() is None} == set(batch.bad)
        lines += batch.line_count
        yield batch


def batch_rows(batch: ItemBatch) -> list[Row]:
    kept = batch.kept.to_pylist()
    return [{**kept[i], "body": batch.texts[i].as_py()} for i in range(len(batch))]


def put(root: str, name: str, data: bytes) -> None:
    open_store(root).put(name, data)


texts = st.text(st.sampled_from('ab ,"\n\r\t|é界🙂{}\\\u2028\x00'), max_size=30) | st.text(max_size=20)
rows_strategy = st.lists(
    st.fixed_dictionaries({"key": texts.filter(lambda t: "\x00" not in t), "body": texts, "n": st.integers(-9, 9)}),
    min_size=1,
    max_size=30,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(rows_strategy, min_size=1, max_size=2),
    target_bytes=st.integers(1, 400),
    newline=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
)
def test_every_row_is_read_once_in_order(
    near_root: str, format: str, files: list[list[Row]], target_bytes: int, newline: str, final: bool
) -> None:
    run = uuid.uuid4().hex
    places = []
    for i, rows in enumerate(files):
        places.append(f"{near_root}/{run}-{i}.{format}")
        put(near_root, f"{run}-{i}.{format}", WRITERS[format](rows, newline, final))
    found = read_all(discover(places, FIELDS), target_bytes)
    assert found == [
        {**row, "body": row["body"] if str(row["body"]).strip() else None} for rows in files for row in rows
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.text(st.sampled_from("ab é界\t\x00"), max_size=12), min_size=1, max_size=40),
    target_bytes=st.integers(1, 60),
    newline=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
)
def test_text_lines_are_read_once_with_their_line_numbers(
    near_root: str, lines: list[str], target_bytes: int, newline: str, final: bool
) -> None:
    lines = [*lines, "end"]
    name = f"{uuid.uuid4().hex}.txt"
    put(near_root, name, (newline.join(lines) + (newline if final else "")).encode())
    fields = Fields(text="line")
    source = open_source(discover([f"{near_root}/{name}"], fields), fields)
    found, before = [], 0
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            found += [(before, line, text) for line, text in zip(batch.lines, batch.texts.to_pylist(), strict=True)]
        before += sum(batch.line_count for batch in source.read(shard))
    assert before == len(lines)
    assert [(at + line, text) for at, line, text in found] == [(i, t) for i, t in enumerate(lines, 1) if t.strip()]


def test_line_numbers_of_quoted_records_are_those_of_the_file(source_root: str) -> None:
    rows = [{"key": str(i), "body": 'a\nb, "c"\n' * (i % 3) + "d", "n": i} for i in range(300)]
    data = as_csv(rows, "\n", True)
    put(source_root, "q.csv", data)
    source = open_source(discover([f"{source_root}/q.csv"], FIELDS), FIELDS)
    shards = source.shards(1000)
    assert len(shards) > 5
    before, found = 0, []
    for shard in shards:
        batches = list(source.read(shard))
        found += [before + line for batch in batches for line in batch.lines]
        before += sum(batch.line_count for batch in batches)
    assert before == data.count(b"\n")
    starts = [data[: data.index(f"\n{i},".encode()) + 1].count(b"\n") + 1 for i in range(300)]
    assert found == starts


def test_a_folder_is_read_in_the_order_of_its_names(source_root: str, format: str) -> None:
    for name in ("b", "a", "c"):
        put(source_root, f"{name}.{format}", WRITERS[format]([{"key": name, "body": name, "n": 1}], "\n", True))
    put(source_root, "notes.md", b"# not data")
    for place in (source_root, f"{source_root}/", f"{source_root}/*.{format}", f"{source_root}/[abc].*"):
        stat = discover([place], FIELDS)
        assert [f.place.rpartition("/")[2] for f in stat.files] == [f"{n}.{format}" for n in "abc"]
        assert [row["key"] for row in read_all(stat, 10)] == ["a", "b", "c"]


def test_many_rows_come_in_bounded_batches(source_root: str, format: str) -> None:
    rows = [{"key": str(i), "body": f"text {i}" + "x" * (i % 50), "n": i} for i in range(3000)]
    put(source_root, f"many.{format}", WRITERS[format](rows, "\n", True))
    stat = discover([f"{source_root}/many.{format}"], FIELDS)
    assert read_all(stat, 20_000) == rows
    assert read_all(stat, 10**9) == rows
