"""Conditions in SQL that find rows by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def any_of(keys: pa.RecordBatch, mark: str = '"', literal: Callable[[object], str] = _literal) -> str:
    """A condition that holds for the rows with these values of the key columns, whose names are put in `mark`s.

    >>> any_of(pa.record_batch({"id": ["a", "it's", None]}))
    '("id" IN (\\'a\\', \\'it\\'\\'s\\') OR "id" IS NULL)'
    >>> any_of(pa.record_batch({"id": ["a", "b", "c"], "window": [0, 1, 0]}))
    '("window" IN (0) AND "id" IN (\\'a\\', \\'c\\')) OR ("window" IN (1) AND "id" IN (\\'b\\'))'
    """
    first, *rest = keys.schema.names
    groups: dict[tuple[object, ...], list[object]] = {}
    for row in keys.to_pylist():
        groups.setdefault(tuple(row[name] for name in rest), []).append(row[first])
    return " OR ".join(
        _all(
            _is_in(quoted(name, mark), values, literal)
            for name, values in (*((name, [value]) for name, value in zip(rest, others, strict=True)), (first, firsts))
        )
        for others, firsts in groups.items()
    )


def _all(conditions: Iterable[str]) -> str:
    each = [*conditions]
    return each[0] if len(each) == 1 else f"({' AND '.join(each)})"


def _is_in(name: str, values: Sequence[object], literal: Callable[[object], str]) -> str:
    known = [literal(value) for value in values if value is not None]
    listed = f"{name} IN ({', '.join(known)})"
    if len(known) == len(values):
        return listed
    return f"({listed} OR {name} IS NULL)" if known else f"{name} IS NULL"


def quoted(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, mark * 2) + mark
