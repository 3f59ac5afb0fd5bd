"""The device's loop for a task that runs for hours: one item at a time, each with a context of its own."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.errors import DeviceLost, DeviceOutOfMemory, ShardmillError, TaskError, no_exit
from shardmill.ledger import Claim, ItemCheckpoints, ItemReport, ItemReports, Ledger, StoredCheckpoint, Suspects
from shardmill.tasks.context import Group, LongTask
from shardmill.worker.block import CONTRACT, Block
from shardmill.worker.channel import AllDone, Stopped
from shardmill.worker.gang import Gangs, GangSeat
from shardmill.worker.pulse import quietly
from shardmill.worker.shards import OpenShards
from shardmill.worker.tally import OpenShard
from shardmill.worker.windows import Inlet, Item

# Reports are written no more often than this; each says all that came before it.
_WRITE_EVERY_S = 5.0
_LOOK_EVERY_S = 0.5


class ItemContext:
    """What a task has of its run while it works on one item; used from any thread of the task, one at a time."""

    def __init__(
        self,
        ledger: Ledger,
        shard: OpenShard,
        row: int,
        *,
        plan: str,
        stopped: Callable[[], bool],
        hold: Callable[[OpenShard, bool], bool],
        on_progress: Callable[[], None],
        on_kept: Callable[[], None],
        on_step: Callable[[str, int], None],
        seat: GangSeat | None = None,
    ) -> None:
        self._ledger, self._shard, self._row, self._plan, self._seat = ledger, shard, row, plan, seat
        self._stopped, self._hold, self._on_progress, self._on_kept = stopped, hold, on_progress, on_kept
        self._on_step = on_step
        self._stored: ItemCheckpoints | None = None
        self._reports: ItemReports | None = None
        self._write_at, self._unwritten = 0.0, False

    @property
    def shard(self) -> int:
        return self._claim.shard

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        seen = {name: float(value) if math.isfinite(value) else None for name, value in figures.items()}
        self._on_progress()
        self._shard.said = {"row": self._row, "step": int(step), "figures": seen}
        if self._reports is None:
            self._reports = self._ledger.reports.read(self._claim.shard, self._row)
        self._reports = self._reports.add(ItemReport(int(step), self._ledger.clock(), seen))
        self._unwritten = True
        if time.monotonic() >= self._write_at:
            self.write_reports()

    def checkpoint(self) -> StoredCheckpoint | None:
        stored = self._checkpoints()
        found = stored.newest
        if found is not None and found.step != stored.step:
            said = f"The checkpoint of step {stored.step} is damaged. The item goes on from that of step {found.step}."
            print(said, file=sys.stderr, flush=True)
        return found

    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> None:
        stored = self._checkpoints()
        newer = stored.step is None or step > stored.step
        if not self._hold(self._shard, newer):
            raise Stopped
        self._on_step("checkpointing", self._claim.shard)
        if not stored.keep(int(step), files):
            self._shard.lost = True
            raise Stopped
        self._on_step("checkpointed", self._claim.shard)
        self._on_progress()
        if newer:
            self._on_kept()
        self.write_reports()

    def publish(self, folder: Path) -> None:
        if not self._hold(self._shard, False):
            raise Stopped
        self._ledger.published.put(folder)
        self._on_progress()

    def join(self) -> AbstractContextManager[Group]:
        return self._seat.join() if self._seat is not None else nullcontext(Group.alone())

    def should_stop(self) -> bool:
        return self._stopped() or self._shard.lost

    def write_reports(self) -> None:
        """Write the reports that were not written yet; no run depends on them."""
        if self._reports is not None and self._unwritten:
            self._write_at, self._unwritten = time.monotonic() + _WRITE_EVERY_S, False
            quietly(self._ledger.reports.put, self._claim.shard, self._row, self._reports)

    @property
    def _claim(self) -> Claim:
        return self._shard.claim

    def _checkpoints(self) -> ItemCheckpoints:
        if self._stored is None:
            claim = self._claim
            self._stored = self._ledger.checkpoints.take_over(claim.shard, self._row, self._plan, claim.attempt)
        return self._stored


class LongItems:
    """Called from one thread. An error of an item sets it aside; one of the device or of a store ends the worker.

    Where workers have died at an item, each attempt is noted before it begins. After three deaths without a newer
    checkpoint the item is set aside too.
    """

    def __init__(
        self,
        task: LongTask,
        ledger: Ledger,
        shards: OpenShards,
        *,
        plan: str,
        stopped: Callable[[], bool],
        before_item: Callable[[], None],
        on_progress: Callable[[], None],
        on_kept: Callable[[], None],
        on_rows: Callable[[Block, int, int], None],
        on_time: Callable[[Block, float], None],
        on_step: Callable[[str, int], None],
        gangs: Gangs | None = None,
    ) -> None:
        self._task, self._ledger, self._shards, self._plan, self._gangs = task, ledger, shards, plan, gangs
        self._stopped, self._before_item = stopped, before_item
        self._on_progress, self._on_kept, self._on_step = on_progress, on_kept, on_step
        self._on_rows, self._on_time = on_rows, on_time
        self._probed: Claim | None = None

    def run(self, inlet: Inlet, hand_on: Callable[[Item], None]) -> None:
        """Work on all items up to the end."""
        while True:
            item = inlet.wait() if self._gangs is None else self._wait_or_help(inlet, self._gangs)
            if isinstance(item, Block):
                for row in item.doable().tolist():
                    self._work(item, row)
            hand_on(item)
            if isinstance(item, AllDone):
                return

    def _wait_or_help(self, inlet: Inlet, gangs: Gangs) -> Item:
        """The next item of this worker; until there is one, it helps others with theirs."""
        while (item := inlet.wait_some(_LOOK_EVERY_S)) is None:
            gangs.help(self._task, lambda: self._stopped() or not inlet.is_empty())
        return item

    def _work(self, block: Block, row: int) -> None:
        shard = self._shards[block.claim.shard]
        if shard.lost:
            return
        self._before_item()
        self._note(block, row)
        item = block.first_row + row
        seat = None
        if self._gangs is not None:
            seat = self._gangs.lead(block.claim.shard, item, lambda: self._stopped() or shard.lost)
        context = ItemContext(
            self._ledger,
            shard,
            item,
            plan=self._plan,
            stopped=self._stopped,
            hold=self._shards.hold,
            on_progress=self._on_progress,
            on_kept=lambda: self._kept(block),
            on_step=self._on_step,
            seat=seat,
        )
        began = time.perf_counter()
        try:
            with no_exit():
                made = self._task.work(block.prepared.inputs[row], context)
            block.take_in(np.array([row]), _as_row(made, self._task.output))
            self._on_rows(block, 1, 1)
        except Exception as error:
            self._judge(error, block, row, shard)
        finally:
            self._on_time(block, time.perf_counter() - began)
            context.write_reports()
            shard.said = {}
            if seat is not None:
                seat.close()
        self._clear(block)

    def _judge(self, error: Exception, block: Block, row: int, shard: OpenShard) -> None:
        """What an error of the task means: the item is set aside, or goes on later, or the worker ends."""
        if shard.lost:
            return
        if self._stopped() and not isinstance(error, TaskError):
            raise Stopped from error
        if isinstance(error, Stopped):
            # Who was paused finds another at the head of its gang before it hears that its lease has run out.
            if not self._shards.hold(shard, got_further=False):
                return
            raise TaskError(
                "The task raised Stopped though nothing asked it to stop.", hint="Ask `context.should_stop()` first."
            ) from error
        passes = isinstance(error, ShardmillError) and not isinstance(error, TaskError | DeviceOutOfMemory)
        if passes or isinstance(error, MemoryError):
            if not isinstance(error, DeviceLost):
                self._clear(block)
            raise error
        ours = isinstance(error, ShardmillError)
        said = " ".join(str(error).splitlines()) if ours else f"{type(error).__name__}: {error}"
        block.bad.setdefault(row, said[:500])

    # the search for items that kill

    def _note(self, block: Block, row: int) -> None:
        """Record that this item is about to be worked on, if workers have died here before."""
        if (suspects := block.suspects) is None:
            return
        if self._probed != block.claim:
            self._probed = block.claim
            self._ledger.suspects.put(block.claim.shard, replace(suspects, probes=suspects.probes + 1))
            self._task.probe()
        noted = (block.first_row + row,)
        strikes = suspects.strikes if suspects.rows == noted else 0
        self._ledger.suspects.put(block.claim.shard, Suspects(noted, strikes + 1, 0, suspects.poison))

    def _kept(self, block: Block) -> None:
        self._clear(block)
        self._on_kept()

    def _clear(self, block: Block) -> None:
        """Nobody died of the item since it was last noted, or it got further."""
        if block.suspects is not None:
            self._ledger.suspects.put(block.claim.shard, Suspects(poison=block.suspects.poison))


def _as_row(made: Mapping[str, Any], output: pa.Schema) -> pa.RecordBatch:
    if set(made) != set(output.names):
        raise TaskError(f"The task returned {sorted(made)} and not {sorted(output.names)}.", hint=CONTRACT)
    try:
        return pa.RecordBatch.from_pylist([dict(made)], schema=output)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TaskError(f"The task returned what does not fit its columns: {error}", hint=CONTRACT) from error
