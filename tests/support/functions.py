"""Functions of users for tests of `apply`: of every kind of batch, giving one row, several or none."""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any, ClassVar, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from shardmill import task


class Piece(TypedDict):
    piece: str
    letters: int


class Letters(TypedDict):
    letters: int


def split(rows: list[dict[str, Any]]) -> list[list[Piece] | None]:
    """A row per word of a text with an even number of words, none for others."""
    return [pieces(row["text"]) if len(row["text"].split()) % 2 == 0 else None for row in rows]


def pieces(text: str) -> list[Piece]:
    return [{"piece": word, "letters": len(word)} for word in text.split()]


def measure(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"letters": len(row["text"]), "shout": row["text"].upper()} for row in rows]


def measure_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"letters": pc.utf8_length(batch["text"]), "shout": pc.utf8_upper(batch["text"])})


def keep_long(table: pa.Table) -> pa.Table:
    return table.filter(pc.greater(pc.utf8_length(table["text"]), 20)).select(["row", "text"])


def repeat_twice(table: pa.Table) -> pa.Table:
    """Rows out of the order of their items."""
    return pa.concat_tables([table, table]).select(["text", "row"])


@task(columns={"text": "string"})
def lose_some(table: pa.Table) -> pa.Table:
    return table.select(["text"]).slice(1)


@task(columns={"text": "string"})
def too_few(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"text": row["text"]} for row in rows[1:]]


def change_its_mind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Other columns for some rows, none of them among the first."""
    return [{"other" if row["id"] in ("k90", "k91") else "letters": len(row["text"])} for row in rows]


def fail_at_ninety(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if any(row["id"] == "k90" for row in rows):
        raise LookupError("no luck")
    return [{"letters": len(row["text"])} for row in rows]


def exit_at_ninety(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if any(row["id"] == "k90" for row in rows):
        sys.exit(0)
    return [{"letters": len(row["text"])} for row in rows]


def hold_few(rows: list[dict[str, Any]]) -> list[Letters]:
    """Has memory for four rows at a time, and for none of `k90`."""
    if len(rows) > 4 or any(row["id"] == "k90" for row in rows):
        raise MemoryError
    return [{"letters": len(row["text"])} for row in rows]


def vanish_at_two(rows: list[dict[str, Any]]) -> list[Letters]:
    if any(row["id"] == "k2" for row in rows):
        os._exit(0)
    return [{"letters": len(row["text"])} for row in rows]


def frame_of_dicts(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({"letters": [len(row["text"]) for row in rows]})


def dicts_of_batch(batch: pa.RecordBatch) -> list[dict[str, int]]:
    return [{"letters": len(text)} for text in batch["text"].to_pylist()]


def nothing(rows: list[dict[str, Any]]) -> list[Piece | None]:
    return [None] * len(rows)


class Numbered:
    """Made once per worker; `made` counts how often."""

    made = 0
    columns: ClassVar[dict[str, Any]] = {"times": "int64", "device": "string", "text": pa.string()}

    def __init__(self, times: int, device: str) -> None:
        Numbered.made += 1
        self._times, self._device = times, device

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"times": self._times * len(row["text"]), "device": self._device, "text": row["text"]} for row in rows]


@task(
    columns={
        "tags": pa.list_(pa.string()),
        "about": pa.struct([("letters", pa.int64()), ('größe, "cm"', pa.list_(pa.float64()))]),
        "raw": pa.binary(),
        "when": pa.timestamp("us", "UTC"),
        "share": pa.float64(),
    }
)
def describe(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nested values, bytes, times, and numbers that JSON does not have."""
    return [_describe(int(row["id"][1:]), row["text"]) for row in rows]


def _describe(number: int, text: str) -> dict[str, Any]:
    if number % 5 == 4:
        return dict.fromkeys(("tags", "about", "raw", "when", "share"))
    return {
        "tags": ["ü", 'a "quoted", one', None][: number % 4],
        "about": {"letters": len(text), 'größe, "cm"': [number / 3, None]},
        "raw": bytes([0, 255, number]),
        "when": datetime.datetime(2026, 1, 1, 12, 30, number % 60, 5, tzinfo=datetime.UTC),
        "share": float("nan") if number % 7 == 3 else number / 7,
    }
