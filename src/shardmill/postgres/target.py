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
    """A table for vectors: `key` is its primary key, `text` are the columns for full-text search.

    Besides `columns` it has the vector, `text_digest` (of the embedded text) and `search`, a tsvector.
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

    @property
    def name(self) -> str:
        """The quoted name, with the schema."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Target:
        columns = tuple(TableColumn(**column) for column in data["columns"])
        return cls(**{**data, "key": tuple(data["key"]), "text": tuple(data["text"]), "columns": columns})


def quoted(name: str) -> str:
    """A name as a quoted SQL identifier.

    >>> quoted('5" discs')
    '"5"" discs"'
    """
    return '"' + name.replace('"', '""') + '"'
