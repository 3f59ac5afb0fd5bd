"""Pickled records: a list of dicts, or a dict of lists."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from shardmill.core.errors import SourceError
from shardmill.core.template import kind_of
from shardmill.sources.base import SourceFile
from shardmill.sources.files import file_name, readable
from shardmill.sources.pickle.safe import load
from shardmill.sources.pickle.standin import Array, RefusedPickle
from shardmill.sources.whole import BadRecord, WholeReader
from shardmill.store import locate

_SAVE = "Save a list of dicts, or a dict of lists."


class PickledRecords:
    """The rows of a pickle, stored by row or by column."""

    def __init__(self, held: object) -> None:
        self._rows: Sequence[object] = ()
        self._columns: dict[str, Sequence[object]] = {}
        if isinstance(values := _as_list(held), list | tuple):
            self._rows = values
        elif isinstance(held, dict):
            self._columns = {str(name): _as_column(name, values) for name, values in held.items()}
            if len({len(column) for column in self._columns.values()}) > 1:
                lengths = ", ".join(f"{name} {len(c):,}" for name, c in itertools.islice(self._columns.items(), 8))
                raise RefusedPickle(f"its columns have different lengths ({lengths})", "Save complete rows.")
        else:
            raise RefusedPickle(f"it holds {kind_of(held)}", _SAVE)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else len(self._rows)

    def row(self, i: int, names: Collection[str] | None = None) -> dict[str, object]:
        if self._columns:
            return {name: values[i] for name, values in self._columns.items() if names is None or name in names}
        row = self._rows[i]
        if not isinstance(row, dict):
            raise BadRecord(f"the record is {kind_of(row)}, not a dict")
        return row if names is None else {name: row[name] for name in names if name in row}


def _as_list(value: object) -> object:
    return value.values if isinstance(value, Array) else value


def _as_column(name: object, held: object) -> Sequence[object]:
    values = _as_list(held)
    if not isinstance(name, str) or not isinstance(values, list | tuple):
        raise RefusedPickle(
            f"it is a dict with {kind_of(values)} where each field needs a list",
            "Save a list of dicts, or a dict of lists: list(records.values()).",
        )
    return values


def _load(file: SourceFile) -> PickledRecords:
    store, key = locate(file.place)
    try:
        with readable(file.place), store.reader(key) as handle:
            return PickledRecords(load(handle, file.size_bytes))
    except RefusedPickle as refused:
        raise SourceError(
            f"{file_name(file.place)} cannot be read as pickled records: {refused}.",
            hint=refused.hint or f"Fetch or write {file.place} again.",
        ) from None


READER = WholeReader(_load, "a pickle", _SAVE)
