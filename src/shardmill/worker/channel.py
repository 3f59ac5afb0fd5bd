"""A bounded queue between two stages of a worker, and the markers that pass through it besides items."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardmill.ledger import Claim
from shardmill.sinks.whole import WholeShard
from shardmill.tasks.context import Stopped

__all__ = ["AllDone", "Channel", "ShardEnd", "Stopped"]

_LOOK_EVERY_S = 0.2
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """All items of a shard have passed; `lines` is the shard's number of lines. Those of a `whole` one had not to."""

    claim: Claim
    lines: int
    whole: WholeShard | None = None


@dataclass(frozen=True, slots=True)
class AllDone:
    """The end of the queue."""


class Channel(Generic[_T]):
    """`put` and `get` block until they succeed, and raise `Stopped` when the worker stops."""

    def __init__(self, size: int, stop: threading.Event) -> None:
        self._queue: queue.Queue[_T] = queue.Queue(size)
        self._stop = stop

    def put(self, item: _T) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=_LOOK_EVERY_S)
            except queue.Full:
                continue
        raise Stopped

    def get(self) -> _T:
        while not self._stop.is_set():
            try:
                return self._queue.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
        raise Stopped

    def get_within(self, seconds: float) -> _T | None:
        """The next item if it comes in some seconds; None if not."""
        if self._stop.is_set():
            raise Stopped
        try:
            return self._queue.get(timeout=seconds)
        except queue.Empty:
            return None

    def get_nowait(self) -> _T | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def is_empty(self) -> bool:
        return self._queue.empty()
