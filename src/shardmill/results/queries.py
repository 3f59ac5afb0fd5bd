"""Queries that two results are compared on: a file of the user's own, or a sample of the texts of the run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shardmill.core.dialect import name_option
from shardmill.core.errors import SourceError, UsageError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import read_rows
from shardmill.sources import Fields, discover, list_columns, open_source

QUERY, GOLD = "query", "gold"
_WHOLE_BYTES = 1 << 62
# Texts are drawn from the beginnings of this many shards, among as many items for each that is taken.
_SHARDS, _DRAWN_FROM = 20, 10


@dataclass(frozen=True, slots=True)
class Query:
    """A text to search for.

    `right` are the names of the items that answer it; None if that is not known. A text of the run itself is the item
    `item` of the shard `shard`, with the name `own` if items have ids: it does not count as found.
    """

    text: str
    right: tuple[str, ...] | None = None
    own: str = ""
    shard: int = -1
    item: int = -1


def name_item(values: Sequence[Any]) -> str:
    """The id of an item as one text; several columns are joined by commas.

    >>> name_item(["a", 7])
    'a,7'
    """
    return ",".join(map(str, values))


def read_queries(place: str, text: str = QUERY, gold: str = "") -> list[Query]:
    """Queries from a file of any format that a source may have; `gold` names the column of the right ids.

    Without it, the column `gold` is used if the file has it. A cell is one id, a list, or a list as JSON.
    """
    columns = list_columns([place])
    if text not in columns:
        raise _lacks(place, text, "query_text", columns)
    if gold and gold not in columns:
        raise _lacks(place, gold, "gold", columns)
    gold = gold or (GOLD if GOLD in columns else "")
    fields = Fields(text, keep=(gold,) if gold else ())
    stat = discover([place], fields)
    source = open_source(stat, fields)
    found = [
        Query(query.strip(), _as_names(row[gold]) if gold else None)
        for shard in source.shards(_WHOLE_BYTES)
        for batch in source.read(shard)
        for query, row in zip(batch.texts.to_pylist(), batch.kept.to_pylist(), strict=True)
        if query and query.strip()
    ]
    if not found:
        raise SourceError(f"{place} has no queries: every {text!r} is empty.", hint="Write one query per row.")
    if gold and not any(query.right for query in found):
        raise SourceError(
            f"{place} names no right items: every {gold!r} is empty.", hint="Leave the column out of the file."
        )
    return found


def _lacks(place: str, column: str, option: str, columns: Any) -> UsageError:
    return SourceError(
        f"{place} has no column {column!r}; it has {', '.join(columns) or 'none'}.",
        hint=f"Name it: {name_option(option)} COLUMN",
    )


def _as_names(value: Any) -> tuple[str, ...]:
    """One id, or several: a source of lines keeps lists as JSON."""
    if isinstance(value, str) and value[:1] == "[":
        with suppress(ValueError):
            value = json.loads(value)
    if value is None or value == "":
        return ()
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def check_gold(ledger: Ledger, plan: Plan, queries: Sequence[Query]) -> int:
    """How many of the right items the result lacks; refuses queries of which it has none, and a result without ids."""
    wanted = {name for query in queries for name in query.right or ()}
    if not wanted:
        return 0
    if not plan.work.id:
        raise UsageError(
            f"{ledger.url} has no ids, so the right items of the queries cannot be found in it.",
            hint="Leave out the gold column, or embed again with --id FIELD.",
        )
    missing, seen = set(wanted), ""
    for batch in read_rows(ledger, plan, list(plan.work.id)):
        columns = [batch.column(name).to_pylist() for name in plan.work.id]
        names = list(map(name_item, zip(*columns, strict=True)))
        missing.difference_update(names)
        if not missing:
            return 0
        seen = seen or (names[0] if names else "")
    if missing == wanted:
        raise UsageError(
            f"{ledger.url} lacks all right items of the queries ({len(wanted):,}), such as {min(wanted)!r}.",
            hint=f"They are compared with the id, {','.join(plan.work.id)}, such as {seen!r}.",
        )
    return len(missing)


def draw_queries(plan: Plan, count: int) -> list[Query]:
    """Texts of the source itself, the same ones each time: from shards drawn at random, among the first of their items.

    The beginning of a shard is read, not all of it.
    """
    draws = random.Random(plan.id)
    shards = sorted(draws.sample(range(len(plan.shards)), min(_SHARDS, len(plan.shards))))
    each = -(-count // max(1, len(shards)))
    found = []
    for index in shards:
        beginning = list(_first_texts(plan, index, each * _DRAWN_FROM))
        found += draws.sample(beginning, min(each, len(beginning)))
    return sorted(draws.sample(found, min(count, len(found))), key=lambda query: (query.shard, query.item))


def _first_texts(plan: Plan, index: int, most: int) -> Iterator[Query]:
    """The first items of a shard that have a text, each as a query."""
    source = open_source(plan.stat, Fields.of(plan.work), plan.work.max_item_bytes)
    item = seen = 0
    for batch in source.read(plan.shards[index]):
        texts, ids = batch.texts.to_pylist(), batch.kept.select(list(plan.work.id)).to_pylist()
        for row, (text, values) in enumerate(zip(texts, ids, strict=True)):
            is_taken = batch.taken is None or bool(batch.taken[row])
            if is_taken and text and text.strip():
                own = name_item([*values.values()]) if plan.work.id else ""
                yield Query(text, own=own, shard=index, item=item)
                seen += 1
                if seen == most:
                    return
            item += 1
