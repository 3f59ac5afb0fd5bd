"""Indexes of a table for vectors, built after its rows are loaded: many times faster than row by row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardmill.core.errors import DatabaseLost, SpecError
from shardmill.postgres.connect import connect, explained, limit, load
from shardmill.postgres.definition import SEARCH
from shardmill.postgres.tables import lock_table, one, vector_schema
from shardmill.postgres.target import Target, quoted

if TYPE_CHECKING:
    import psycopg

Kind = Literal["hnsw", "ivfflat", "none"]
KINDS: tuple[Kind, ...] = ("hnsw", "ivfflat", "none")
Progress = Callable[[float, str], None]

_MOST_DIMS = {"vector": 2_000, "halfvec": 4_000}
_LEAST_MEMORY_MB, _MOST_MEMORY_MB = 64, 1_024
# Bytes per row that HNSW keeps besides the vector, with m = 16.
_GRAPH_BYTES = 400
# The server uses fewer if it has fewer; a server that is configured for none stays at none.
_PARALLEL = 7
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class TableIndex:
    """An existing index; `method` is gin, hnsw or ivfflat."""

    name: str
    column: str
    method: str
    bytes: int
    definition: str


def check_indexable(target: Target, kind: str) -> None:
    """Refuse, before the load, what cannot be indexed after it."""
    if kind not in KINDS:
        raise SpecError(f"--index {kind!r} is unknown.", hint=f"Use {', '.join(KINDS)}.")
    if not target.vector:
        return
    most = _MOST_DIMS[target.vector_type]
    if kind != "none" and target.dims > most:
        other = ", halfvec" if target.vector_type == "vector" and target.dims <= _MOST_DIMS["halfvec"] else ""
        raise SpecError(
            f"pgvector indexes {target.vector_type} up to {most:,} dimensions; the model makes {target.dims:,}.",
            hint=f"Use fewer with --dims (Matryoshka models){other}, or load without an index: --index none",
        )


_INDEXES = """
SELECT c.relname, a.attname, m.amname, pg_relation_size(c.oid), pg_get_indexdef(c.oid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(%s) AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1
  AND (a.attname, m.amname) IN ((%s, 'hnsw'), (%s, 'ivfflat'), (%s, 'gin'))
ORDER BY 2, 1
"""


def existing_indexes(connection: psycopg.Connection[Any], target: Target) -> list[TableIndex]:
    """The search indexes of a table."""
    with explained(connection):
        values = [target.name, target.vector, target.vector, SEARCH]
        return [TableIndex(*row) for row in connection.execute(_INDEXES, values)]


def offer(found: list[TableIndex], rows: int) -> str:
    """The question to ask before a load into a table that has rows and indexes; empty if it lacks either."""
    if not found or not rows:
        return ""
    named = " and ".join(f"{i.method} on {i.column} ({i.bytes / 1e6:,.1f} MB)" for i in found)
    return (
        f"The table has {rows:,} rows and indexes: {named}. Each new row updates them, which for many rows takes "
        "far longer than rebuilding them. Drop them now and rebuild them after the load?"
    )


def drop_indexes(connection: psycopg.Connection[Any], target: Target) -> list[TableIndex]:
    """Drop the indexes that `build` recreates; until then searches read the whole table."""
    found = existing_indexes(connection, target)
    with explained(connection, "Only the owner of a table may drop its indexes."), connection.transaction():
        limit(connection)
        for index in found:
            connection.execute(f"DROP INDEX {quoted(target.schema)}.{quoted(index.name)}")
    return found


def build(url: str, target: Target, kind: str = "hnsw", progress: Progress = lambda share, note: None) -> list[str]:
    """Build the missing indexes: gin on the words, `kind` on the vectors if there are any. Returns a line for each."""
    check_indexable(target, kind)
    wanted = [("gin", SEARCH)] if target.text else []
    wanted += [(kind, target.vector)] if kind != "none" and target.vector else []
    said = []
    with connect(url, autocommit=True) as builder, connect(url, autocommit=True) as watcher:
        for method, column in wanted:
            said.append(_build_one(builder, watcher, target, method, column, progress))
        with explained(builder):
            builder.execute(f"ANALYZE {target.name}")
    return [line for line in said if line]


def _build_one(
    builder: psycopg.Connection[Any],
    watcher: psycopg.Connection[Any],
    target: Target,
    method: str,
    column: str,
    progress: Progress,
) -> str:
    try:
        return _watched(builder, watcher, target, method, column, progress, _PARALLEL)
    except DatabaseLost as error:
        # Parallel builds keep the graph in /dev/shm, which is small in containers.
        if "shared memory" not in error.message:
            raise
    done = _watched(builder, watcher, target, method, column, progress, 0)
    return f"{done} (in one process: the server's /dev/shm is too small for more)"


def _watched(
    builder: psycopg.Connection[Any],
    watcher: psycopg.Connection[Any],
    target: Target,
    method: str,
    column: str,
    progress: Progress,
    parallel: int,
) -> str:
    hint = "Only the owner of a table may create indexes on it."
    with explained(builder, hint), builder.transaction():
        if one(builder, "SHOW max_parallel_maintenance_workers") == "0":
            parallel = 0
        limit(builder, statement_timeout="0", lock_timeout="0", max_parallel_maintenance_workers=str(parallel))
        lock_table(builder, target.name)
        if any((i.method, i.column) == (method, column) for i in existing_indexes(builder, target)):
            return ""
        rows = one(builder, f"SELECT count(*) FROM {target.name}")
        memory_mb = _memory_mb(target, rows)
        builder.execute("SELECT set_config('maintenance_work_mem', %s, true)", [f"{memory_mb}MB"])
        sql = create_statement(target, method, column, rows, vector_schema(builder) or "public")
        worker = one(builder, "SELECT pg_backend_pid()")
        with ThreadPoolExecutor(1) as pool:
            task = pool.submit(builder.execute, sql)
            try:
                _follow(task, watcher, worker, f"{method} on {column}", progress)
            except BaseException:
                builder.cancel()
                raise
            task.result()
    return f"{method} on {column}, {rows:,} rows"


def _follow(task: Future[Any], watcher: psycopg.Connection[Any], worker: int, label: str, progress: Progress) -> None:
    """Report the server's progress until it is done."""
    while not wait([task], timeout=_LOOK_EVERY_S).done:
        try:
            seen = watcher.execute(_HOW_FAR, [worker]).fetchone()
        except load().Error:
            continue  # The build does not depend on its progress being visible.
        if seen is not None:
            progress(float(seen[1] or 0.0), f"{label}: {seen[0]}")


_HOW_FAR = """
SELECT phase, coalesce(tuples_done::float / nullif(tuples_total, 0), blocks_done::float / nullif(blocks_total, 0))
FROM pg_stat_progress_create_index WHERE pid = %s
"""


def create_statement(target: Target, method: str, column: str, rows: int, schema: str = "public") -> str:
    """The CREATE INDEX statement; the server chooses the name."""
    if method == "gin":
        return f"CREATE INDEX ON {target.name} USING gin ({quoted(column)})"
    operators = f"{quoted(schema)}.{target.vector_type}_cosine_ops"
    lists = f" WITH (lists = {choose_lists(rows)})" if method == "ivfflat" else ""
    return f"CREATE INDEX ON {target.name} USING {method} ({quoted(column)} {operators}){lists}"


def choose_lists(rows: int) -> int:
    """The number of lists that pgvector recommends: rows / 1000, or the square root of the rows above a million.

    >>> choose_lists(500), choose_lists(100_000), choose_lists(4_000_000)
    (10, 100, 2000)
    """
    return max(10, rows // 1000) if rows <= 1_000_000 else int(rows**0.5)


def _memory_mb(target: Target, rows: int) -> int:
    each = target.dims * (4 if target.vector_type == "vector" else 2) + _GRAPH_BYTES
    return min(max(_LEAST_MEMORY_MB, int(1.2 * rows * each / 2**20)), _MOST_MEMORY_MB)
