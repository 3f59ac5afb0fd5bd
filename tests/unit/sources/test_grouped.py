"""Rows that share a key are one item: sorted in bounded memory, in source order, none lost."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.errors import SourceError
from shardmill.sources import Fields, ItemBatch, count_lines, discover, open_source, sort_groups
from shardmill.sources.sorting import ORDER, ExternalSort

FIELDS = Fields(text="text", group_by="topic")


def read(source: Path, fields: Fields = FIELDS, *, most: int = 1 << 20, target: int = 1) -> list[dict[str, Any]]:
    """All groups, read by as many shards as there can be."""
    stat = sort_groups(discover([str(source)], fields), fields, most)
    opened = open_source(stat, fields, most)
    shards = opened.shards(target)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    batches = [batch for shard in shards for batch in opened.read(shard)]
    assert sum(batch.line_count for batch in batches) == sum(count_lines(stat, file) or 0 for file in stat.files)
    return [row for batch in batches for row in rows_of(batch)]


def rows_of(batch: ItemBatch) -> list[dict[str, Any]]:
    texts = batch.texts.to_pylist()
    assert {i for i, text in enumerate(texts) if text is None} == set(batch.bad)
    return [{**kept, "text": text} for kept, text in zip(batch.kept.to_pylist(), texts, strict=True)]


def test_groups_are_in_the_order_of_their_keys_and_texts_in_that_of_the_source(
    write_jsonl: Callable[..., Path],
) -> None:
    rows = [("b", "1"), ("a", "2"), ("b", "3"), (None, "4"), ("é", "5"), ("b", "6"), (None, "7")]
    found = read(write_jsonl([{"topic": topic, "text": text} for topic, text in rows]))
    assert [(row["topic"], row["text"], row["items"]) for row in found] == [
        ("a", "2", 1),
        ("b", "1\n\n3\n\n6", 3),
        ("é", "5", 1),
        (None, "4\n\n7", 2),
    ]


def test_rows_without_a_text_are_counted_and_a_group_of_them_is_set_aside(write_jsonl: Callable[..., Path]) -> None:
    rows = [{"topic": "a", "text": None}, {"topic": "a", "text": "x"}, {"topic": "b", "text": " "}, "{broken", ""]
    source = write_jsonl(rows)
    stat = sort_groups(discover([str(source)], FIELDS), FIELDS)
    (batch,) = open_source(stat, FIELDS).read(open_source(stat, FIELDS).shards(1 << 20)[0])
    assert batch.kept.to_pylist() == [
        {"topic": "a", "items": 1, "left_out": 1},
        {"topic": "b", "items": 0, "left_out": 1},
        {"topic": None, "items": 0, "left_out": 1},
    ]
    assert set(batch.bad) == {1, 2}
    assert "none of the 1 rows of this group" in batch.bad[1]
    read(source)


@pytest.mark.parametrize("packed", [False, True])
def test_skewed_groups_in_many_files(tmp_path: Path, packed: bool) -> None:
    choose = random.Random(3)
    rows = [{"topic": choose.choice([7] * 30 + list(range(40))), "text": f"text {i}"} for i in range(3_000)]
    for part in range(3):
        lines = "\n".join(json.dumps(row) + "\n" * (i % 50 == 0) for i, row in enumerate(rows[part::3])).encode()
        (tmp_path / f"{part}.jsonl{'.gz' * packed}").write_bytes(gzip.compress(lines) if packed else lines)
    expected: dict[int, list[str]] = {}
    for part in range(3):
        for row in rows[part::3]:
            expected.setdefault(row["topic"], []).append(row["text"])
    found = read(tmp_path)
    assert [row["topic"] for row in found] == sorted(expected)
    assert {row["topic"]: row["text"].split("\n\n") for row in found} == expected


def test_a_group_larger_than_an_item_is_several_items_and_their_counts_add_up(
    tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    rows = [{"topic": "big", "text": f"{i:04d}" * 25} for i in range(50)] + [{"topic": "small", "text": "x"}]
    found = read(write_jsonl(rows), most=1_100)
    pieces = [row for row in found if row["topic"] == "big"]
    assert len(pieces) == 5
    assert all(len(row["text"]) <= 1_100 for row in pieces)
    assert "\n\n".join(row["text"] for row in pieces) == "\n\n".join(row["text"] for row in rows[:50])
    counted = replace(FIELDS, keep=("items", "left_out"))
    again = read(write_jsonl([*found, {"topic": "big", "text": None, "items": 9, "left_out": 1}]), counted)
    assert [(row["topic"], row["items"], row["left_out"]) for row in again] == [("big", 50, 10), ("small", 1, 0)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (replace(FIELDS, keep=("other",)), "the column 'other'"),
        (replace(FIELDS, group_by="items"), "'items'"),
        (replace(FIELDS, group_by="no"), "no"),
    ],
)
def test_what_a_group_cannot_have_is_refused(write_jsonl: Callable[..., Path], fields: Fields, said: str) -> None:
    source = write_jsonl([{"topic": "a", "text": "x", "other": 1, "items": 1}])
    with pytest.raises(SourceError, match=said):
        discover([str(source)], fields)


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64(), pa.bool_()])
@pytest.mark.parametrize(("held_bytes", "merged_at_once"), [(1 << 30, 8), (2_000, 8), (200, 2)])
def test_rows_come_out_in_order_however_little_is_held(kind: pa.DataType, held_bytes: int, merged_at_once: int) -> None:
    choose = random.Random(5)
    keys = [choose.choice([None, *range(30)]) for _ in range(600)]
    values = pa.array([None if k is None else k % 2 == 1 if kind == pa.bool_() else k for k in keys])
    rows = pa.record_batch([values.cast(kind), pa.array(range(600))], names=["key", "number"])
    with ExternalSort("key", held_bytes=held_bytes, merged_at_once=merged_at_once) as sorting:
        for at in range(0, 600, 37):
            sorting.add(rows.slice(at, 37))
        found = [row for batch in sorting.drain() for row in batch.to_pylist()]
        folder = Path(sorting._folder.name)
    plain = rows.to_pylist()
    expected = sorted(
        plain, key=lambda row: (row["key"] is None, row["key"] or 0 if kind != pa.string() else row["key"] or "")
    )
    assert [{k: v for k, v in row.items() if k != ORDER} for row in found] == expected
    assert not folder.exists()


def test_an_empty_sort_has_no_rows() -> None:
    with ExternalSort("key") as sorting:
        assert list(sorting.drain()) == []
