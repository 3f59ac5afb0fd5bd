"""A foreign key between two loaded tables, and rows that refer to a missing row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Reference:
    """A column that refers to the key of `table`; `source` is the field that fills it.

    With `nulls` it becomes null if the table has no such row.
    """

    source: str
    column: str
    table: str
    key: str
    nulls: bool

    # A name that no field has, so that every other name refers to the batch.
    known = "shardmill_known"

    @property
    def join(self) -> str:
        """The JOIN after FROM: the column `known` is the key, or null if there is no such row."""
        found = f"(SELECT {quoted(self.key)} AS {self.known} FROM {self.table}) shardmill_parent"
        return f"LEFT JOIN {found} ON {self.known} = {quoted(self.source)}"

    def unknown(self, connection: psycopg.Connection[Any], values: Iterable[str | None]) -> frozenset[str]:
        """The values that the table does not have; a null refers to nothing and is ignored."""
        wanted = list({value for value in values if value is not None})
        found = connection.execute(
            f"SELECT wanted FROM unnest(%s::text[]) wanted"
            f" WHERE NOT EXISTS (SELECT FROM {self.table} WHERE {quoted(self.key)} = wanted)".encode(),
            [wanted],
        )
        return frozenset(value for (value,) in found.fetchall())


def link(connection: psycopg.Connection[Any], child: Target, parent: Target, column: str) -> int:
    """Make `column` of the child a foreign key to the parent, unless it is one.

    Returns how many rows refer to a missing row; if there are any, no key is created, since it would not allow them.
    """
    with explained(connection, "The owner of both tables can create the key."), connection.transaction():
        limit(connection, statement_timeout="0")
        lock_table(connection, child.name)
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
