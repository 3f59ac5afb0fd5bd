"""Conditions in SQL that find rows by their keys."""

from __future__ import annotations

import pyarrow as pa


def any_of(keys: pa.RecordBatch, mark: str = '"') -> str:
    """A condition that holds for the rows with these values of the key columns, whose names are put in `mark`s.

    >>> any_of(pa.record_batch({"id": ["a", "it's"], "window": [0, 1]}))
    '("id" = \\'a\\' AND "window" = 0) OR ("id" = \\'it\\'\\'s\\' AND "window" = 1)'
    """
    if keys.num_columns == 1:
        values = ", ".join(_literal(value) for value in keys.column(0).to_pylist())
        return f"{quoted(keys.schema.names[0], mark)} IN ({values})"
    return " OR ".join(
        "(" + " AND ".join(f"{quoted(name, mark)} = {_literal(value)}" for name, value in row.items()) + ")"
        for row in keys.to_pylist()
    )


def quoted(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, mark * 2) + mark


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"
