"""Checks of a table that need only SQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import DatabaseError
from shardmill.postgres.connect import explained, limit
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.indexes import existing_indexes
from shardmill.postgres.search import distances, settings
from shardmill.postgres.tables import check, one, vector_schema
from shardmill.postgres.target import Target, all_null, quoted

if TYPE_CHECKING:
    import psycopg

# An index that misses more than one answer in twenty fails the check.
_LEAST_RECALL = 0.95
# Exact search of a large table is slow: the check stops after this time.
_RECALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Totals from one pass over a table; `results` counts rows that the task gave one. Norms are those of vectors."""

    rows: int
    results: int
    digests: int
    not_finite: int = 0
    least_norm: float = 0.0
    most_norm: float = 0.0


def look(connection: psycopg.Connection[Any], target: Target) -> Seen:
    """Count rows, results and digests, and measure the vectors' norms."""
    if not target.vector:
        empty = all_null(target.results)
        with explained(connection):
            counts = connection.execute(
                f"SELECT count(*), count(*) FILTER (WHERE NOT {empty}), count({quoted(DIGEST)}) FROM {target.name}"
            ).fetchone()
        assert counts is not None
        return Seen(*counts)
    schema = quoted(vector_schema(connection) or "public")
    function = "vector_norm" if target.vector_type == "vector" else "l2_norm"
    with explained(connection):
        row = connection.execute(
            f"SELECT count(*), count({quoted(target.vector)}), count({quoted(DIGEST)}),"
            " count(*) FILTER (WHERE NOT norm < 'infinity'), coalesce(min(norm), 0), coalesce(max(norm), 0)"
            f" FROM (SELECT *, {schema}.{function}({quoted(target.vector)}) AS norm FROM {target.name}) t"
        ).fetchone()
    assert row is not None
    return Seen(*row)


def fits(connection: psycopg.Connection[Any], target: Target) -> tuple[bool, str]:
    """Whether the table still has the columns, the dimension and the key that it was loaded with."""
    try:
        check(connection, target)
    except DatabaseError as error:
        return False, error.message
    key = ", ".join(target.key) or "none"
    vector = f"{target.vector_type}({target.dims})" if target.vector else "no vector"
    return True, f"{len(target.columns)} columns, {vector}, key {key}"


def loaded(connection: psycopg.Connection[Any], target: Target, rows: int) -> tuple[bool, str]:
    """Compare the batch ledger with the rows. Rows can be loaded twice or deleted: only too few records are a fault."""
    if one(connection, "SELECT to_regclass('shardmill.batches')") is None:
        return True, "this database has no batch ledger"
    with explained(connection):
        found = connection.execute(
            "SELECT count(DISTINCT plan), count(*), coalesce(sum(rows), 0) FROM shardmill.batches"
            " WHERE table_schema = %s AND table_name = %s",
            [target.schema, target.table],
        ).fetchone()
    assert found is not None
    loads, batches, total = found
    seen = f"{int(total):,} rows in {batches:,} batches of {loads:,} loads; the table has {rows:,}"
    return bool(total >= rows) or not batches, seen


def recall(connection: psycopg.Connection[Any], target: Target, sample: int, k: int = 10) -> tuple[bool, str] | None:
    """The share of the true `k` nearest that the index finds, for rows of the table itself; None without an index."""
    index = next((i for i in existing_indexes(connection, target) if i.column == target.vector), None)
    if index is None:
        return None
    began, found, wanted, asked = time.monotonic(), 0, 0, 0
    with explained(connection):
        local = settings(connection, target, k)
        for vector in _sample_vectors(connection, target, sample):
            limit(connection, enable_indexscan="off", **local)
            truth = distances(connection, target, vector, k + 1)[1:]
            limit(connection, enable_indexscan="on", enable_seqscan="off", **local)
            by_index = distances(connection, target, vector, k + 1)[1:]
            limit(connection, enable_seqscan="on")
            # Compared by distance, not by row: equal texts have equal vectors.
            found += sum(d <= truth[-1] + 1e-6 for d in by_index) if truth else 0
            wanted += len(truth)
            asked += 1
            if time.monotonic() - began > _RECALL_S:
                break
    share = found / wanted if wanted else 1.0
    how = ", ".join(f"{name} {value}" for name, value in local.items() if "iterative" not in name)
    return share >= _LEAST_RECALL, f"{share:.3f} at {k} by {index.method} ({how}), {asked} rows vs. exact search"


def _sample_vectors(connection: psycopg.Connection[Any], target: Target, sample: int) -> list[str]:
    return [row[0] for row in sample_rows(connection, target, [f"{quoted(target.vector)}::text"], sample)]


def sample_rows(
    connection: psycopg.Connection[Any], target: Target, expressions: list[str], sample: int
) -> Iterator[tuple[Any, ...]]:
    """A random sample of the rows that have a result, fetched in blocks: it may be the whole table."""
    rows = one(connection, f"SELECT count(*) FROM {target.name}")
    # More than are asked for, as chance may give fewer and some rows have no result.
    share = min(100.0, 100.0 * (4 * sample + 100) / max(1, rows))
    with explained(connection), connection.cursor("sample") as cursor:
        yield from cursor.execute(
            f"SELECT {', '.join(expressions)} FROM {target.name} TABLESAMPLE BERNOULLI ({share})"
            f" WHERE NOT {all_null(target.results)} ORDER BY random() LIMIT {sample}"
        )
