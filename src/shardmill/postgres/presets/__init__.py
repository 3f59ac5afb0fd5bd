"""Schemas of well-known data: which field becomes which column. `--schema amazon-reviews-2023` selects one.

A field is read from the source as a plain type; an SQL expression converts it to the column's type when it is inserted.
The expressions accept any value: what does not fit becomes NULL, so that no batch fails because of it. Each schema is a
TOML file in this folder, named by the schema.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardmill.core.errors import SpecError, nearest
from shardmill.postgres.target import TableColumn, Target

Kept = Literal["string", "int64", "double", "bool"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the source, the column it fills, and the SQL between them; `kept` is the type that --keep reads."""

    source: str
    kept: Kept
    column: TableColumn
    sql: str = "{}"

    def expression(self, value: str) -> str:
        """The SQL that converts `value`, itself an SQL expression, to the column's type.

        >>> Field("t", "int64", TableColumn("at", "date"), "to_timestamp({})").expression('s."t"')
        'to_timestamp(s."t")'
        """
        return self.sql.replace("{}", value)

    @property
    def keep(self) -> str:
        """The field in the syntax of --keep."""
        return f"{self.source}:{self.kept}"


@dataclass(frozen=True, slots=True)
class TablePreset:
    """A table: its fields and key, the fields that are embedded (`text`), the columns that are `searched`."""

    table: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    text: str
    searched: tuple[str, ...]

    def target(
        self, dims: int, *, schema: str = "public", vector_type: Literal["vector", "halfvec"] = "vector"
    ) -> Target:
        columns = tuple(field.column for field in self.fields)
        return Target(schema, self.table, self.key, columns, self.searched, dims, vector_type=vector_type)

    @property
    def keep(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field.keep for field in self.fields))


@dataclass(frozen=True, slots=True)
class Preset:
    """Reviews, their products, and the column of a review that refers to the key of its product."""

    reviews: TablePreset
    metadata: TablePreset
    product: str


# A list or an object of the source arrives as JSON, any other value unchanged; its first and last characters tell.
_IS_JSON = r"""{} ~ '^(\[\s*(["{\[0-9-]|true|false|null).*\]|\[\s*\]|\{\s*".*\}|\{\s*\})$'"""
_JSON = f"CASE WHEN {_IS_JSON} THEN replace({{}}, '\\u0000', '')::jsonb ELSE to_jsonb({{}}) END"
_PRICE = "CASE WHEN {} ~ '^\\s*\\$?\\s*[0-9]{1,9}(\\.[0-9]{1,9})?\\s*$' THEN translate({}, '$ ', '')::numeric END"
_SECONDS = "CASE WHEN {} BETWEEN -62135596800 AND 253402300799 THEN to_timestamp({}) END"
_MILLISECONDS = "CASE WHEN {} BETWEEN -62135596800000 AND 253402300799999 THEN to_timestamp({} / 1000.0) END"


# What a field of each kind is read as, the type of its column, and the SQL between them.
_KINDS: dict[str, tuple[Kept, str, str]] = {
    "text": ("string", "text", "{}"),
    "json": ("string", "jsonb", _JSON),
    "real": ("double", "real", "{}"),
    "count": ("int64", "bigint", "{}"),
    "boolean": ("bool", "boolean", "{}"),
    "price": ("string", "numeric(12,2)", _PRICE),
    "seconds": ("int64", "timestamp with time zone", _SECONDS),
    "milliseconds": ("int64", "timestamp with time zone", _MILLISECONDS),
}


def _field(source: str, kind: str, column: str = "") -> Field:
    kept, type_, sql = _KINDS[kind]
    return Field(source, kept, TableColumn(column or source, type_), sql)


def _table(given: dict[str, Any]) -> TablePreset:
    fields = tuple(_field(**each) for each in given["fields"])
    return TablePreset(given["table"], fields, tuple(given["key"]), given["text"], tuple(given["searched"]))


def _read(path: Path) -> Preset:
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    return Preset(_table(given["reviews"]), _table(given["metadata"]), given["product"])


PRESETS = {path.stem: _read(path) for path in sorted(Path(__file__).parent.glob("*.toml"), reverse=True)}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SpecError(f"Unknown schema {name!r}.", hint=nearest(name, list(PRESETS)))
    return PRESETS[name]
