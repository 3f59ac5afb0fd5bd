"""Reads all parts of a run, and its source, for `verify`: in this process, or by helpers on all cores if it takes long.

Design: docs/design/proof-and-trust.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from shardmill.core.console import Bar, duration, say
from shardmill.core.devices import cores
from shardmill.core.helpers import Helpers
from shardmill.core.pool import in_order
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan, Shard
from shardmill.results.items import ReadItems, hash_groups, hash_items_of
from shardmill.results.parts import Compared, ReadPart, read_part_once
from shardmill.store import open_store
from shardmill.tasks import open_task

# To hash and compare an item of the source takes about this long besides what reading it took the workers; and this
# long a part, and each of its rows.
_S_PER_ITEM, _S_PER_PART, _S_PER_ROW = 4e-6, 3e-3, 3e-6
# What takes less time is not worth the start of helpers. A question to one has this many rows.
_ALONE_S = 5.0
_ROWS_AT_ONCE = 20_000

_PARTS, _ITEMS = "parts", "items"


class FullRead:
    """Reads the parts of these commits, and the items of their shards, in order; each only once."""

    def __init__(self, ledger: Ledger, plan: Plan, commits: Mapping[int, Commit], *, source: bool) -> None:
        self._ledger, self._plan, self._commits = ledger, plan, commits
        self.source_s = _source_s(commits) if source else 0.0
        parts = commits.values() if plan.work.to is None else ()
        parts_s = sum(_S_PER_PART + commit.rows_in_part * _S_PER_ROW for commit in parts)
        self._helpers: Helpers | None = None
        if cores() > 1 and not ledger.url.startswith("memory:") and self.source_s + parts_s > _ALONE_S:
            self._helpers = Helpers("shardmill.results.reading:help_reading", (ledger.url, replace(plan, shards=())))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._helpers is not None:
            self._helpers.close()

    def announce(self) -> None:
        """Say what reading the source again will take, by what it took the workers."""
        stat = self._plan.stat
        items = sum(commit.rows for commit in self._commits.values())
        size = f"{stat.size_bytes:,} bytes, " if stat.size_bytes else ""
        took = duration(self.source_s / (cores() if self._helped else 1))
        say(f"The whole source is read again: {size}{items:,} items, about {took}; --no-source leaves this out.")

    def parts(self) -> Iterator[ReadPart]:
        asked = [self._commits[shard] for shard in sorted(self._commits)]
        if self._helpers is not None:
            return self._ask(_PARTS, asked, [commit.rows_in_part for commit in asked])
        return in_order(_part_reader(self._ledger, self._plan), asked)

    def items(self, bar: Bar) -> Iterator[ReadItems]:
        plan = self._plan
        if plan.work.group_by:
            yield from hash_groups(plan, self._commits, bar)
        elif self._helped:
            yield from self._ask(_ITEMS, plan.shards, [self._commits[shard.index].rows for shard in plan.shards])
        else:
            yield from map(hash_items_of(plan), plan.shards)

    @property
    def _helped(self) -> bool:
        """Whether helpers read the source. The rows of a query come through one connection."""
        return self._helpers is not None and not self._plan.work.query and not self._plan.work.group_by

    def _ask(self, what: str, asked: Sequence[Commit] | Sequence[Shard], rows: Sequence[int]) -> Iterator[Any]:
        assert self._helpers is not None
        for answers in in_order(self._helpers.call, _spans(what, asked, rows)):
            yield from answers


def _spans(
    what: str, asked: Sequence[Commit] | Sequence[Shard], rows: Sequence[int]
) -> Iterator[tuple[str, Sequence[Commit] | Sequence[Shard]]]:
    first, held = 0, 0
    for place, more in enumerate(rows):
        held += more
        if held >= _ROWS_AT_ONCE or place == len(rows) - 1:
            yield what, asked[first : place + 1]
            first, held = place + 1, 0


def help_reading(given: tuple[str, Plan]) -> Callable[[tuple[str, Iterable[Any]]], list[Any]]:
    """What a helper does: it reads the parts of the commits, or the items of the shards, that it gets."""
    url, plan = given
    readers: dict[str, Callable[[Any], Any]] = {}

    def answer(question: tuple[str, Iterable[Any]]) -> list[Any]:
        what, asked = question
        if what not in readers:
            # Not the edition that is read: the one that is asked for.
            readers[what] = _part_reader(Ledger(open_store(url)), plan) if what == _PARTS else hash_items_of(plan)
        return [readers[what](each) for each in asked]

    return answer


def _part_reader(ledger: Ledger, plan: Plan) -> Callable[[Commit], ReadPart]:
    task = open_task(plan.work.task, plan.work.params)
    compared: Compared = {}
    return lambda commit: read_part_once(ledger, plan, task, commit, compared)


def _source_s(commits: Mapping[int, Commit]) -> float:
    return sum(commit.timings.get("read_s", 0.0) + commit.rows * _S_PER_ITEM for commit in commits.values())
