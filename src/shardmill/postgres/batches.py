"""The ledger in the database, `shardmill.batches`: which items of a plan's shards are in the table.

Each record is written in the same transaction as its rows. The batches of a shard have no gaps: each begins where the
previous one ended. If two begin at the same item, one is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardmill.core.hashing import add_sums
from shardmill.postgres.connect import explained, limit, reading
from shardmill.postgres.copy import add_digests
from shardmill.postgres.tables import MAY_CREATE, create_schema, lock
from shardmill.postgres.target import Target, quoted

if TYPE_CHECKING:
    import psycopg

_TABLE = """
CREATE TABLE IF NOT EXISTS shardmill.batches (
  plan text,
  target oid,
  table_schema text NOT NULL,
  table_name text NOT NULL,
  shard integer,
  first_row bigint,
  rows bigint NOT NULL,
  last boolean NOT NULL,
  lines bigint NOT NULL,
  inputs bigint NOT NULL,
  tokens bigint NOT NULL,
  truncated bigint NOT NULL,
  sent bigint NOT NULL,
  inserted bigint NOT NULL DEFAULT 0,
  updated bigint NOT NULL DEFAULT 0,
  errors jsonb NOT NULL,
  digest bytea NOT NULL,
  worker text NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  tokens_out bigint NOT NULL DEFAULT 0,
  dropped bigint NOT NULL DEFAULT 0,
  items_digest bytea,
  PRIMARY KEY (target, plan, shard, first_row)
)
"""

# Earlier versions made the table without these columns; they name theirs, so all may write to one table.
_ADDED = {
    "tokens_out": "bigint NOT NULL DEFAULT 0",
    "dropped": "bigint NOT NULL DEFAULT 0",
    "items_digest": "bytea",
}
_HAS = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'shardmill.batches'::regclass AND attname = %s"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Items of one shard that are in the table or recorded as errors.

    `rows` counts items, `dropped` those without a row; `sent` counts the table rows sent, `inserted` and `updated` how
    many of them were. `items_digest` is of the items as they were read; None if a version wrote it that made none.
    """

    first_row: int
    rows: int
    last: bool = False
    lines: int = 0
    inputs: int = 0
    tokens: int = 0
    truncated: int = 0
    sent: int = 0
    inserted: int = 0
    updated: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    digest: bytes = b""
    tokens_out: int = 0
    dropped: int = 0
    items_digest: bytes | None = None

    @property
    def stop(self) -> int:
        return self.first_row + self.rows


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """The batches of one shard, in order."""

    batches: tuple[BatchRecord, ...]

    @property
    def rows(self) -> int:
        """Number of finished items, counted from the first."""
        return self.batches[-1].stop if self.batches else 0

    @property
    def complete(self) -> bool:
        return bool(self.batches) and self.batches[-1].last and self.without_gap

    @property
    def without_gap(self) -> bool:
        return [b.first_row for b in self.batches] == [0, *(b.stop for b in self.batches)][:-1]

    @property
    def lines(self) -> int:
        return max((b.lines for b in self.batches), default=0)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [record for b in self.batches for record in b.errors]

    @property
    def digest(self) -> bytes:
        return add_digests([b.digest for b in self.batches])

    @property
    def items_digest(self) -> str:
        """Of all items so far; "" if one batch has none."""
        return add_sums(b.items_digest.hex() if b.items_digest is not None else "" for b in self.batches)

    def total(self, name: str) -> int:
        return sum(int(getattr(b, name)) for b in self.batches)


@dataclass(frozen=True, slots=True)
class Loader:
    """What one worker has loaded into a table; `rows_per_s` is measured over the last minute of the load."""

    worker: str
    batches: int
    rows: int
    inserted: int
    updated: int
    errors: int
    rows_per_s: float


_LOADERS = """
WITH own AS (
  SELECT *, min(at) OVER () AS began, max(at) OVER () - interval '1 minute' AS lately FROM shardmill.batches
  WHERE plan = %(plan)s AND target = %(name)s::regclass
)
SELECT worker, count(*), sum(sent)::bigint, sum(inserted)::bigint, sum(updated)::bigint,
       sum(jsonb_array_length(errors)),
       (coalesce(sum(sent) FILTER (WHERE at > lately), 0)
         / least(60, greatest(1, extract(epoch FROM max(lately) - min(began)) + 60)))::float8
FROM own GROUP BY worker ORDER BY worker
"""


def read_loaders(connection: psycopg.Connection[Any], plan: str, name: str) -> list[Loader]:
    """What each worker has loaded into the table `name` (quoted); empty if the table or the ledger does not exist."""
    there = connection.execute("SELECT to_regclass('shardmill.batches'), to_regclass(%s)", [name]).fetchone()
    if there is None or None in there:
        return []
    return [Loader(*row) for row in connection.execute(_LOADERS, {"plan": plan, "name": name}).fetchall()]


def read_progress(url: str, table: str, plan: str) -> list[Loader]:
    """What each worker of a plan has loaded into a table."""
    schema, _, name = table.rpartition(".")
    with reading(url) as connection, explained(connection):
        return read_loaders(connection, plan, f"{quoted(schema or 'public')}.{quoted(name)}")


