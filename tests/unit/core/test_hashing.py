"""A row has the same hash wherever it stands: in any slice, and after it was written to Parquet and read again."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.hashing import hash_column, hash_inputs
from shardmill.models.ragged import Ragged

DAY = datetime.datetime(2026, 11, 17, 12, 30, 1, 5)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a", "", None, "x" * 300, "\0"]),
    "large_string": (pa.large_string(), ["a", "", None, "x" * 300, "\0"]),
    "binary": (pa.binary(), [b"a", b"", None, b"x" * 300, b"\0"]),
    "int8": (pa.int8(), [1, 0, None, -1, 7]),
    "uint64": (pa.uint64(), [1, 0, None, 2**64 - 1, 7]),
    "bool": (pa.bool_(), [True, False, None]),
    "float16": (pa.float16(), [np.float16(v) for v in (1.0, 0.0, 2.0, -1.5, 7.0)]),
    "float64": (pa.float64(), [1.0, 0.0, None, float("nan"), 7.5]),
    "date": (pa.date32(), [DAY.date(), None, DAY.date() - datetime.timedelta(1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [DAY, None, DAY + datetime.timedelta(1)]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]),
    "vector": (pa.list_(pa.float32(), 3), [[1, 2, 3], [3, 2, 1], [0, 0, 0]]),
    "list": (pa.list_(pa.float32()), [[1, 2, 3], [], None, [1.0], [3, 2]]),
    "vector of integers": (pa.list_(pa.int32(), 3), [[1, 2, 3], None, [3, 2, 1], [1, None, 3], [0, 0, 0]]),
    "list with holes": (pa.list_(pa.int64()), [[1, 2, 3], [1, None], None, [], [None], [4]]),
    "large list": (pa.large_list(pa.float64()), [[1, 2, 3], [1, None], None, [], [4]]),
    "list of texts": (pa.list_(pa.string()), [["a"], [], None, ["a", None]]),
    "struct": (pa.struct({"a": pa.int64(), "b": pa.string()}), [{"a": 1, "b": "x"}, None, {"a": 1, "b": None}]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None, "c"]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_has_one_hash(name: str) -> None:
    kind, values = COLUMNS[name]
    column = pa.array(values, pa.string()).cast(kind) if name == "dictionary" else pa.array(values, kind)
    whole = hash_column(column)
    assert len({*whole.tolist()}) == len(values)
    for start in range(len(values)):
        assert hash_column(column.slice(start)).tolist() == whole[start:].tolist()
        assert hash_column(column.slice(start, 1)).tolist() == [whole[start]]
        assert hash_column(column.take(pa.array([start]))).tolist() == [whole[start]]
    file = io.BytesIO()
    pq.write_table(pa.table({"column": column}), file)
    again = pq.read_table(file).column("column").combine_chunks()
    assert hash_column(again).tolist() == whole.tolist()


@pytest.mark.parametrize(
    "inputs",
    [
        ["a", "b", None],
        [("a", 1), ("a", 2)],
        [np.arange(3), np.arange(1, 4)],
        np.arange(6).reshape(3, 2),
        [{"text": "a"}, {"text": "b"}],
        pa.record_batch({"a": [1, 2, 3]}),
    ],
)
def test_inputs_of_a_task_are_told_apart(inputs: Any) -> None:
    hashes = hash_inputs(inputs)
    assert len({*hashes.tolist()}) == len(inputs)
    assert hash_inputs(inputs).tolist() == hashes.tolist()


def test_rows_of_tokens_have_one_hash_however_they_are_held() -> None:
    draw = np.random.default_rng(0)
    lengths = [0, 1, 5, 40_000, 3, 0, *draw.integers(0, 300, 500).tolist()]
    rows = [draw.integers(0, 30_000, length).astype(np.int32) for length in lengths]
    starts = np.cumsum([0, *lengths])
    whole = hash_inputs(Ragged(np.concatenate(rows), starts)).tolist()
    assert whole == hash_inputs(rows).tolist()
    assert whole == [hash_inputs([row])[0] for row in rows]
    assert whole[:3] == hash_inputs([rows[0].astype(np.int64), rows[1], rows[2]]).tolist()
    assert whole[:2] == hash_inputs([*rows[:2], "a text"]).tolist()[:2]
    assert len({*whole}) > len(rows) - 10


def test_long_texts_are_told_apart_in_every_byte() -> None:
    texts = ["x" * length for length in (255, 256, 257, 300_000)]
    texts += [f"{'x' * at}y{'x' * (299 - at)}" for at in range(300)]
    texts += [f"{'x' * at}yz{'x' * (298 - at)}" for at in range(299)]
    texts += [f"{'x' * at}zy{'x' * (298 - at)}" for at in range(299)]
    assert len({*hash_column(pa.array(texts)).tolist()}) == len(texts)
