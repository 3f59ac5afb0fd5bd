"""Columns as JSON are what Python writes value by value, whatever they hold."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.core.errors import UsageError
from shardmill.core.jsonlines import encode_json
from shardmill.results.files import json_text
from shardmill.results.files.json_text import json_texts
from shardmill.results.files.jsonl import open_jsonl
from tests.support.results import plain

TEXTS = st.text(max_size=8)
DECIMALS = st.decimals(-(10**9), 10**9, places=4)
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.dictionary(pa.int8(), pa.string()): TEXTS,
    pa.binary(): st.binary(max_size=8),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.timezones()),
    pa.decimal128(20, 4): DECIMALS,
    pa.map_(pa.string(), pa.int32()): st.lists(st.tuples(TEXTS, st.integers(0, 9)), max_size=3),
}


def _nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(TEXTS, kinds, max_size=3)
    return st.one_of(
        kinds.map(pa.list_),
        kinds.map(pa.large_list),
        st.builds(pa.list_, kinds, st.integers(1, 3)),
        fields.map(lambda of: pa.struct([pa.field(name, kind) for name, kind in of.items()])),
    )


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        value: st.SearchStrategy[Any] = st.fixed_dictionaries({field.name: _values(field.type) for field in kind})
    elif kind in LEAVES:
        value = LEAVES[kind]
    elif pa.types.is_fixed_size_list(kind):
        value = st.lists(_values(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    else:
        value = st.lists(_values(kind.value_type), max_size=4)
    return st.none() | value


@st.composite
def columns(draw: st.DrawFn, rows: int = 5) -> pa.Array:
    """A column of any type, which may be a slice of a longer one."""
    kind = draw(st.recursive(st.sampled_from([*LEAVES]), _nested, max_leaves=4))
    cut = draw(st.integers(0, 2))
    return pa.array(draw(st.lists(_values(kind), min_size=cut + rows, max_size=cut + rows)), kind)[cut:]


def _plain(column: pa.Array) -> list[Any]:
    return [plain(value, column.type) for value in column.to_pylist()]


def _has_floats(kind: pa.DataType) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_floating(kind) or any(map(_has_floats, inner))


@given(columns())
def test_values_of_every_type(column: pa.Array) -> None:
    texts = json_texts(column)
    assert texts.type == pa.large_string()
    read = [None if text is None else json.loads(text) for text in texts.to_pylist()]
    # Its text tells 0.0 from -0.0 and from 0.
    assert repr(read) == repr(_plain(column))
    assert all(
        text is None for text, missing in zip(texts.to_pylist(), column.is_null().to_pylist(), strict=True) if missing
    )
    if not _has_floats(column.type):
        assert texts.to_pylist() == [None if v is None else encode_json(v).decode() for v in _plain(column)]


@given(st.dictionaries(TEXTS, columns(), min_size=1, max_size=3), st.booleans())
def test_lines_of_every_type(of: dict[str, pa.Array], one_by_one: bool) -> None:
    batch = pa.RecordBatch.from_arrays([*of.values()], names=[*of])
    file = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        if one_by_one:
            patch.setattr(json_text, "_BYTES_AT_ONCE", 1)
        with open_jsonl(file, batch.schema) as write:
            write(batch)
            write(batch.slice(2, 1))
    rows = [dict(zip(of, values, strict=True)) for values in zip(*map(_plain, of.values()), strict=True)]
    lines = file.getvalue().split(b"\n")
    assert repr([json.loads(line) for line in lines[:-1]]) == repr([*rows, rows[2]])
    assert lines[-1] == b""


@pytest.mark.parametrize("width", [16, 32, 64])
def test_numbers_keep_their_bits(width: int) -> None:
    """Every float16, and float32 and float64 with all signs and exponents; one float32 is rounded twice."""
    bits = np.random.default_rng(7).integers(0, 2**64, 100_000, np.uint64) >> np.uint64(64 - width)
    if width == 16:
        bits = np.arange(2**16)
    elif width == 32:
        bits[:2] = 0x15AE43FD, 0x95AE43FD
    numbers = bits.astype(f"u{width // 8}").view(f"f{width // 8}")
    numbers = numbers[np.isfinite(numbers)]
    texts = json_texts(pa.array(numbers)).to_pylist()
    read = np.array([float(text) for text in texts]).astype(numbers.dtype)
    assert np.array_equal(read.view(f"u{width // 8}"), numbers.view(f"u{width // 8}"))
    assert all(isinstance(json.loads(text), float) for text in texts)


def test_rows_of_several_pieces_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_BYTES_AT_ONCE", 1000)
    batch = pa.record_batch({"row": range(5_000)})
    file = io.BytesIO()
    with open_jsonl(file, batch.schema) as write:
        write(batch)
    assert file.getvalue() == b"".join(b'{"row":%d}\n' % row for row in range(5_000))


def test_what_json_has_no_text_for() -> None:
    with pytest.raises(UsageError, match="no type for timedelta"):
        json_texts(pa.array([1], pa.duration("us")))
