"""The device's side of a worker for a task that streams: inputs join and rows leave, across blocks and shards."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from shardmill.core.errors import DeviceOutOfMemory, TaskError, WorkerFailed, free_frames
from shardmill.core.hashing import hash_inputs
from shardmill.tasks.base import Output, Task
from shardmill.worker.at_fault import task_at_fault
from shardmill.worker.batch import Batch
from shardmill.worker.block import Block
from shardmill.worker.channel import AllDone, ShardEnd, Stopped
from shardmill.worker.preparing import CONTRACT
from shardmill.worker.runner import NOT_OF_A_ROW, Runner

Item = Block | ShardEnd | AllDone


class Streamer:
    """Called from one thread. `next_item` waits for the next block if asked to, else returns None while none is ready.

    Items are handed on in the order they came, blocks once all their rows are back. `on_time` is called with a block
    and the seconds of the device that its rows took.
    """

    def __init__(
        self,
        task: Task,
        runner: Runner,
        *,
        next_item: Callable[[bool], Item | None],
        hand_on: Callable[[Item], None],
        on_time: Callable[[Block, float], None],
    ) -> None:
        self._task, self._runner = task, runner
        self._next_item, self._hand_on, self._on_time = next_item, hand_on, on_time
        self._behind: deque[Item] = deque()
        self._waiting: deque[tuple[Block, int]] = deque()
        self._under_way: dict[int, tuple[Block, int]] = {}
        self._given_hashes: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._cost = self._given = 0
        self._apart: Block | None = None
        self._over = False
        self._fed_s = 0.0

    def run(self) -> None:
        """Run all blocks up to the end."""
        while self._behind or not self._over:
            given = self._given
            try:
                self._stream()
            except (*NOT_OF_A_ROW, WorkerFailed, Stopped):
                raise
            except Exception as error:
                if given == self._given and not self._under_way:
                    what = "The task's stream failed before it took a row"
                    raise task_at_fault(what, error, at_start=not given) from error
                if isinstance(error, DeviceOutOfMemory):
                    free_frames(error)
                    self._go_on_with_less()
                else:
                    self._run_apart(self._recall())
            else:
                if self._under_way or (given == self._given and self._waiting):
                    raise TaskError(
                        f"The task ended its stream with {len(self._under_way)} inputs open.", hint=CONTRACT
                    )
            if self._apart is not None and not self._waiting:
                block, self._apart = self._apart, None
                assert block.suspects is not None
                self._runner.run_carefully(block, block.suspects)
                self._count_back([(block, int(row)) for row in block.doable()])
            self._settle()

    def _stream(self) -> None:
        began, self._fed_s = time.perf_counter(), 0.0
        for numbers, output in self._task.stream(self._feed()):
            took = time.perf_counter() - began - self._fed_s
            self._take_in(numbers, output, took)
            if not len(numbers):
                # The task waits for others. A worker that was told to stop ends here.
                self._runner.before_batch()
            began, self._fed_s = time.perf_counter(), 0.0

    def _feed(self) -> Iterator[tuple[int, Any] | None]:
        """Inputs for the task within the budget; ends before a block that must run apart, and at the end."""
        while True:
            began = time.perf_counter()
            ready = self._next_input()
            self._fed_s += time.perf_counter() - began
            if ready is None and not self._waiting and (self._over or self._apart is not None):
                return
            yield ready

    def _next_input(self) -> tuple[int, Any] | None:
        self._runner.before_batch()
        while True:
            while not self._waiting and self._apart is None and not self._over:
                item = self._next_item(not self._under_way)
                if item is None:
                    return None
                self._take(item)
            if not self._waiting:
                return None
            block, row = self._waiting[0]
            if not self._runner.is_wanted(block):
                self._count_back([self._waiting.popleft()])
                self._settle()
                continue
            cost = int(block.prepared.costs[row])
            if self._under_way and self._cost + cost > self._runner.budget.now:
                return None
            self._waiting.popleft()
            self._given += 1
            self._cost += cost
            self._under_way[self._given] = (block, row)
            given = block.prepared.inputs[row]
            self._given_hashes[self._given] = int(hash_inputs([given])[0])
            return self._given, given

    def _take(self, item: Item) -> None:
        self._behind.append(item)
        self._over = isinstance(item, AllDone)
        if isinstance(item, Block):
            rows = [int(row) for row in item.doable()]
            self._left[id(item)] = len(rows)
            if item.suspects is not None and rows:
                self._apart = item
            else:
                self._waiting.extend((item, row) for row in rows)
        self._settle()

    def _take_in(self, numbers: Sequence[int], output: Output, took: float) -> None:
        if len(numbers) != output.rows.num_rows or not all(number in self._under_way for number in numbers):
            raise TaskError("The task gave rows for inputs that it did not have.", hint=CONTRACT)
        pairs = [self._under_way.pop(number) for number in numbers]
        given = np.array([self._given_hashes.pop(number) for number in numbers], np.uint64)
        if not pairs:
            return
        batch = Batch.of_pairs(pairs)
        costs = batch.costs()
        cost = int(costs.sum())
        self._cost -= cost
        self._runner.took(costs, took)
        for block, _, rows in batch.parts():
            self._on_time(block, took * int(block.prepared.costs[rows].sum()) / max(1, cost))
        self._runner.hand_out(batch, output, given)
        self._count_back(pairs)
        self._settle()

    def _recall(self) -> list[tuple[Block, int]]:
        """Take back the inputs that are under way."""
        pairs = list(self._under_way.values())
        self._under_way.clear()
        self._given_hashes.clear()
        self._cost = 0
        return pairs

    def _go_on_with_less(self) -> None:
        """Memory ran out: those under way wait again, and fewer run at a time; one that was alone is tried again."""
        cost, pairs = self._cost, self._recall()
        if len(pairs) > 1:
            self._runner.budget.shrink(cost)
            self._waiting.extendleft(reversed(pairs))
        else:
            self._run_apart(pairs)

    def _run_apart(self, pairs: list[tuple[Block, int]]) -> None:
        """One of these fails. Halve them until it is alone, while the others are finished."""
        if pairs:
            self._runner.run_apart(Batch.of_pairs(pairs))
            self._count_back(pairs)

    def _count_back(self, pairs: Sequence[tuple[Block, int]]) -> None:
        for block, _ in pairs:
            self._left[id(block)] -= 1

    def _settle(self) -> None:
        """Hand on what is finished, in order."""
        while self._behind:
            item = self._behind[0]
            if isinstance(item, Block) and self._left.get(id(item), 0):
                return
            if isinstance(item, Block):
                del self._left[id(item)]
            self._hand_on(self._behind.popleft())
