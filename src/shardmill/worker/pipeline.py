"""The stages of a worker and the queues between them; only here do read, batch, run and commit meet.

reader thread      claim a shard, read it              ─┐ bounded
preparing thread   tokenize                            ─┤ queues,
main thread        batch and run on the device         ─┤ over
writing thread     write the part, commit              ─┘ shard edges
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from shardmill.core import startup
from shardmill.core.batching import Budget
from shardmill.core.devices import Device, cores, format_cpus
from shardmill.core.errors import DeviceLost
from shardmill.ledger import Claim, Ledger, Search, Suspects
from shardmill.plan.spec import Execution
from shardmill.plugins import check_packages
from shardmill.sinks.base import Sink, Staged
from shardmill.sinks.earlier import EarlierRows
from shardmill.sources import Fields, Source, open_source
from shardmill.tasks import open_task
from shardmill.tasks.base import Task
from shardmill.tasks.context import LongTask
from shardmill.worker.again import ReadAgain
from shardmill.worker.at_fault import opening
from shardmill.worker.block import Block, ReadBatch, cut_batch
from shardmill.worker.channel import AllDone, Channel, ShardEnd, Stopped
from shardmill.worker.choice import Choice
from shardmill.worker.gang import Gangs
from shardmill.worker.long import LongItems
from shardmill.worker.meter import Meter
from shardmill.worker.preparing import make_block, read_item
from shardmill.worker.pulse import Pulse, log, quietly
from shardmill.worker.runner import Runner, find_suspects
from shardmill.worker.shards import OpenShards
from shardmill.worker.since import leave_out
from shardmill.worker.streaming import Streamer
from shardmill.worker.tally import Tally, describe_process
from shardmill.worker.wanted import check_model, check_wanted, fail_run, is_precise
from shardmill.worker.windows import Inlet, Item, WindowLoop
from shardmill.worker.writer import Writer, open_earlier, open_sink

_REPORT_S = 5.0
# A process ends eight seconds after it was told to stop.
_KEEP_S = 6.0


class Worker:
    """Works on a run until all its shards are committed, by this worker or another.

    A worker of a pool `leaves` once it can claim nothing, or when that says so; its `task` may be open from before.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        device: Device,
        name: str | None = None,
        slot: float = 0.0,
        parent: int | None = None,
        on_step: Callable[[str, int], None] = lambda step, shard: None,
        on_stuck: Callable[[], None] | None = None,
        leaves: Callable[[], bool] | None = None,
        task: Task | None = None,
    ) -> None:
        self.ledger, self.device = ledger, device
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.on_step = on_step
        self._on_stuck = on_stuck or self.stop
        self._watched = parent is not None and not os.environ.get("SHARDMILL_DETACHED")
        self.plan, settings = ledger.settle()
        check_packages(self.plan.packages)
        self.execution = Execution(**settings)
        work, lease_s = self.plan.work, self.execution.lease_s
        self.task: Task = task or open_task(work.task, work.params)
        self.task.join(ledger, self.plan)
        alone = self.task.one_shard
        self.choice = Choice(ledger, self.plan, self.name, kind=device.kind, slot=slot, lease_s=lease_s, alone=alone)
        self.source: Source = open_source(self.plan.stat, Fields.of(work), work.max_item_bytes)
        self.told_to_stop = threading.Event()
        self._stop = threading.Event()
        share = self.execution.read_ahead or 1.0
        self._read: Channel[ReadBatch | ShardEnd | AllDone] = Channel(max(1, int(4 * share)), self._stop)
        self._ready: Channel[Item] = Channel(max(1, int(8 * share)), self._stop)
        self._inlet = Inlet(self._ready)
        self._made: Channel[Item] = Channel(max(1, int(8 * share)), self._stop)
        self._tally, self._meter = Tally(), Meter(device)
        self._started = self._tally.began
        self.leaves, self._rested = leaves, threading.Event()
        self._shards = OpenShards(
            *(ledger, self.choice, self._tally),
            worker=self.name,
            lease_s=lease_s,
            stop=self._stop,
            leaves=leaves,
            alone=alone,
        )
        self._earlier: EarlierRows | None = None
        self._sink_wait_s, self._state = 0.0, "starting"
        self._gangs = self._open_gangs() if isinstance(self.task, LongTask) and self.task.gang else None
        self._search: Search | None = None
        self._failure: BaseException | None = None
        self._pulse = Pulse(
            *(ledger, self.name, self.execution),
            plan=self.plan,
            parent=parent,
            rest_s=self.choice.beat_s,
            crowd=self.choice.crowd,
            describe=self._describe,
            renew=self._shards.renew,
            orphaned=self.stop,
            stuck=self._end_stuck,
        )

    def _open_gangs(self) -> Gangs:
        return Gangs(
            *(self.ledger, self.name),
            lease_s=self.execution.lease_s,
            least=self.execution.min_workers or 1,
            most=self.execution.workers or sys.maxsize,
            read_item=lambda shard, row: read_item(self.source, self.plan, self.task, shard, row),
            on_progress=lambda: self._pulse.progress(),
            on_further=self._on_kept,
        )

    def stop(self) -> None:
        """Tell the worker to end soon. Another thread releases its leases first: this one may be needed, or busy."""
        self._halt()
        if self.told_to_stop.is_set():
            return
        self.told_to_stop.set()
        threading.Thread(target=self._leave, name="leave", daemon=True).start()

    def _leave(self) -> None:
        """Release the leases, and report why: a lease that cannot be released is then no strike against its shard.

        Who works on an item for hours keeps what it has first, which only a holder may do.
        """
        if self.task.one_shard:
            quietly(self._pulse.beat)
            self._rested.wait(_KEEP_S)
        self._shards.release()
        quietly(self._pulse.beat)

    def _halt(self) -> None:
        """Make all stages end."""
        self._stop.set()
        self._shards.wake()

    def work(self) -> bool:
        """Work until all is committed (True) or the worker is asked to stop (False).

        Raises if the run is not wanted; a final error of this worker's ends the run for all.
        """
        self._search = check_wanted(self.ledger, self.name, self.execution.max_restarts, watched=self._watched)
        self._pulse.start()
        try:
            self._state = "loading"
            if self.ledger.workers.is_turn():
                quietly(self.ledger.workers.roll_up)
            check_model(self.ledger, self.plan, self.task)
            precise = is_precise(self.execution, self.task)
            with opening(), startup.doing(startup.LOADING):
                left = self.choice.left_bytes(self.execution.workers or self.device.sharing)
                self.task.open(replace(self.device, precise=precise, work_bytes=left))
            self.sink: Sink = open_sink(
                *(self.ledger, self.plan, self.task),
                batch_rows=self.execution.batch_rows,
                worker=self.name,
                on_step=self.on_step,
                stopped=self._stop.is_set,
            )
            self._earlier = open_earlier(self.ledger, self.plan, self.task, self.name)
            self.source = leave_out(self.source, self.plan, self._earlier.seen if self._earlier is not None else None)
            budget = Budget(self.execution.batch_tokens or self.task.batch_budget)
            self.runner = Runner(
                *(self.task, self.ledger, budget),
                before_batch=self._before_batch,
                on_rows=self._on_rows,
                is_wanted=lambda block: not self._shards[block.claim.shard].lost,
            )
            self.writer = Writer(
                *(self.ledger, self.plan, self.task.written, self._shards, self._tally),
                worker=self.name,
                device=self.device.name,
                numerics=self.task.numerics,
                max_errors=self.execution.max_errors,
                few_rows=self.task.few_rows,
                on_step=self.on_step,
                earlier=self._earlier,
            )
            self._state, self._tally.began = "working", time.time()
            stages = [self._start(self._read_shards), self._start(self._prepare), self._start(self._write)]
            self._guard(self._run)
            self._rested.set()
            for stage in stages:
                stage.join()
            if self._failure is not None:
                raise self._failure
            self._state = "stopped" if self._stop.is_set() else "done"
            return self._state == "done"
        except BaseException as error:
            self._state, self._failure = "failed", self._failure or error
            fail_run(self.ledger, self.name, self._failure)
            raise
        finally:
            self._halt()
            self._rested.set()
            if hasattr(self, "sink"):
                self.sink.close()
            if self._earlier is not None:
                self._earlier.close()
            self._pulse.end()
            self._give_back()
            self._pulse.close()

    def _end_stuck(self, idle_s: float) -> None:
        """Report that nothing moves any more, end the leases as a death does, and end, though a thread hangs."""
        self._failure = DeviceLost(f"No progress for {idle_s:.0f} s.", hint="See `stuck_s`.")
        self._state = "failed"
        log(f"no progress for {idle_s:.0f} s: ended")
        report = threading.Thread(target=self._report_stuck, name="report", daemon=True)
        report.start()
        report.join(_REPORT_S)
        self._on_stuck()

    def _report_stuck(self) -> None:
        quietly(self.ledger.leases.record_death, self.name)
        quietly(self._pulse.beat)

    def _start(self, stage: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guard, args=(stage,), name=stage.__name__.strip("_"), daemon=True)
        thread.start()
        return thread

    def _guard(self, stage: Callable[[], None]) -> None:
        try:
            stage()
        except Stopped:
            pass
        except BaseException as error:
            self._failure = self._failure or error
            self._halt()

    # reader thread

    def _read_shards(self) -> None:
        while (claim := self._shards.next_claim(lambda: not self._ready.is_empty())) is not None:
            suspects, staged = self._begin(claim)
            shard = self._shards.open(claim, staged)
            self._pulse.progress()
            self.on_step("claimed", claim.shard)
            whole = None if staged.done or self._earlier is None else self._earlier.find_whole(claim.shard)
            first_row, lines, started = 0, 0, time.perf_counter()
            again = ReadAgain(claim.shard, staged, self.plan.kept)
            for batch in () if staged.complete or whole else self.source.read(self.plan.shards[claim.shard]):
                shard.read_s += time.perf_counter() - started
                again.skip(batch, first_row)
                left = batch.after(staged.done - first_row)
                shard.bytes_run += batch.size_bytes - left.size_bytes
                if len(left) or not staged.done:
                    rate = self._tally.rates()["rows_per_s"]
                    for read in cut_batch(left, claim, first_row + len(batch) - len(left), suspects, self.task, rate):
                        self._read.put(read)
                first_row, lines = first_row + len(batch), lines + batch.line_count
                started = time.perf_counter()
                if shard.lost:
                    break
            self._read.put(ShardEnd(claim, lines, whole))
        self._read.put(AllDone())

    def _begin(self, claim: Claim) -> tuple[Suspects | None, Staged]:
        try:
            return find_suspects(self.ledger, claim), self.sink.begin(claim)
        except BaseException:
            self._shards.turn_down(claim)
            raise

    # preparing thread

    def _prepare(self) -> None:
        into_table = self.plan.work.to is not None
        while not isinstance(item := self._read.get(), AllDone):
            if isinstance(item, ReadBatch):
                started = time.perf_counter()
                block = make_block(
                    *(item, self.task, self.plan.kept, self.sink),
                    into_table=into_table,
                    earlier=self._earlier,
                )
                self._shards[item.claim.shard].prepare_s += time.perf_counter() - started
                self._ready.put(block)
            else:
                self._ready.put(item)
        self._ready.put(item)

    # main thread: the device

    def _run(self) -> None:
        inlet = self._inlet
        inlet.has_run = lambda: bool(self.runner.load.batches)
        if isinstance(self.task, LongTask):
            items = LongItems(
                *(self.task, self.ledger, self._shards),
                plan=self.plan.id,
                stopped=self._stop.is_set,
                before_item=self._before_batch,
                on_progress=self._pulse.progress,
                on_kept=self._on_kept,
                on_rows=self._on_rows,
                on_time=self._on_time,
                on_step=self.on_step,
                gangs=self._gangs,
            )
            items.run(inlet, lambda item: self._hand_on([item]))
        elif self.task.streams:
            Streamer(
                self.task,
                self.runner,
                next_item=inlet.next,
                hand_on=lambda item: self._hand_on([item]),
                on_time=self._on_time,
            ).run()
        else:
            WindowLoop(inlet, self.runner, hand_on=self._hand_on, on_time=self._on_time).run()

    def _hand_on(self, items: list[Block | ShardEnd | AllDone]) -> None:
        began = time.perf_counter()
        for item in items:
            self._made.put(item)
        self._sink_wait_s += time.perf_counter() - began
        items.clear()

    def _on_time(self, block: Block, seconds: float) -> None:
        self._shards[block.claim.shard].device_s += seconds

    def _before_batch(self) -> None:
        if self._stop.is_set():
            raise Stopped
        self._pulse.progress()
        self.on_step("batch", -1)

    def _on_kept(self) -> None:
        """Count a checkpoint. Whoever judges a dead worker asks whether it has kept any."""
        self._tally.checkpoints += 1
        if self._tally.checkpoints == 1:
            quietly(self._pulse.beat)

    def _on_rows(self, block: Block, rows: int, cost: int) -> None:
        shard = self._shards[block.claim.shard]
        size_bytes = block.size_bytes * cost // max(1, block.cost)
        shard.rows_run += rows
        shard.bytes_run += size_bytes
        self._tally.ran(rows, size_bytes, cost)

    # writing thread

    def _write(self) -> None:
        while not isinstance(item := self._made.get(), AllDone):
            if isinstance(item, Block):
                self.writer.write(item)
                continue
            before = self._tally.commits
            self.writer.end(item)
            if not before and self._tally.commits:
                # Whoever judges a dead worker asks whether it has committed anything.
                quietly(self._pulse.beat)

    # what others see of this worker

    def progress(self) -> tuple[float, str]:
        """The share of the shards that this worker has seen done, and what it does itself, without a request."""
        shards, done = len(self.plan.shards), max(self.ledger.commits.count_seen(), self._tally.commits)
        starting = startup.describe() if self._state in ("starting", "loading") else ""
        own = self._tally.describe_rows() if self._shards.held() else "waiting for others"
        return done / shards if shards else 1.0, starting or f"{own} · {done:,} of {shards:,} shards"

    def _describe(self) -> dict[str, Any]:
        return {
            **describe_process(),
            "device": self.device.name,
            "kind": self.device.kind,
            "cpus": format_cpus(self.device.cpus),
            "share": self.device.share,
            "cores": cores(),
            "started": self._started,
            "state": self._state,
            "told_to_stop": self.told_to_stop.is_set(),
            "search": self._search,
            **self._tally.describe(self._shards.held()),
            "open": self._shards.describe(),
            "gang": self._gangs.place() if self._gangs is not None else {},
            "idle_s": round(self._inlet.idle_s, 2),
            "idle_between_s": round(self._inlet.idle_between_s, 3),
            "sink_wait_s": round(self._sink_wait_s, 3),
            "batch_budget": self.runner.budget.now if hasattr(self, "runner") else None,
            "load": asdict(self.runner.load) if hasattr(self, "runner") else None,
            "device_clock": self.task.device_clock,
            **self._meter.read(),
            "notes": list(self.task.notes),
            "error": str(self._failure) if self._failure is not None else None,
        }

    def _give_back(self) -> None:
        """Abandon staged rows and release the leases; after a lost device, record a death instead."""
        lost = isinstance(self._failure, DeviceLost)
        self._shards.give_back(release=not lost)
        if lost:
            quietly(self.ledger.leases.record_death, self.name)
