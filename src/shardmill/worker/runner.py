"""Runs a task over blocks of items: batches by budget, smaller if memory runs out; isolates poison rows by halving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from shardmill.core.batching import Budget, plan_batches
from shardmill.core.errors import (
    DeviceLost,
    DeviceOutOfMemory,
    EndpointRefused,
    EndpointSilent,
    TaskError,
    WorkerFailed,
    free_frames,
    no_exit,
)
from shardmill.core.hashing import Hashes, hash_inputs
from shardmill.ledger import Claim, Ledger, Suspects
from shardmill.tasks.base import Output, Task
from shardmill.worker.at_fault import task_at_fault
from shardmill.worker.batch import Batch, take_rows
from shardmill.worker.block import Block, Rows, tagged
from shardmill.worker.preparing import CONTRACT

# After this many crashes a shard is run with a record of the rows on the device. A row that was alone there at _STRIKES
# deaths is poison; if that many workers die on a plain text, the device is broken.
CAREFUL_AFTER_CRASHES = 2
_STRIKES = 3

# This many failures in a row may mean a broken device instead of bad rows.
_HOPELESS_AT_START = 16
_HOPELESS = 256

# What a task raises when no row is at fault.
NOT_OF_A_ROW = (DeviceLost, TaskError, EndpointRefused, EndpointSilent, MemoryError)


@dataclass(slots=True)
class DeviceLoad:
    """What ran on the device: batches, tokens with padding, pairs of tokens that attend to each other."""

    batches: int = 0
    padded_tokens: int = 0
    token_pairs: int = 0

    def add(self, costs: Rows, cost: int) -> None:
        self.batches += 1
        self.padded_tokens += cost
        self.token_pairs += int(costs @ costs)


# A batch on the device, the function that waits for its results, and the hashes of the inputs that the task was given.
Begun = tuple[Batch, Callable[[], Output], Hashes]


class Runner:
    """The device's side of a worker, called from one thread. `on_rows` is called with a block, its items done and cost.

    A row here is one input of a block: an item, or one of an item's several inputs.
    """

    def __init__(
        self,
        task: Task,
        ledger: Ledger,
        budget: Budget,
        *,
        before_batch: Callable[[], None],
        on_rows: Callable[[Block, int, int], None],
        is_wanted: Callable[[Block], bool] = lambda block: True,
    ) -> None:
        self.task = task
        self.ledger = ledger
        self.budget = budget
        self.before_batch = before_batch
        self.on_rows = on_rows
        self.is_wanted = is_wanted
        self.device_s = 0.0
        self.load = DeviceLoad()
        self._padded = bool(task.padded)
        self._ahead: Begun | None = None
        self._again: list[Batch] = []
        self._succeeded = False
        # the suspected shard whose device was checked last
        self._probed: Claim | None = None
        self._failures_in_a_row = 0

    def run(self, blocks: Sequence[Block]) -> None:
        """Run all good rows of the blocks; blocks of different shards share batches.

        The last batch may still be on the device when this returns, but none of an earlier call: see `settle`.
        """
        before = self._ahead
        self._run_all(Batch.of([(b, b.doable()) for b in blocks if b.suspects is None]))
        if self._ahead is before or self._again:
            self.settle()
        for block in blocks:
            if block.suspects is not None:
                self.settle()
                self.run_carefully(block, block.suspects)

    def settle(self) -> None:
        """Finish the batch on the device, and rerun rows that ran out of memory beside another batch."""
        self._take_in()
        again, self._again = self._again, []
        for one in again:
            self._finish(self._begin(one), alone=True)

    def run_apart(self, batch: Batch) -> None:
        """Run these rows now and apart from others, and halve them until those that fail are alone."""
        self._run_batch(batch, halved=True)
        self.settle()

    def took(self, costs: Rows, seconds: float) -> None:
        """Count rows of a stream, and the time that they took on the device."""
        self.load.add(costs, int(costs.sum()))
        self.device_s += seconds
        self._succeeded, self._failures_in_a_row = True, 0
        self.budget.succeed()

    def _take_in(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._finish(ahead)

    def _run_all(self, everything: Batch) -> None:
        costs = everything.costs()
        left = np.arange(len(everything))
        while len(left):
            budget = self.budget.now
            ran = np.zeros(len(left), bool)
            for places in plan_batches(costs[left], budget, padded=self._padded):
                ran[places] = True
                wanted = np.array([self.is_wanted(block) for block in everything.blocks])
                batch = everything.take(left[places])
                batch = batch.take(np.flatnonzero(wanted[batch.owners]))
                if not len(batch):
                    continue
                begun = self._begin(batch)
                self._take_in()
                self._ahead = begun
                if self.budget.now != budget:
                    break
            left = left[~ran]

    def _run_batch(self, batch: Batch, *, halved: bool = False) -> None:
        self._finish(self._begin(batch), halved=halved)

    def _begin(self, batch: Batch) -> Begun:
        """Start a batch on the device. If the task supports it, the batch runs while the next one is prepared."""
        self.before_batch()
        inputs, costs = batch.inputs(), batch.costs()
        given = hash_inputs(inputs)
        self.load.add(costs, self._cost(costs))
        started = time.perf_counter()
        try:
            with no_exit():
                fetch = self.task.begin(inputs)
        except Exception as error:
            failed = error

            def fail() -> Output:
                raise failed

            return batch, fail, given
        finally:
            self.device_s += time.perf_counter() - started
        return batch, fetch, given

    def _finish(self, begun: Begun, *, halved: bool = False, alone: bool = False) -> None:
        """Take the results of a batch. If it failed, halve it until the failing row is `alone` on the device."""
        batch, fetch, given = begun
        try:
            output = self._fetch(fetch, len(batch))
        except DeviceOutOfMemory as error:
            free_frames(error)
            if len(batch) == 1 and not alone:
                self._again.append(batch)
                return
            if not halved and len(batch) > 1:
                self.budget.shrink(self._cost(batch.costs()))
            self._halve(batch, f"it does not fit into the device's memory, even alone: {error.message}")
        except NOT_OF_A_ROW:
            raise
        except Exception as error:
            self._halve(batch, f"{type(error).__name__}: {error}")
            if len(batch) == 1:
                self._count_failure(error)
        else:
            self._succeeded, self._failures_in_a_row = True, 0
            self.budget.succeed()
            self.hand_out(batch, output, given)

    def _cost(self, costs: Rows) -> int:
        return len(costs) * int(costs.max()) if self._padded else int(costs.sum())

    def _fetch(self, fetch: Callable[[], Output], rows: int) -> Output:
        started = time.perf_counter()
        try:
            with no_exit():
                output = fetch()
        finally:
            self.device_s += time.perf_counter() - started
        if output.counts is not None and (len(output.counts) != rows or output.counts.sum() != output.rows.num_rows):
            raise TaskError(f"The task's counts for {rows} inputs do not add up to its rows.", hint=CONTRACT)
        if output.counts is None and output.rows.num_rows != rows:
            raise TaskError(f"The task returned {output.rows.num_rows} rows for {rows} inputs.", hint=CONTRACT)
        if output.given is not None and len(output.given) != rows:
            raise TaskError(f"The task returned {len(output.given)} hashes for {rows} inputs.", hint=CONTRACT)
        return output

    def _check_device(self) -> None:
        started = time.perf_counter()
        try:
            self.task.probe()
        finally:
            self.device_s += time.perf_counter() - started

    def _halve(self, batch: Batch, reason: str) -> None:
        if len(batch) == 1:
            for block, _, rows in batch.parts():
                block.bad.setdefault(block.item(int(rows[0])), reason[:500])
            return
        middle = len(batch) // 2
        for half in (batch.take(slice(middle)), batch.take(slice(middle, None))):
            # Skip other inputs of an item that has failed meanwhile.
            if len(wanted := half.where(lambda block, row: block.item(row) not in block.bad)):
                self._run_batch(wanted, halved=True)

    def _count_failure(self, error: Exception) -> None:
        """After many failures in a row, try a plain text; if that fails too, the rows are not at fault."""
        self._failures_in_a_row += 1
        if self._failures_in_a_row < (_HOPELESS if self._succeeded else _HOPELESS_AT_START):
            return
        try:
            self._check_device()
        except Exception as again:
            what = f"{self._failures_in_a_row} rows in a row failed, each alone"
            raise task_at_fault(what, error, at_start=not self._succeeded) from again
        self._succeeded, self._failures_in_a_row = True, 0

    def hand_out(self, batch: Batch, output: Output, given: Hashes) -> None:
        """Give each block its rows of an output, with the hashes of the inputs; those that the task returned count."""
        output = replace(output, rows=tagged(output, given))
        good = np.ones(len(batch), bool)
        good[list(output.bad)] = False
        for block, places, rows in batch.parts():
            block.tokens_in += sum(output.tokens_in[i] for i in places) if output.tokens_in else 0
            block.tokens_out += sum(output.tokens_out[i] for i in places) if output.tokens_out else 0
            for i in np.flatnonzero(~good[places]):
                block.bad.setdefault(block.item(int(rows[i])), output.bad[int(places[i])])
            places, rows = places[good[places]], rows[good[places]]
            if len(rows):
                items = block.take_in(rows, *_of_inputs(output, places))
                self.on_rows(block, items, int(block.prepared.costs[rows].sum()))

    def run_carefully(self, block: Block, suspects: Suspects) -> None:
        """Record the items before they go onto the device, so that a death there can be traced to them.

        A plain text runs first, to check the device. Then the suspects of the last death run in two halves: each
        further death halves them again.
        """
        rows = block.doable()
        items = block.items(rows)
        hot = np.intersect1d(items, np.array(suspects.rows, np.int64) - block.first_row)
        if self._probed != block.claim:
            self._probed = block.claim
            self._probe(block.claim.shard, suspects)
        halves = np.array_split(hot, 2)
        groups = [*(np.isin(items, half) for half in halves), ~np.isin(items, hot)]
        for group in (rows[group] for group in groups):
            for batch in plan_batches(block.prepared.costs[group], self.budget.now, padded=self._padded):
                self._run_noted(block, group[batch], suspects)
        self.ledger.suspects.put(block.claim.shard, Suspects(poison=suspects.poison))

    def _probe(self, shard: int, suspects: Suspects) -> None:
        self.before_batch()
        self.ledger.suspects.put(shard, replace(suspects, probes=suspects.probes + 1))
        self._check_device()
        self.ledger.suspects.put(shard, replace(suspects, probes=0))

    def _run_noted(self, block: Block, rows: Rows, suspects: Suspects) -> None:
        self.before_batch()
        noted = tuple(int(item) + block.first_row for item in np.unique(block.items(rows)))
        strikes = suspects.strikes if noted == suspects.rows else 0
        alone = len(noted) == 1
        self.ledger.suspects.put(block.claim.shard, Suspects(noted, strikes + alone, 0, suspects.poison))
        try:
            self._run_batch(Batch.of([(block, rows)]))
            self.settle()
        except DeviceLost:
            raise
        except BaseException:
            self.ledger.suspects.put(block.claim.shard, Suspects(poison=suspects.poison))
            raise


def _of_inputs(output: Output, places: Rows) -> tuple[pa.RecordBatch, Rows | None]:
    """The rows of the inputs at these sorted places, and how many each has if that varies."""
    if output.counts is None:
        return take_rows(output.rows, places), None
    counts = output.counts[places]
    firsts = (np.cumsum(output.counts) - output.counts)[places]
    rows = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return take_rows(output.rows, rows), counts


def find_suspects(ledger: Ledger, claim: Claim) -> Suspects | None:
    """The record of rows suspected of killing workers in this shard; None if nothing is suspected."""
    found = ledger.suspects.get(claim.shard)
    if found == Suspects() and claim.crashes < CAREFUL_AFTER_CRASHES:
        return None
    if found.probes >= _STRIKES:
        # A later run may be on a mended device, so it may try the plain text once more.
        ledger.suspects.put(claim.shard, replace(found, probes=_STRIKES - 1))
        raise WorkerFailed(
            f"{found.probes} workers in a row died on a plain text.",
            hint="The device or the task is at fault, not the rows; see the workers' logs. Committed shards are kept: "
            "run the same command again once it is mended.",
        )
    if found.strikes >= _STRIKES:
        found = Suspects(poison=(*found.poison, *found.rows))
        ledger.suspects.put(claim.shard, found)
    return found
