"""What a sink owes that workers write to themselves: every shard exactly once, whatever becomes of their attempts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.ledger import Claim, Commit, Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import make_spec
from shardmill.run import prepare
from shardmill.sinks.base import Finished, Sink, Staged
from shardmill.sinks.digests import TEXT_DIGEST, digest_items
from shardmill.sources import Fields, open_source
from shardmill.tasks import open_task
from shardmill.tasks.base import Task
from shardmill.worker.writer import open_sink

_ROWS, _SHARD_BYTES, _BLOCK_ROWS, _BATCH_ROWS = 60, 400, 5, 4


class Checks:
    """Counts what holds, and says what does not."""

    def __init__(self) -> None:
        self.made = 0

    def that(self, holds: bool, what: str) -> None:
        self.made += 1
        assert holds, what


def check_writer(to: Mapping[str, Any] | None, folder: str | os.PathLike[str]) -> int:
    """Check that a sink that workers write to has every row once after attempts that failed, raced and came late.

    `to` is the `[work.to]` of a spec, with the address and an empty table; None for the parts of the run folder.
    """
    checks, place = Checks(), Path(folder)
    source = place / "items.jsonl"
    source.write_text("".join(f'{{"id": {n}, "text": "item {n}"}}\n' for n in range(_ROWS)))
    work: dict[str, Any] = {"source": str(source), "text": "text", "id": "id", "keep": "text"}
    work |= {"task": "shardmill.testing:FakeTask", **({"to": dict(to)} if to is not None else {})}
    run = prepare(make_spec(work, {"device": "cpu", "shard_bytes": _SHARD_BYTES}), place / "run")
    ledger = Ledger(run.ledger.url)
    plan, _ = ledger.settle()
    task = open_task(plan.work.task, plan.work.params)
    task.open(Device("cpu", "cpu", 1))
    checks.that(len(plan.shards) >= 4, "the source has several shards")

    def begin(shard: int, attempt: str) -> _Attempt:
        return _Attempt(ledger, plan, task, shard, attempt)

    first = begin(0, "a")
    first.write()
    checks.that(first.commit(), "the first attempt at a shard is committed")
    late = begin(0, "b")
    late.write()
    checks.that(not late.commit(), "an attempt that comes late is not")

    given_up = begin(1, "a")
    given_up.write(most=_BLOCK_ROWS + 2)
    given_up.abandon()
    checks.that(not ledger.commits.is_done(1), "an attempt that is given up commits nothing")
    again = begin(1, "b")
    again.write()
    checks.that(again.commit(), "the next attempt at its shard is committed")

    killed = begin(2, "a")
    killed.write()
    killed.seal()
    after = begin(2, "b")
    after.write()
    checks.that(after.commit(), "a worker that dies before its commit is replaced")

    slow, quick = begin(3, "a"), begin(3, "b")
    slow.write(most=_BLOCK_ROWS)
    quick.write()
    checks.that(quick.commit(), "of two attempts at once, the first to end is committed")
    slow.write()
    checks.that(not slow.commit(), "and the other is not")

    for shard in range(4, len(plan.shards)):
        rest = begin(shard, "a")
        rest.write()
        checks.that(rest.commit(), f"shard {shard} is committed")
    commits = Ledger(ledger.url).commits.read_complete(plan)
    checks.that(sum(commit.rows for commit in commits) == _ROWS, "every item is counted once")
    report = run.verify(sample=0)
    for found in report.checks:
        checks.that(found.ok, f"read back for verify, {found.name}: {found.seen}")
    task.close()
    return checks.made


class _Attempt:
    """One attempt at one shard, by a worker of its own."""

    def __init__(self, ledger: Ledger, plan: Plan, task: Task, shard: int, attempt: str) -> None:
        self._ledger, self._plan, self._shard, self._name = ledger, plan, shard, attempt
        self._task = task
        self._sink: Sink = open_sink(
            *(ledger, plan, task),
            batch_rows=_BATCH_ROWS,
            worker=f"worker-{attempt}",
            on_step=lambda step, shard: None,
            stopped=lambda: False,
        )
        self._staged: Staged = self._sink.begin(Claim(shard, attempt))
        self._at = self._staged.done
        self._sealed: tuple[int, int] | None = None

    def write(self, most: int = _ROWS) -> None:
        """Write the items that are left, at most this many, in blocks."""
        rows = pa.Table.from_batches(self._rows())
        stop = min(rows.num_rows, self._at + most)
        while self._at < stop and not self._staged.complete:
            count = min(_BLOCK_ROWS, stop - self._at)
            self._staged.write(rows.slice(self._at, count), np.arange(self._at, self._at + count))
            self._staged.finish(Finished(self._at, count, {}, lambda item, reason: {"reason": reason}, inputs=count))
            self._at += count

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the whole shard, as a worker makes them."""
        source = open_source(self._plan.stat, Fields.of(self._plan.work))
        for batch in source.read(self._plan.shards[self._shard]):
            texts = batch.texts.to_pylist()
            kept = batch.kept.select([*self._plan.kept])
            if self._plan.work.to is not None:
                kept = kept.append_column(TEXT_DIGEST, digest_items(batch.texts, None, self._sink.salt))
            made = self._task.run(self._task.prepare(texts).inputs).rows
            yield pa.RecordBatch.from_arrays(
                [*kept.columns, *made.columns], schema=pa.schema([*kept.schema, *made.schema])
            )

    def seal(self) -> None:
        lines = sum(batch.num_rows for batch in self._rows())
        sealed = self._staged.seal(lines)
        self._sealed = (lines, lines) if sealed is None else (sealed.rows, sealed.lines)

    def commit(self) -> bool:
        """Commit the shard; whether this attempt was the first."""
        self.seal()
        assert self._sealed is not None
        rows, lines = self._sealed
        record = Commit(
            shard=self._shard,
            plan=self._plan.id,
            generation=self._plan.generation,
            attempt=self._name,
            part="",
            digest="",
            part_bytes=0,
            rows=rows,
            lines=lines,
            errors=0,
            errors_file="",
            tokens=0,
            truncated=0,
            worker=f"worker-{self._name}",
            device="cpu",
            finished_at=time.time(),
            seconds=0.0,
            timings={},
            inputs=rows,
        )
        won = self._staged.commit(record)
        self._sink.close()
        return won

    def abandon(self) -> None:
        self._staged.abandon()
        self._sink.close()
