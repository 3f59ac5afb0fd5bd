"""Rows as files of every format, in every kind of store, and rows read back."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from shardmill.core.ranges import cover
from shardmill.sources import Fields, ItemBatch, Shard, SourceStat, open_source
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
        assert len(ranges) == 1 or all(s.files == 1 for s in shards if s.file == i)
        assert cover(ranges, min(ranges)[0], max(ranges)[1])
    return [row for shard in shards for batch in read_shard(source.read, shard) for row in batch_rows(batch)]


def read_shard(read: Callable[[Shard], Iterator[ItemBatch]], shard: Shard) -> Iterator[ItemBatch]:
    lines, last = 0, (-1, 0)
    for batch in read(shard):
        assert len(batch) == batch.kept.num_rows == len(batch.lines) <= 1024
        if shard.files == 1:
            assert not batch.files
            assert all(lines < line <= lines + batch.line_count for line in batch.lines)
        places = list(zip(batch.files or [0] * len(batch), batch.lines, strict=True))
        assert places == sorted(set(places))
        assert all(last < place < (shard.files, 0) for place in places)
        last = places[-1] if places else last
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
