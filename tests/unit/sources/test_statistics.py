"""Row groups of Parquet that a condition passes by: rows for which it holds are never among them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.core.where.evaluation import holds
from shardmill.core.where.parsing import parse_condition
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.statistics import GroupFilter

_NAN = float("nan")
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.none() | st.integers(-3, 3),
    "f": st.none() | st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, _NAN, float("inf"), float("-inf")]),
    "s": st.none() | st.text("ab\U0001f600", max_size=2),
}
_SCHEMA = pa.schema([("i", pa.int32()), ("f", pa.float64()), ("s", pa.string())])
_LITERALS = {
    "i": st.integers(-4, 4).map(str) | st.sampled_from(["0.5", "NULL"]),
    "f": st.sampled_from(["-1", "0", "0.5", "2.5", "NULL"]),
    "s": st.text("ab", max_size=2).map(lambda text: f"'{text}'") | st.just("NULL"),
}


@st.composite
def _predicates(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from("ifs"))
    values = [draw(_LITERALS[name]) for _ in range(2)]
    sign = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
    return draw(
        st.sampled_from(
            [
                f"{name} {sign} {values[0]}",
                f"{values[0]} {sign} {name}",
                f"{name} IS NULL",
                f"{name} IN ({', '.join(values)})",
                f"{name} BETWEEN {values[0]} AND {values[1]}",
            ]
        )
    )


_conditions = st.recursive(
    _predicates(),
    lambda inner: st.one_of(
        inner.map(lambda each: f"NOT ({each})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=4,
)
_groups = st.lists(st.lists(st.fixed_dictionaries(_VALUES), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(_conditions, _groups)
def test_a_group_that_is_passed_by_has_no_row_for_which_the_condition_holds(
    text: str, groups: list[list[dict[str, Any]]]
) -> None:
    file = io.BytesIO()
    with pq.ParquetWriter(file, _SCHEMA) as writer:
        for rows in groups:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA), row_group_size=10)
    opened = pq.ParquetFile(file)
    found = GroupFilter(text, {field.name: str(field.type) for field in _SCHEMA}, opened)
    for number in range(opened.num_row_groups):
        rows = opened.read_row_group(number).to_batches()[0]
        if not found.can_hold(number):
            assert True not in holds(parse_condition(text), rows).to_pylist()


def test_what_is_passed_by_and_what_is_read_are_the_same_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a text is not UTF-8, which is null here, and where a text is missing."""
    values = pa.array([b"a", b"\xff", b"c", b"d", None, b"e", b"f", b"g"]).view(pa.string())
    columns = {"text": pa.array(["x", "y", None, "z"] * 2), "s": values, "n": pa.array([1, 2, 3, 4, 5, None, 7, 8])}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    for where in ("s = 'c'", "s IS NULL", "NOT s = 'a'", "n > 6", "n IS NULL", "n < 2 OR s = 'd'", "NOT n <= 4"):
        fields = Fields("text", wanted=("s", "n"), where=where)
        stat = discover([str(tmp_path / "a.parquet")], fields)

        def read() -> str:
            source = open_source(stat, fields)  # noqa: B023
            found = [batch for shard in source.shards(1 << 30) for batch in source.read(shard)]
            taken = [bool(each) for batch in found for each in batch.taken]  # type: ignore[union-attr]
            texts = [text for batch in found for text in batch.texts.filter(pa.array(batch.taken)).to_pylist()]
            lines = sum(batch.line_count for batch in found)
            return json.dumps([taken, texts, [[*batch.bad.values()] for batch in found if batch.bad], lines])

        passed_by = read()
        with monkeypatch.context() as patched:
            patched.setattr(GroupFilter, "can_hold", lambda self, group: True)
            assert read() == passed_by, where
