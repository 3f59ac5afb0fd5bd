"""The table that a load writes to, described once; its SQL is generated from this."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Conflict = Literal["update", "skip", "fail"]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column filled from the rows, with its SQL type as `format_type` writes it: `bigint`, `numeric(10,2)`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Target:
    """A table for what a task makes: `key` is its primary key, `text` are the columns for full-text search.

    Besides `columns` it has the vector, `text_digest` (of what a row was made from) and `search`, a tsvector. A table
    without a vector has no `vector` and 0 `dims`; `made` are then the columns that the task fills.
    """

    schema: str
    table: str
    key: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    text: tuple[str, ...]
    dims: int
    vector: str = "embedding"
    vector_type: Literal["vector", "halfvec"] = "vector"
    language: str = "english"
    made: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[str, ...]:
        """The columns that the task fills: a row in which all are null has no result."""
        return (self.vector,) if self.vector else self.made

    @property
    def name(self) -> str:
        """The quoted name, with the schema."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def to_json(self) -> dict[str, Any]:
        """As plain values. Earlier versions know no table without a vector, and not the key `made`."""
        values = asdict(self)
        return values if self.made else {name: value for name, value in values.items() if name != "made"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Target:
        columns = tuple(TableColumn(**column) for column in data["columns"])
        names = {name: tuple(data.get(name, ())) for name in ("key", "text", "made")}
        return cls(**{**data, **names, "columns": columns})


def all_null(columns: tuple[str, ...], table: str = "") -> str:
    """The condition that a row has null in all these columns.

    >>> all_null(("a", "b"), "old")
    '(old."a" IS NULL AND old."b" IS NULL)'
    """
    before = f"{table}." if table else ""
    return "(" + " AND ".join(f"{before}{quoted(name)} IS NULL" for name in columns) + ")"


def quoted(name: str) -> str:
    """A name as a quoted SQL identifier.

    >>> quoted('5" discs')
    '"5"" discs"'
    """
    return '"' + name.replace('"', '""') + '"'
