"""Conditions over Arrow batches, compared with SQLite, and what SQLite has no word for."""

from __future__ import annotations

import datetime
import decimal
import sqlite3
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SourceError
from shardmill.core.where.evaluation import holds
from shardmill.core.where.parsing import parse_condition

_INTEGERS = st.one_of(st.integers(-3, 3), st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)]))
_DOUBLES = st.sampled_from([0.0, -0.5, 0.5, 1.0, 2.0, -3.0, 1e18, 9007199254740992.0, 1e300])
_TEXTS = st.text("aB%_\\ é\n", max_size=3)
_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "i": _INTEGERS,
    "j": st.integers(-3, 3),
    "f": _DOUBLES,
    "s": _TEXTS,
    "t": _TEXTS,
    "b": st.booleans(),
}
_TYPES = {"i": pa.int64(), "j": pa.int16(), "f": pa.float64(), "s": pa.string(), "t": pa.string(), "b": pa.bool_()}
_SIGNS = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_number = st.one_of(_INTEGERS.map(str), _DOUBLES.map(repr), st.just("NULL"))
_text = st.one_of(_TEXTS.map(_quoted), st.just("NULL"))
_numbers, _texts = st.sampled_from("ijf"), st.sampled_from(["s", '"t"'])


@st.composite
def _predicates(draw: st.DrawFn) -> str:
    column, value = draw(st.sampled_from([(_numbers, _number), (_texts, _text)]))
    name, negation = draw(column), draw(st.sampled_from(["", "NOT "]))
    values = [draw(value) for _ in range(3)]
    pattern = draw(st.text("aB%_é", max_size=4))
    return draw(
        st.sampled_from(
            [
                f"{name} {draw(_SIGNS)} {values[0]}",
                f"{values[0]} {draw(_SIGNS)} {name}",
                f"{name} {negation}BETWEEN {values[0]} AND {values[1]}",
                f"{name} {negation}IN ({', '.join(values)})",
                f"{name} IS {negation}NULL",
                f"{draw(_texts)} {negation}LIKE {_quoted(pattern)}",
                f"s {draw(_SIGNS)} t",
                f"j {draw(_SIGNS)} f",
                f"b = {draw(st.sampled_from(['TRUE', 'false']))}",
                "b",
                "NULL",
            ]
        )
    )


_conditions = st.recursive(
    _predicates(),
    lambda inner: st.one_of(
        inner.map(lambda each: f"NOT ({each})"),
        st.tuples(inner, st.sampled_from(["AND", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=5,
)
_rows = st.lists(st.fixed_dictionaries({n: st.none() | s for n, s in _COLUMNS.items()}), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(_conditions, _rows)
def test_conditions_mean_what_they_mean_to_sqlite(text: str, rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(_TYPES.items())))
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute(f"CREATE TABLE x (n, {', '.join(_COLUMNS)})")
        for number, row in enumerate(rows):
            database.execute("INSERT INTO x VALUES (?, ?, ?, ?, ?, ?, ?)", (number, *(row[name] for name in _COLUMNS)))
        expected = [truth for _, truth in database.execute(f"SELECT n, ({text}) FROM x ORDER BY n")]
    database.close()
    found = holds(parse_condition(text), batch).to_pylist()
    assert found == [None if truth is None else bool(truth) for truth in expected]


def _find(text: str, values: list[Any], kind: pa.DataType | None = None, *, spelled: bool = False) -> list[bool | None]:
    batch = pa.record_batch({"a": pa.array(values, kind)})
    found: list[bool | None] = holds(parse_condition(text), batch, spelled=spelled).to_pylist()
    return found


def test_nan_is_equal_to_nothing() -> None:
    values = [float("nan"), 1.0, None]
    assert _find("a > 0", values) == [False, True, None]
    assert _find("a != 1", values) == [True, False, None]
    assert _find("NOT a <= 1", values) == [True, False, None]


def test_numbers_are_compared_exactly() -> None:
    assert _find("a = 9007199254740993", [9007199254740992, 9007199254740993]) == [False, True]
    assert _find("a = 9007199254740993", [9007199254740992.0]) == [False]
    assert _find("a < 9007199254740993", [9007199254740992.0, 9007199254740994.0]) == [True, False]
    assert _find("a < 2.5", [2, 3, None], pa.uint8()) == [True, False, None]
    assert _find("a > -1", [0, 255], pa.uint8()) == [True, True]
    assert _find("a >= 256", [0, 255], pa.uint8()) == [False, False]
    assert _find("a != 18446744073709551616", [1, None], pa.uint64()) == [True, None]
    assert _find("a <= 0.1", [0.1], pa.float32()) == [False]
    assert _find("a = 1.10", [decimal.Decimal("1.1"), decimal.Decimal("1.2")]) == [True, False]


def test_dates_and_times_are_written_as_texts() -> None:
    day, when = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5)
    assert _find("a >= '2026-01-02'", [day, day.replace(year=2025)]) == [True, False]
    assert _find("a > '2026-01-02'", [when, None], pa.timestamp("ns")) == [True, None]
    zoned = pa.timestamp("us", "Europe/Berlin")
    assert _find("a = '2026-01-02T03:04:05'", [when.replace(tzinfo=datetime.UTC)], zoned) == [True]
    with pytest.raises(SourceError, match="'a' holds a date, and 'yesterday' is none"):
        _find("a = 'yesterday'", [day])


def test_numbers_of_a_csv_are_texts() -> None:
    values = ["2", " 2.0 ", "+3", "", "n/a", None, "9007199254740993", "1e3"]
    assert _find("a <= 2", values, spelled=True) == [True, True, False, None, None, None, False, False]
    assert _find("a = 9007199254740993", values, spelled=True)[6] is True
    assert _find("a = '2'", values, spelled=True)[:2] == [True, False]


def test_texts_in_any_encoding_of_arrow_are_texts() -> None:
    words = pa.array(["x", None, "y"])
    for column in (words, words.dictionary_encode(), words.cast(pa.large_string()), words.cast(pa.string_view())):
        assert holds(parse_condition("a LIKE 'x'"), pa.record_batch({"a": column})).to_pylist() == [True, None, False]


@pytest.mark.parametrize(
    ("text", "values", "wrong"),
    [
        ("a <= 2", ["x"], "--where: 'a' holds text; 2 is a number"),
        ("a = 'x'", [1], "--where: 'a' holds a number; 'x' is text"),
        ("a = true", [1], "'a' holds a number; true is true or false"),
        ("a LIKE 'x'", [1], "LIKE compares texts, and 'a' holds a number"),
        ("a", ["x"], "'a' is no condition: it holds text"),
        ("a = 1", [[1]], "cannot be compared"),
        ("1 = 'x'", [1], "1 and 'x' cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_refused(text: str, values: list[Any], wrong: str) -> None:
    with pytest.raises(SourceError, match=wrong):
        _find(text, values)
