"""Find the rows that a server refuses: some are known before sending, others are found by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.errors import DatabaseError
from shardmill.postgres.connect import first_line, load
from shardmill.postgres.session import about_rows
from shardmill.postgres.target import Conflict
from shardmill.postgres.upsert import Upsert

if TYPE_CHECKING:
    import psycopg


def find_refused(
    connection: psycopg.Connection[Any], upsert: Upsert, rows: pa.Table, some: NDArray[np.int64], found: dict[int, str]
) -> None:
    """Find by bisection which of `some` rows the server refuses, and why. The transaction must be rolled back."""
    wanted = once(rows.take(pa.array(some)), upsert.key, upsert.mode)
    try:
        with connection.transaction():
            connection.execute("DROP TABLE IF EXISTS pg_temp.shardmill_batch")
            upsert.write(connection, upsert.encode(wanted))
    except load().Error as error:
        if not about_rows(error):
            raise
        if len(some) == 1:
            found[int(some[0])] = f"PostgreSQL: {first_line(error)}"[:500]
            return
        for half in np.array_split(some, 2):
            find_refused(connection, upsert, rows, half, found)


def unfit(rows: pa.Table, key: Sequence[str]) -> dict[int, str]:
    """Rows that every server refuses, with the reason."""
    reasons: dict[int, str] = {}
    for name in rows.column_names:
        column = rows.column(name)
        if name in key and column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy()):
                reasons.setdefault(int(row), f"{name!r} is null but part of the key")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            for row in np.flatnonzero(pc.match_substring(column, "\0").fill_null(False).to_numpy()):
                reasons.setdefault(int(row), f"{name!r} contains a NUL character, which PostgreSQL cannot store")
    return reasons


def once(rows: pa.Table, key: Sequence[str], mode: Conflict) -> pa.Table:
    """Keep one row per key: the last in mode update, the first in mode skip."""
    keys = list(zip(*(rows.column(n).to_pylist() for n in key), strict=True))
    if len(set(keys)) == len(keys):
        return rows
    if mode == "fail":
        seen: set[tuple[Any, ...]] = set()
        twice = next(k for k in keys if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        said = ", ".join(f"{n} {v!r}" for n, v in zip(key, twice, strict=True))
        raise DatabaseError(
            f"The source has {said} twice, and --mode is fail.", hint="--mode update keeps the last, skip the first."
        ).without_resume()
    order = enumerate(keys) if mode == "update" else reversed(list(enumerate(keys)))
    kept = {values: row for row, values in order}
    return rows.take(pa.array(sorted(kept.values())))
