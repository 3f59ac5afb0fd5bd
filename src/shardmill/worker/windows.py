"""The device's loop for a task that runs batches: window after window of blocks, the largest batches that fit."""

from __future__ import annotations

import time
from collections.abc import Callable

from shardmill.worker.block import Block
from shardmill.worker.channel import AllDone, Channel, ShardEnd
from shardmill.worker.runner import Runner

_WINDOW_BUDGETS = 16
# Inputs that need more memory than tokens make a smaller window.
_WINDOW_BYTES = 64 << 20

Item = Block | ShardEnd | AllDone


class Inlet:
    """What is ready for the device, and how long the device waited for it: in all, and between its batches."""

    def __init__(self, ready: Channel[Item]) -> None:
        self._ready = ready
        self.idle_s = self.idle_between_s = 0.0
        self.has_run: Callable[[], bool] = lambda: False

    def next(self, wait: bool = True) -> Item | None:
        """The next item; None if none is ready and it need not `wait`."""
        item = self._ready.get_nowait()
        return self.wait() if item is None and wait else item

    def is_empty(self) -> bool:
        return self._ready.is_empty()

    def wait_some(self, seconds: float) -> Item | None:
        """The next item if it comes in some seconds."""
        return self._ready.get_within(seconds)

    def wait(self) -> Item:
        waiting = time.perf_counter()
        item = self._ready.get()
        waited = time.perf_counter() - waiting
        self.idle_s += waited
        if self.has_run() and not isinstance(item, AllDone):
            self.idle_between_s += waited
        return item


class WindowLoop:
    """Called from one thread. Each window is passed on once the device works on the next, so that it never waits."""

    def __init__(
        self,
        inlet: Inlet,
        runner: Runner,
        *,
        hand_on: Callable[[list[Item]], None],
        on_time: Callable[[Block, float], None],
    ) -> None:
        self._inlet, self._runner, self._hand_on, self._on_time = inlet, runner, hand_on, on_time

    def run(self) -> None:
        """Run all blocks up to the end."""
        behind: list[Item] = []
        while not (behind and isinstance(behind[-1], AllDone)):
            items = self._next_window(behind)
            blocks = [i for i in items if isinstance(i, Block)]
            before = self._runner.device_s
            self._runner.run(blocks)
            total = sum(b.cost for b in blocks) or 1
            for block in blocks:
                self._on_time(block, (self._runner.device_s - before) * block.cost / total)
            self._pass_on(behind)
            behind = items
        self._runner.settle()
        self._pass_on(behind)

    def _pass_on(self, done: list[Item]) -> None:
        """Hand on a window whose batches have all run."""
        for item in done:
            if isinstance(item, Block):
                item.release()
        self._hand_on(done)

    def _next_window(self, behind: list[Item]) -> list[Item]:
        """The blocks that are ready now, up to `_WINDOW_BUDGETS` batches: a larger window sorts better by length."""
        first = self._inlet.next(wait=False)
        if first is None:
            self._runner.settle()
            self._pass_on(behind)
            first = self._inlet.wait()
        items = [first]
        room = _WINDOW_BUDGETS * self._runner.budget.now
        while not isinstance(items[-1], AllDone):
            blocks = [i for i in items if isinstance(i, Block)]
            if sum(i.cost for i in blocks) >= room or sum(i.held_bytes for i in blocks) >= _WINDOW_BYTES:
                break
            more = self._inlet.next(wait=False)
            if more is None:
                break
            items.append(more)
        return items