def create_ledger(connection: psycopg.Connection[Any]) -> None:
    with explained(connection, MAY_CREATE), connection.transaction():
        limit(connection)
        connection.execute("SELECT set_config('client_min_messages', 'warning', true)")
        lock(connection)
        if connection.execute("SELECT to_regclass('shardmill.batches')").fetchone() == (None,):
            create_schema(connection, "shardmill")
            connection.execute(_TABLE)
            return
        for name, kind in _ADDED.items():
            if connection.execute(_HAS, [name]).fetchone() == (0,):
                connection.execute(f"ALTER TABLE shardmill.batches ADD COLUMN {name} {kind}".encode())


class BatchLedger:
    """The records of one plan in one table. A table is identified by its oid: once recreated, it has no records."""

    def __init__(self, plan: str, target: Target) -> None:
        self._values = {"plan": plan, "name": target.name, "schema": target.schema, "table": target.table}

    def progress(self, connection: psycopg.Connection[Any], shard: int) -> ShardProgress:
        return ShardProgress(tuple(self._read(connection, "AND shard = %(shard)s", {"shard": shard})))

    def shards(self, connection: psycopg.Connection[Any]) -> dict[int, ShardProgress]:
        """All progress of the plan, by shard."""
        found = connection.execute(
            "SELECT DISTINCT shard FROM shardmill.batches WHERE plan = %(plan)s AND target = %(name)s::regclass",
            self._values,
        )
        return {shard: self.progress(connection, shard) for (shard,) in sorted(found.fetchall())}

    def _read(self, connection: psycopg.Connection[Any], where: str, values: dict[str, Any]) -> list[BatchRecord]:
        names = ", ".join(_COLUMNS)
        rows = connection.execute(
            f"SELECT {names} FROM shardmill.batches WHERE plan = %(plan)s AND target = %(name)s::regclass {where}"
            " ORDER BY first_row, last",
            {**self._values, **values},
        )
        return [BatchRecord(*row) for row in rows.fetchall()]

    def record(self, connection: psycopg.Connection[Any], shard: int, batch: BatchRecord, worker: str) -> bool:
        """Record a batch; False if it does not begin where the last one ended, or if it is already recorded."""
        cursor = connection.execute(
            """
            INSERT INTO shardmill.batches (plan, target, table_schema, table_name, shard, first_row, rows, last, lines,
                                           inputs, tokens, truncated, sent, errors, digest, worker, tokens_out,
                                           dropped, items_digest)
            SELECT %(plan)s, %(name)s::regclass, %(schema)s, %(table)s, %(shard)s, %(first_row)s, %(rows)s, %(last)s,
                   %(lines)s, %(inputs)s, %(tokens)s, %(truncated)s, %(sent)s, %(errors)s::jsonb, %(digest)s,
                   %(worker)s, %(tokens_out)s, %(dropped)s, %(items_digest)s
            WHERE %(first_row)s = (
              SELECT coalesce(max(first_row + rows), 0) FROM shardmill.batches
              WHERE plan = %(plan)s AND target = %(name)s::regclass AND shard = %(shard)s
            )
            ON CONFLICT DO NOTHING
            """,
            {
                **self._values,
                **{name: getattr(batch, name) for name in _COLUMNS},
                "errors": json.dumps(batch.errors).replace("\\u0000", "�"),
                "shard": shard,
                "worker": worker,
            },
        )
        return cursor.rowcount == 1

    def count(
        self, connection: psycopg.Connection[Any], shard: int, first_row: int, inserted: int, updated: int
    ) -> None:
        """Set how many rows were inserted and updated by a batch that was recorded in this transaction."""
        connection.execute(
            "UPDATE shardmill.batches SET inserted = %(inserted)s, updated = %(updated)s WHERE plan = %(plan)s"
            " AND target = %(name)s::regclass AND shard = %(shard)s AND first_row = %(first_row)s",
            {**self._values, "shard": shard, "first_row": first_row, "inserted": inserted, "updated": updated},
        )

    def forget(self, connection: psycopg.Connection[Any], shard: int | None = None) -> int:
        """Delete the records of the plan, or of one shard, and return how many items they covered; the rows stay.

        The lock keeps other batches from being recorded meanwhile: they would be left without a predecessor.
        """
        with connection.transaction():
            connection.execute("LOCK TABLE shardmill.batches IN SHARE ROW EXCLUSIVE MODE")
            gone = connection.execute(
                "WITH gone AS (DELETE FROM shardmill.batches WHERE plan = %(plan)s AND target = %(name)s::regclass"
                " AND (%(shard)s::integer IS NULL OR shard = %(shard)s) RETURNING rows) SELECT sum(rows) FROM gone",
                {**self._values, "shard": shard},
            ).fetchone()
        return int(gone[0] or 0) if gone else 0


_COLUMNS = (
    "first_row",
    "rows",
    "last",
    "lines",
    "inputs",
    "tokens",
    "truncated",
    "sent",
    "inserted",
    "updated",
    "errors",
    "digest",
    "tokens_out",
    "dropped",
    "items_digest",
)
