"""What a load writes to: one table, described once, from which its SQL is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Conflict = Literal["update", "skip", "fail"]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column that rows bring along, with its SQL type as `format_type` writes it: `bigint`, `numeric(10,2)`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Target:
    """A table for vectors: `key` is its primary key, `text` are the columns that full-text search looks at.

    Besides `columns` it has the vector, `text_digest` (of what the vector was made from) and `search`, a tsvector.
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
        """Quoted, with its schema."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Target:
        columns = tuple(TableColumn(**column) for column in data["columns"])
        return cls(**{**data, "key": tuple(data["key"]), "text": tuple(data["text"]), "columns": columns})


def quoted(name: str) -> str:
    """A name as SQL has it.

    >>> quoted('5" discs')
    '"5"" discs"'
    """
    return '"' + name.replace('"', '""') + '"'
