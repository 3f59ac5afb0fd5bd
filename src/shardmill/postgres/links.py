"""A foreign key between two tables that were loaded, made after the load: rows arrive in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardmill.postgres.connect import explained, limit
from shardmill.postgres.tables import lock_table, one
from shardmill.postgres.target import Target, quoted

if TYPE_CHECKING:
    import psycopg

_LINKED = """
SELECT count(*) FROM pg_constraint
WHERE contype = 'f' AND conrelid = to_regclass(%s) AND confrelid = to_regclass(%s)
"""


def link(connection: psycopg.Connection[Any], child: Target, parent: Target, column: str) -> int:
    """Make `column` of the child refer to the parent's key, unless it does. Says how many rows refer to nothing;
    where there are any, no key is made, for it would refuse them."""
    with explained(connection, "The owner of both tables can make the key."), connection.transaction():
        limit(connection, statement_timeout="0")
        lock_table(connection, child)
        if one(connection, _LINKED, [child.name, parent.name]):
            return 0
        name, key = quoted(column), quoted(parent.key[0])
        orphans = one(
            connection,
            f"SELECT count(*) FROM {child.name} c WHERE c.{name} IS NOT NULL"
            f" AND NOT EXISTS (SELECT FROM {parent.name} p WHERE p.{key} = c.{name})",
        )
        if not orphans:
            connection.execute(f"ALTER TABLE {child.name} ADD FOREIGN KEY ({name}) REFERENCES {parent.name} ({key})")
            connection.execute(f"CREATE INDEX ON {child.name} ({name})")
        return int(orphans)
