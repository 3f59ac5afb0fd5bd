"""The SQL that creates a table for what a task makes."""

from __future__ import annotations

from collections.abc import Iterator

from shardmill.core.errors import SpecError
from shardmill.postgres.target import Target, quoted

DIGEST, SEARCH = "text_digest", "search"
_LONGEST_NAME_BYTES = 63
_MOST_DIMS = 16_000
# A tsvector is limited to 1 MB: only the beginning of a longer text is searchable.
_SEARCHED_CHARACTERS = 200_000


def definition(target: Target, vector_schema: str = "public") -> str:
    """The CREATE TABLE statement of a target.

    >>> from shardmill.postgres.target import TableColumn
    >>> print(definition(Target("public", "docs", ("id",), (TableColumn("id", "bigint"),), (), 3)))
    CREATE TABLE "public"."docs" (
      "id" bigint,
      "embedding" "public".vector(3),
      "text_digest" bytea,
      PRIMARY KEY ("id")
    )
    """
    lines = [f"{quoted(c.name)} {c.type}" for c in target.columns]
    lines += [f"{quoted(name)} {kind}" for name, kind in own_columns(target, vector_schema)]
    if target.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, target.key))})")
    body = ",\n  ".join(lines)
    return f"CREATE TABLE {target.name} (\n  {body}\n)"


def own_columns(target: Target, vector_schema: str) -> Iterator[tuple[str, str]]:
    """The columns that are not filled from the rows as they are, with their SQL definitions."""
    if target.vector:
        yield target.vector, f"{quoted(vector_schema)}.{target.vector_type}({target.dims})"
    yield DIGEST, "bytea"
    if target.text:
        yield SEARCH, f"tsvector GENERATED ALWAYS AS ({_search_expression(target)}) STORED"


def _search_expression(target: Target) -> str:
    types = {c.name: c.type for c in target.columns}
    language = f"{literal(target.language)}::regconfig"
    most = _SEARCHED_CHARACTERS // len(target.text)
    pieces = []
    for name in target.text:
        if types[name] == "jsonb":
            pieces.append(f"to_tsvector({language}, coalesce({quoted(name)}, '[]'::jsonb))")
        else:
            pieces.append(f"to_tsvector({language}, left(coalesce({quoted(name)}, ''), {most}))")
    return " || ".join(pieces)


def validate(target: Target) -> None:
    """Refuse a target that no server would accept, before asking one."""
    names = [c.name for c in target.columns]
    vector = [target.vector] if target.vector else []
    own = [*vector, DIGEST, *([SEARCH] if target.text else [])]
    for name in (target.schema, target.table, *names, *vector):
        if not name or "\0" in name:
            raise SpecError(f"{name!r} is not a valid name for a table or a column.")
        if len(name.encode()) > _LONGEST_NAME_BYTES:
            raise SpecError(
                f"The name {name!r} has {len(name.encode())} bytes; PostgreSQL allows {_LONGEST_NAME_BYTES}.",
                hint="Choose a shorter name.",
            )
    every = names + own
    if twice := sorted({name for name in every if every.count(name) > 1}):
        raise SpecError(f"The table would have two columns named {twice[0]!r}.", hint="Rename it in the source.")
    for name in (*target.key, *target.text):
        if name not in names:
            raise SpecError(f"{target.table} has no column {name!r}.")
    for column in target.columns:
        if column.name in target.text and not column.type.startswith(("text", "character", "jsonb")):
            raise SpecError(f"{column.name!r} is {column.type}: full-text search needs text or jsonb.")
    if vector and not 1 <= target.dims <= _MOST_DIMS:
        raise SpecError(f"pgvector supports 1 to {_MOST_DIMS:,} dimensions, not {target.dims:,}.")


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
