"""Compute some rows of a result again from the source and compare them with what is stored."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from shardmill.core.console import Bar, duration, say
from shardmill.core.errors import ShardmillError, StoreError
from shardmill.ledger import Commit, Ledger
from shardmill.models.golden import lowest_mean, lowest_of_many, lowest_rounded
from shardmill.plan import ITEM, Plan
from shardmill.plugins import find_verb
from shardmill.results.again import RowsAgain
from shardmill.results.bad import MOST_NAMED, BadRow
from shardmill.results.drawn import draw, power, sample_size
from shardmill.results.own_items import find_own_items
from shardmill.results.reference import name_reference
from shardmill.results.report import Check
from shardmill.results.rounding import RoundedVectors
from shardmill.results.stored import pick_rows
from shardmill.results.windows import item_numbers
from shardmill.sinks.parquet import is_vector, read_part
from shardmill.tasks import open_here, open_task

# A sample that takes longer is kept this often, so that the next `verify` goes on where this one ended.
_KEEP_EVERY_S = 10.0
# Of an edition, a fourth more is drawn from the rows that are its own.
_OWN = 4
# Items that are computed to see how long the others take.
_TRIED = 4

_IF_IT_DRAWS = '; if its rows differ each time, it says so: @shardmill.task(agreement="none")'


@dataclass(slots=True)
class SampleSoFar:
    """What was compared: of the shards in the order in which `seed` draws them, the first `shards`."""

    seed: int
    shards: int = 0
    rows: int = 0
    differ: int = 0
    left_out: int = 0
    wrong: int = 0
    worst: float = 1.0
    mostly: bool = False
    first_wrong: str = ""
    named: list[BadRow] = field(default_factory=list)


def check_sample(
    ledger: Ledger, plan: Plan, commits: dict[int, Commit], asked: int | str, *, quiet: bool = True
) -> tuple[Check, dict[str, Any]]:
    """Compute rows again from the source, in float32, and compare them with what is stored.

    Of a run whose precision was asked for there are figures of what it costs.
    """
    if plan.work.query and not plan.work.id:
        return Check("sample", True, "none: without --id the rows of a query cannot be found again"), {}
    try:
        task = open_task(plan.work.task, plan.work.params)
        if all(task.agreement(commit.precision) == "none" for commit in commits.values()):
            return Check("sample", True, "none: the task's rows differ each time they are made"), {}
        return _SampleCheck(ledger, plan, commits, asked, quiet).check()
    except (ShardmillError, FileNotFoundError) as error:
        return Check("sample", False, str(error).partition("\n")[0]), {}
    except Exception as error:
        if not find_verb(plan.work.task).runs_code:
            raise
        said = f"the task fails when rows are computed again: {type(error).__name__}: {error}"
        return Check("sample", False, said), {}


class _SampleCheck:
    def __init__(self, ledger: Ledger, plan: Plan, commits: dict[int, Commit], asked: int | str, quiet: bool) -> None:
        self._ledger, self._plan, self._commits, self._quiet = ledger, plan, commits, quiet
        self._task = open_task(plan.work.task, plan.work.params)
        # Of a part of the source, only items with rows can be computed again.
        self._counts = [(c := commits[s.index]).rows - (c.dropped if plan.work.takes_part else 0) for s in plan.shards]
        self._total = sum(self._counts)
        self._asked = sample_size(asked, self._total)
        parts = "".join(commits[shard.index].digest for shard in plan.shards)
        self._of = {
            "plan": plan.id,
            "generation": plan.generation,
            "parts": hashlib.sha256(parts.encode()).hexdigest()[:16],
            "rows": self._asked,
        }
        self._own = 0
        self._reference = self._task.for_reference()
        self._rounded = RoundedVectors.of(self._task)
        self._again = self._computing(self._rounded)

    def _computing(self, rounded: RoundedVectors | None) -> RowsAgain:
        return RowsAgain(self._ledger, self._plan, self._reference, self._task.distance, self._asked, rounded=rounded)

    def check(self) -> tuple[Check, dict[str, Any]]:
        so_far = self._take_up()
        before = so_far.rows
        device = open_here(self._reference, precise=True, reference=True)
        try:
            drawn = [(shard, self._items(shard, rows)) for shard, rows in draw(self._counts, self._asked, so_far.seed)]
            drawn = self._with_own(drawn, so_far.seed)
            left = drawn[so_far.shards :]
            reference = name_reference(self._reference, device, {commit.kernel for commit in self._commits.values()})
            if left and not self._quiet:
                rows = sum(len(items) for _, items in left)
                say(f"Computing {rows:,} rows again {reference}: about {duration(self._estimate_s(left))}.")
            kept_at = time.monotonic()
            with Bar("computing again", quiet=self._quiet) as bar:
                for shard, items in left:
                    self._compare(shard, items, so_far)
                    so_far.shards += 1
                    bar.count(so_far.rows, self._asked, "rows")
                    if time.monotonic() - kept_at >= _KEEP_EVERY_S:
                        kept_at = time.monotonic()
                        self._keep(so_far)
        finally:
            # What fails now changes nothing of what was compared.
            with suppress(Exception):
                self._reference.close()
        self._forget()
        figures = self._rounded.measure() if self._rounded is not None else {}
        return self._judge(so_far, reference, before, figures), figures

    def _items(self, shard: int, rows: Sequence[int]) -> Sequence[int]:
        """The numbers of items, of which some are drawn by their places among those with rows."""
        if not self._plan.work.takes_part:
            return rows
        batches = read_part(self._ledger.store, self._commits[shard], [ITEM])
        there = np.unique(np.concatenate([np.zeros(0, np.int64), *map(item_numbers, batches)]))
        return [int(there[row]) for row in rows]

    def _with_own(self, drawn: list[tuple[int, Sequence[int]]], seed: int) -> list[tuple[int, Sequence[int]]]:
        """Of an edition, also some items whose rows it made itself: few items in many may be new."""
        made = [c - self._commits[s.index].reused for c, s in zip(self._counts, self._plan.shards, strict=True)]
        if not self._plan.work.edition or self._asked >= self._total:
            return drawn
        items: dict[int, Sequence[int]] = dict(drawn)
        for shard, rows in draw(made, min(sum(made), max(1, self._asked // _OWN)), seed):
            own = find_own_items(self._ledger, self._commits[shard]).tolist()
            some = random.Random(f"{seed} {shard}").sample(own, min(len(rows), len(own)))
            self._own += len(some)
            items[shard] = sorted({*items.get(shard, ()), *some})
        return sorted(items.items())

    def _estimate_s(self, drawn: Sequence[tuple[int, Sequence[int]]]) -> float:
        """How long the rest takes, by a few items of the first shard: their reading and computing apart."""
        shard, items = drawn[0]
        again = self._computing(None)

        def measure(some: Sequence[int]) -> float:
            began = time.monotonic()
            for _ in again.compare(self._plan.shards[shard], self._commits[shard], some):
                pass
            return time.monotonic() - began

        measure(items[:1])  # The first takes longer than all others.
        one, more = measure(items[:1]), items[1 : 1 + _TRIED]
        per_item = max(0.0, measure(items[: 1 + len(more)]) - one) / len(more) if more else one
        return len(drawn) * max(0.0, one - per_item) + per_item * sum(len(rows) for _, rows in drawn)

    def _compare(self, shard: int, items: Sequence[int], so_far: SampleSoFar) -> None:
        """Compare the items of one shard."""
        commit, task, plan = self._commits[shard], self._task, self._plan
        agreement = task.agreement(commit.precision)
        most = task.most_distant(commit.precision)
        cosine = lowest_rounded(task.rounded) if task.rounded else lowest_of_many(commit.precision)
        least = cosine if most is None else 1.0 - most
        differ: set[int] = set()
        wrong: dict[int, str] = {}
        compared: set[int] = set()
        for item, name, fit in self._again.compare(plan.shards[shard], commit, items):
            compared.add(item)
            own = name in task.output.names
            so_far.mostly |= own and agreement == "mostly"
            if fit >= (least if own and agreement == "close" else 1.0):
                so_far.worst = min(so_far.worst, fit)
            elif plan.work.query or (own and agreement == "mostly"):
                differ.add(item)
            elif item not in wrong:
                may_draw = own or name not in plan.kept
                said = _IF_IT_DRAWS if may_draw and find_verb(plan.work.task).runs_code else f" ({fit:.6f})"
                wrong[item] = f"shard {shard} row {item}: {name} does not match the source{said}"
        so_far.rows += len(compared)
        so_far.differ += len(differ)
        so_far.left_out += len(self._again.left_out - differ - wrong.keys())
        so_far.wrong += len(wrong)
        so_far.first_wrong = so_far.first_wrong or next(iter(wrong.values()), "")
        room = MOST_NAMED - len(so_far.named)
        so_far.named += self._name(shard, sorted(wrong)[:room]) if wrong and room else []

    def _name(self, shard: int, items: list[int]) -> list[BadRow]:
        ids = list(self._plan.work.id)
        stored = pick_rows(read_part(self._ledger.store, self._commits[shard]), items, self._plan) if ids else {}
        named: list[BadRow] = []
        for item in items:
            id = {name: stored[item][0].column(name)[0].as_py() for name in ids if item in stored}
            named.append({"shard": shard, "row": item, **({"id": id} if id else {})})
        return named

    def _judge(self, so_far: SampleSoFar, reference: str, before: int, figures: dict[str, Any]) -> Check:
        if so_far.wrong:
            more = f"; so do {so_far.wrong - 1:,} more of {so_far.rows:,} rows" if so_far.wrong > 1 else ""
            return Check("sample", False, so_far.first_wrong + more, tuple(so_far.named))
        done = so_far.rows - so_far.left_out - so_far.differ
        seen = f"{done:,} of {self._total:,} rows computed again {reference}"
        if self._task.most_distant("") is not None:
            seen += f", largest difference {1.0 - so_far.worst:.2g}"
        else:
            vectors = any(is_vector(f.type) for f in self._task.output)
            seen += f", worst cosine {so_far.worst:.6f}" if vectors else " are equal"
        if self._rounded is not None:
            seen += self._rounded.describe(figures)
            if not self._rounded.is_close(figures):
                least = lowest_mean(self._rounded.precision)
                return Check("sample", False, f"{seen}; the mean must be {least} at least")
        if so_far.mostly and so_far.differ:
            seen += f", {so_far.differ} differ"
        elif so_far.differ:
            # Such a row may have changed in the database since; if more than half differ, the check fails.
            seen += f"; {so_far.differ} of {so_far.rows} are gone or differ now"
        if so_far.left_out:
            seen += f"; {so_far.left_out} not compared: too many windows"
        if self._own:
            seen += f"; at least {self._own:,} of them lie in this edition's own parts"
        if before:
            seen += f"; {before:,} of them by a verification that was interrupted"
        return Check(
            "sample", 2 * so_far.differ <= so_far.rows, f"{seen}; {power(min(done, self._asked), self._total)}"
        )

    def _take_up(self) -> SampleSoFar:
        """What an interrupted verification of the same parts had compared; else nothing, and a seed of its own."""
        record: dict[str, Any] = self._ledger.notes.sample() or {}
        if all(record.get(name) == value for name, value in self._of.items()):
            with suppress(TypeError, KeyError):
                return SampleSoFar(**record["so_far"])
        return SampleSoFar(random.SystemRandom().getrandbits(63))

    def _keep(self, so_far: SampleSoFar) -> None:
        # Whoever may only read the folder begins anew.
        with suppress(StoreError):
            self._ledger.notes.put_sample({**self._of, "so_far": asdict(so_far)})

    def _forget(self) -> None:
        with suppress(StoreError):
            self._ledger.notes.drop_sample()
