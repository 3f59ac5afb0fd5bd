"""A query as a source. A shard is a range of keys, or the whole query if there is no key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError, nearest
from shardmill.core.template import TextTemplate, kind_of
from shardmill.plan import KeyValue
from shardmill.sources.ahead import ahead
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.columns import build_columns, chosen_types, column_names
from shardmill.sources.sql.base import BINARY, UNKNOWN, Database, QuerySession, Rows
from shardmill.sources.sql.items import ItemMaker, infer_kind, size_of
from shardmill.sources.sql.query import check_query, column, in_order, in_range, select, table
from shardmill.sources.sql.since import digest_marks, find_newest, older, spread, value_of

_SAMPLE_ROWS = 1000
# A server restarts in less; a worker that waited this long ends, and a new worker continues to wait.
_PATIENCE_S = 60.0
_MANY_SHARDS = 4


def describe(database: Database, fields: Fields) -> SourceStat:
    """Describe a query by its columns, its first rows and its number of rows."""
    query = check_query(fields.query)
    template = TextTemplate.parse(fields.text)
    with database.open() as session:
        kinds = _columns(session, query)
        names = list(dict.fromkeys((*template.names, *column_names(fields))))
        for name in [*names, *([fields.changed_since] if fields.changed_since else [])]:
            if name not in kinds:
                raise SourceError(f"no column {name!r} in the query.", hint=nearest(name, list(kinds)))
            if kinds[name] == BINARY:
                raise _binary(name)
        exprs = [session.expression(name, kinds[name]) for name in names]
        sample = next(session.rows(select(", ".join(exprs), query), (), lambda: _SAMPLE_ROWS), [])
        if not sample:
            raise SourceError("the query returns no rows.", hint="Try it by hand.")
        values = dict(zip(names, zip(*sample, strict=True), strict=True))
        _check_text(template, kinds, values)
        chosen = chosen_types(fields)
        columns = {n: chosen.get(n) or kinds[n] or infer_kind(values[n]) for n in column_names(fields)}
        for name in columns:
            if any(isinstance(v, bytes | bytearray | memoryview) for v in values[name]):
                raise _binary(name)
        (count,) = _first(session, select("count(*)", query))
        size_bytes = int(count) * sum(map(size_of, sample)) // len(sample)
        newest = find_newest(session, query, fields.changed_since) if fields.changed_since else ""
        file = SourceFile(database.place, max(1, size_bytes), session.identify(), "", newest=newest)
    return SourceStat(database.kind, (file,), columns)


def list_columns(database: Database, query: str) -> dict[str, pa.DataType]:
    with database.open() as session:
        found = _columns(session, check_query(query))
    return {name: arrow_type(kind or "string") for name, kind in found.items() if kind != BINARY}


class SqlSource(Source):
    """One query of one database. Its `notes` say why it is one shard, and when an index would help."""

    def __init__(self, database: Database, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        self._database, self._stat, self._fields = database, stat, fields
        self._query = check_query(fields.query)
        self._template = TextTemplate.parse(fields.text)
        self._items = ItemMaker(self._template, build_columns(stat, fields), max_item_bytes)
        self.notes: list[str] = []

    def shards(self, target_bytes: int) -> list[Shard]:
        """Cut into ranges of keys of about `target_bytes`, in one snapshot, by one pass in key order."""
        size_bytes = self._stat.size_bytes
        with self._database.open() as session:
            rows, ends = self._cut(session, target_bytes, size_bytes)
            weight = size_bytes / max(1, rows)
            stops = [stop for stop, _ in ends]
            keys = [key for _, key in ends]
            pieces = zip(itertools.pairwise([0, *stops]), itertools.pairwise([None, *keys]), strict=True)
            shards = [
                Shard(i, 0, start, stop, max(1, int(weight * (stop - start))), low, high)
                for i, ((start, stop), (low, high)) in enumerate(pieces)
            ]
            if len(shards) >= _MANY_SHARDS and session.can_seek(*self._statement(session, shards[1])) is False:
                self.notes.append(
                    f"No index on {self._fields.id[0]!r} can be used, so each of the {len(shards)} shards reads all "
                    "rows of the query. Add an index, or run `shardmill split --query` first."
                )
        return shards

    def _cut(self, session: QuerySession, target_bytes: int, size_bytes: int) -> tuple[int, list[tuple[int, KeyValue]]]:
        """The number of rows, and for each shard the row number where it ends and its last key."""
        (rows,) = _first(session, select("count(*)", self._query))
        if not self._fields.id:
            self.notes.append(_one_shard("--id names no column to cut by"))
            return rows, [(rows, None)]
        name = self._fields.id[0]
        session.describe(self._query)
        key, value, present = column(name), session.key_expression(name), f" WHERE {column(name)} IS NOT NULL"
        last = _first(session, select(value, self._query, f"{present} ORDER BY {key} DESC LIMIT 1"))
        if last is None or not isinstance(last[0], int | float | str):
            why = f"every {name!r} is null" if last is None else f"{name!r} is {kind_of(last[0])}"
            self.notes.append(_one_shard(why))
            return rows, [(rows, None)]
        (keyed,) = _first(session, select(f"count({key})", self._query))
        if keyed < rows:
            self.notes.append(f"{rows - keyed:,} rows have no {name!r}; they are read with the first shard.")
        pieces = -(-keyed // max(1, target_bytes * rows // max(1, size_bytes)))
        step = -(-keyed // pieces)
        numbered = f"SELECT {value} AS k, row_number() OVER (ORDER BY {key}) AS n FROM {table(self._query)}{present}"
        sql = f"SELECT n, k FROM (\n{numbered}\n) AS t WHERE n % {step} = 0 AND n < {keyed} ORDER BY n"
        ends: list[tuple[int, KeyValue]] = []
        for n, bound in itertools.chain.from_iterable(session.rows(sql)):
            # Equal keys stay in one shard; a range between them would be empty.
            if bound != last[0] and (not ends or bound != ends[-1][1]):
                ends.append((int(n) + rows - keyed, bound))
        return rows, [*ends, (rows, last[0])]

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        weight = shard.weight_bytes / max(1, shard.stop - shard.start)
        pace, done = _Pace(weight), 0
        for rows in ahead(lambda: self._fetch(shard, pace)):
            batch = self._items.make(rows, done, weight, shard.high is None)
            pace.saw(batch)
            yield replace(batch, seen=self._see(rows)) if self._fields.changed_since else batch
            done += len(rows)

    def read_since(self, shard: Shard, newest: str) -> Iterator[ItemBatch]:
        """Read the items of a shard; those that changed before the time `newest` are left out."""
        weight = shard.weight_bytes / max(1, shard.stop - shard.start)
        pace, done = _Pace(weight), 0
        for rows in ahead(lambda: self._fetch(shard, pace, newest)):
            is_read = np.array([not row[-1] for row in rows])
            given = [row for row, wanted in zip(rows, is_read, strict=True) if wanted]
            batch = spread(self._items.make(given, done, weight, False), is_read, done, weight)
            yield replace(batch, seen=self._see(rows))
            done += len(rows)

    def see(self, shard: Shard, newest: str) -> Iterator[pa.Array]:
        """What tells the change of those items that `read_since` leaves out, and no more of them."""
        with self._database.open(_PATIENCE_S) as session:
            _columns(session, self._query)
            mark = self._fields.changed_since
            names = [*(session.key_expression(n) for n in self._fields.id), session.key_expression(mark)]
            where, values = in_range(self._fields.id[0], shard.low, shard.high)
            where += f"{' AND' if where else ' WHERE'} {older(mark, self._template.names)}"
            exprs = ", ".join(f"{name} AS c{i}" for i, name in enumerate(names))
            last = len(names) - 1
            for rows in session.rows(
                select(exprs, self._query, where), [*values, value_of(newest)], lambda: BATCH_ROWS
            ):
                yield digest_marks(rows, range(last), last)

    def _see(self, rows: Rows) -> pa.Array:
        first = len(self._template.names) + len(self._stat.columns)
        last = first + len(self._fields.id)
        return digest_marks(rows, range(first, last), last)

    def _fetch(self, shard: Shard, pace: _Pace, newest: str = "") -> Iterator[Rows]:
        with self._database.open(_PATIENCE_S) as session:
            yield from session.rows(*self._statement(session, shard, newest), lambda: pace.rows)

    def _statement(self, session: QuerySession, shard: Shard, newest: str = "") -> tuple[str, list[KeyValue]]:
        """Select the rows of a shard in the order of their ids; without a key, in the order of the query.

        If they tell their change, their ids and what tells it follow; with `newest`, all else is null in older ones.
        """
        kinds = _columns(session, self._query)
        texts = [session.expression(n, _text_kind(kinds[n])) for n in self._template.names]
        exprs, before = [*texts, *(session.expression(n, kind) for n, kind in self._stat.columns.items())], []
        if mark := self._fields.changed_since:
            is_older = older(mark, self._template.names)
            if newest:
                exprs = [f"CASE WHEN {is_older} THEN NULL ELSE {e} END" for e in exprs]
                before = [value_of(newest)] * (len(exprs) + 1)
            exprs += [session.key_expression(name) for name in (*self._fields.id, mark)]
            exprs += [f"CASE WHEN {is_older} THEN 1 ELSE 0 END"] if newest else []
        listed = ", ".join(f"{e} AS c{i}" for i, e in enumerate(exprs))
        if shard.high is None:
            return select(listed, self._query), before
        where, values = in_range(self._fields.id[0], shard.low, shard.high)
        return select(listed, self._query, where + in_order(self._fields.id)), [*before, *values]

    def count(self, shards: Sequence[Shard]) -> int:
        """Count the rows that the query returns now in the range of these shards."""
        with self._database.open() as session:
            last = shards[-1].high
            where, values = in_range(self._fields.id[0], None, last) if last is not None else ("", [])
            return int(next(session.rows(select("count(*)", self._query, where), values))[0][0])


class _Pace:
    """The number of rows to fetch at a time: those of one batch, by the size of the last rows."""

    def __init__(self, row_bytes: float) -> None:
        self.rows = self._fitting(row_bytes)

    def saw(self, batch: ItemBatch) -> None:
        self.rows = self._fitting((batch.texts.nbytes + batch.kept.nbytes) / max(1, len(batch)))

    def _fitting(self, row_bytes: float) -> int:
        return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))


def _columns(session: QuerySession, query: str) -> dict[str, str]:
    found = session.describe(query)
    names = [name for name, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"the query has two columns named {twice!r}.", hint="Rename one with AS.")
    return dict(found)


def _first(session: QuerySession, sql: str) -> Any:
    return next((row for rows in session.rows(sql) for row in rows), None)


def _text_kind(kind: str) -> str:
    """The type of a column in a template: numbers and booleans unchanged, everything else text."""
    plain = kind == UNKNOWN or (pa.types.is_primitive(t := arrow_type(kind)) and not pa.types.is_temporal(t))
    return kind if plain else "string"


def _check_text(template: TextTemplate, kinds: dict[str, str], values: dict[str, tuple[Any, ...]]) -> None:
    """Check that a single field which is the text holds text."""
    if not template.single:
        return
    name = template.names[0]
    seen = [v for v in values[name] if v is not None]
    if kinds[name] == "string" or (kinds[name] == UNKNOWN and (not seen or any(isinstance(v, str) for v in seen))):
        return
    strings = [n for n, kind in kinds.items() if kind == "string"]
    raise SourceError(
        f"{name!r} in the query holds {kind_of(seen[0]) if seen else kinds[name]}, not text.",
        hint=f"Columns that hold text: {', '.join(strings)}." if strings else "Cast it in the query: CAST(… AS text).",
    )


def _binary(name: str) -> SourceError:
    return SourceError(
        f"{name!r} in the query is binary.",
        hint=f"Turn it into text in the query: encode({name}, 'base64') or hex({name}).",
    )


def _one_shard(why: str) -> str:
    return (
        f"The query is one shard, which one worker reads in one snapshot: {why}. "
        "Set --id to a column that can be sorted, or cut the query with `shardmill split --query` first."
    )
