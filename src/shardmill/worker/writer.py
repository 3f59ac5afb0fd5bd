"""The sink's side of a worker: writes finished blocks and commits whole shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from shardmill.core.errors import too_many_errors
from shardmill.core.telemetry import open_trace
from shardmill.ledger import Commit, Editions, Ledger
from shardmill.plan import Plan
from shardmill.plan.salt import salt_of
from shardmill.plan.spec import ErrorLimit
from shardmill.results.recovery import recover_lineage
from shardmill.sinks.address import find_writer
from shardmill.sinks.base import Sink, SinkContext
from shardmill.sinks.earlier import EarlierRows
from shardmill.sinks.parquet import StagedPart, part_schema
from shardmill.sinks.whole import WholeShard
from shardmill.sources import kept_schema
from shardmill.sources.unchanged import find_unchanged
from shardmill.tasks.base import Task
from shardmill.worker.block import Block
from shardmill.worker.channel import ShardEnd
from shardmill.worker.pulse import quietly
from shardmill.worker.shards import OpenShards
from shardmill.worker.tally import OpenShard, Tally

_COUNT_EVERY_S = 60.0


def open_sink(
    ledger: Ledger,
    plan: Plan,
    task: Task,
    *,
    batch_rows: int,
    worker: str,
    on_step: Callable[[str, int], None],
    stopped: Callable[[], bool],
) -> Sink:
    """The sink of a plan, as this worker writes to it."""
    context = SinkContext(
        ledger=ledger,
        plan=plan,
        kept=kept_schema(plan),
        output=task.output,
        written=task.written,
        numerics=task.numerics,
        salt=salt_of(plan),
        rows_vary=task.rows_vary or plan.work.takes_part,
        batch_rows=batch_rows,
        worker=worker,
        on_step=on_step,
        stopped=stopped,
    )
    opened: Sink = find_writer(plan.work).part("writer")(context)
    return opened


def open_earlier(ledger: Ledger, plan: Plan, task: Task, worker: str) -> EarlierRows | None:
    """The rows of the edition that the one of this ledger is made from; None of a first one, or of a copy of any."""
    if not plan.work.edition or Editions(ledger.url).number_of(ledger.url) == 1:
        return None
    stored = part_schema(kept_schema(plan), task.output, numbered=task.rows_vary or plan.work.takes_part)
    return EarlierRows(ledger, task.output, stored, recover_lineage, find_unchanged, worker)


class Writer:
    """Called from one thread, with the blocks of each shard in order. Raises if too many rows failed."""

    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        output: pa.Schema,
        shards: OpenShards,
        tally: Tally,
        *,
        worker: str,
        device: str,
        numerics: Mapping[str, str],
        max_errors: str,
        few_rows: int,
        on_step: Callable[[str, int], None],
        earlier: EarlierRows | None = None,
    ) -> None:
        self._earlier = earlier
        self._ledger, self._plan, self._output = ledger, plan, output
        self._shards, self._tally = shards, tally
        self._worker, self._device = worker, device
        self._max_errors, self._limit = max_errors, ErrorLimit.parse(max_errors)
        self._few_rows = few_rows
        self._on_step, self._numerics = on_step, numerics
        self._others = self._committed = (0, 0)
        # Items that are not taken cannot fail.
        self._untaken, self._takes_part = 0, plan.work.takes_part
        self._count_at = 0.0

    def write(self, block: Block) -> None:
        shard = self._shards[block.claim.shard]
        if shard.lost:
            return
        started = time.perf_counter()
        for rows, items, recipe in block.finish(self._output):
            shard.staged.write(rows, items + block.first_row, *([] if recipe is None else [recipe]))
            shard.part_rows += rows.num_rows if recipe is None else recipe.rows
        done = shard.add(block, self._plan)
        refused = shard.staged.finish(done)
        shard.add_errors(refused)
        self._tally.add(block)
        self._untaken += 0 if block.taken is None else int((~block.taken).sum())
        self._tally.add_errors([*done.errors.values(), *refused])
        self._tally.errors += len(refused)
        shard.write_s += time.perf_counter() - started
        if block.bad or refused:
            self._check_errors(shard)

    def _check_errors(self, shard: OpenShard) -> None:
        rows, errors = self._count_others()
        errors, rows = self._tally.errors + errors, self._tally.rows - self._untaken + rows
        if self._limit.exceeded(errors, max(rows, self._few_rows)):
            raise too_many_errors(errors, rows, self._max_errors, shard.last_reason, self._ledger.url)

    def _count_others(self) -> tuple[int, int]:
        """Rows and errors that other workers have committed; read at an error now and then, as each is a request."""
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _COUNT_EVERY_S
            segments = self._ledger.segments
            done = segments.read(len(self._plan.shards)).values()
            quietly(segments.seal)
            own_rows, own_errors = self._committed
            rows = sum(d.rows - self._takes_part * d.dropped for d in done)
            self._others = rows - own_rows, sum(d.errors for d in done) - own_errors
        return self._others

    def end(self, end: ShardEnd) -> None:
        """Commit a shard whose blocks are all written, unless another worker has."""
        shard = self._shards[end.claim.shard]
        if shard.lost:
            self._shards.give_up(shard)
            return
        if end.whole is not None:
            self._take_over(shard, end.whole)
        self._commit(shard, end.lines if end.whole is None else end.whole.commit.lines)

    def _take_over(self, shard: OpenShard, whole: WholeShard) -> None:
        """Have all rows of a shard of the edition before; nothing of it was read."""
        assert isinstance(shard.staged, StagedPart)
        shard.staged.take_over(whole.recipe, whole.lineage)
        shard.take_over(whole)
        self._tally.add_whole(whole)
        self._untaken += whole.commit.rows - whole.reused - len(whole.errors)
        if whole.errors:
            self._check_errors(shard)

    def _commit(self, shard: OpenShard, lines: int) -> None:
        started = time.perf_counter()
        claim = shard.claim
        self._on_step("staging", claim.shard)
        # The reader has seen all lines, also those of rows that earlier attempts finished.
        shard.lines = lines
        if (sealed := shard.staged.seal(lines)) is not None:
            shard.count_as(sealed)
        self._on_step("staged", claim.shard)
        errors_file = self._ledger.errors.put(claim, bytes(shard.error_lines)) if shard.errors else ""
        self._on_step("committing", claim.shard)
        shard.write_s += time.perf_counter() - started
        numerics = self._numerics
        if shard.reused and self._earlier is not None:
            numerics = self._earlier.numerics_with(numerics)
        record = shard.record(
            self._plan, worker=self._worker, device=self._device, errors_file=errors_file, numerics=numerics
        )
        won = shard.staged.commit(record)
        self._on_step("committed", claim.shard)
        if not won and errors_file:
            quietly(self._ledger.store.delete, errors_file)
        if won:
            self._tally.commits += 1
            rows = record.rows - self._takes_part * record.dropped
            self._committed = self._committed[0] + rows, self._committed[1] + record.errors
            self._roll_up()
            self._trace(record)
        self._shards.close_committed(shard, record.seconds, won)

    def _trace(self, record: Commit) -> None:
        if (trace := open_trace(self._plan.id, self._plan.generation)) is None:
            return
        trace.add_shard(
            record.shard,
            len(self._plan.shards),
            record.finished_at - record.seconds,
            record.finished_at,
            rows=record.rows,
            errors=record.errors,
            tokens=record.tokens,
            worker=self._worker,
            device=self._device,
        )

    def _roll_up(self) -> None:
        """Seal what workers have committed, if it is this one's turn; on a thread of its own, since nothing waits."""
        segments, shards = self._ledger.segments, len(self._plan.shards)
        if segments.is_turn(shards):
            threading.Thread(target=quietly, args=(segments.catch_up, shards), name="roll up", daemon=True).start()
