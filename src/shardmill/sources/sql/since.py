"""Rows of a query that tell when they changed: those that are older than a time are known again without being read.

Design: docs/design/telling-sources.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SourceError
from shardmill.core.template import kind_of
from shardmill.plan import KeyValue
from shardmill.sources.base import ItemBatch
from shardmill.sources.sql.base import QuerySession, Rows
from shardmill.sources.sql.query import MARK, column, select

_DIGEST_BYTES = 16


def find_newest(session: QuerySession, query: str, name: str) -> str:
    """The last value of the column that tells a row's change, as JSON; empty if all are null."""
    rest = f" WHERE {column(name)} IS NOT NULL ORDER BY {column(name)} DESC LIMIT 1"
    found = next(
        (row for rows in session.rows(select(session.key_expression(name), query, rest)) for row in rows), None
    )
    if found is None:
        return ""
    if not isinstance(found[0], int | float | str):
        raise SourceError(
            f"{name!r} in the query holds {kind_of(found[0])}, which this database does not give as text.",
            hint=f"Cast it in the query: CAST({name} AS VARCHAR) AS {name}.",
        )
    return json.dumps(found[0])


def older(name: str, wanted: Sequence[str]) -> str:
    """The condition for rows that changed before a value, which follows, and whose `wanted` columns have one.

    A row that changed at the newest time may change at the same time again, so it is none of them.
    """
    return " AND ".join([f"{column(name)} < {MARK}", *(f"{column(each)} IS NOT NULL" for each in wanted)])


def value_of(newest: str) -> KeyValue:
    found: KeyValue = json.loads(newest)
    return found


def digest_marks(rows: Rows, ids: Sequence[int], mark: int) -> pa.Array:
    """A digest of what tells a row's change: its id, at these places, and its mark. Null for a row without a mark."""
    found = [None if row[mark] is None else _digest([row[i] for i in ids], row[mark]) for row in rows]
    return pa.array(found, pa.binary(_DIGEST_BYTES))


def _digest(id: list[Any], mark: Any) -> bytes:
    return hashlib.sha256(json.dumps([id, mark], default=str).encode()).digest()[:_DIGEST_BYTES]


def spread(batch: ItemBatch, is_read: NDArray[np.bool_], rows_done: int, weight: float) -> ItemBatch:
    """The items of a batch among those that were left out, which follow `rows_done` items of their shard."""
    rows, places = len(is_read), np.flatnonzero(is_read)
    where = np.full(rows, -1)
    where[places] = np.arange(len(places))
    taken = pa.array(where, mask=where < 0)
    return replace(
        batch,
        texts=batch.texts.take(taken),
        kept=batch.kept.take(taken),
        lines=range(rows_done + 1, rows_done + rows + 1),
        line_count=rows,
        bad={int(places[row]): reason for row, reason in batch.bad.items()},
        size_bytes=int(weight * rows),
        unread=frozenset(int(places[row]) for row in batch.unread),
        left_out=~is_read,
    )
