"""A bounded queue between two stages of a worker, and what goes through it beside the items."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardmill.ledger import Claim

_LOOK_EVERY_S = 0.2
_T = TypeVar("_T")


class Stopped(Exception):
    """The worker was asked to end; what it holds is given back."""


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """All items of a shard went through; it has this many lines."""

    claim: Claim
    lines: int


@dataclass(frozen=True, slots=True)
class AllDone:
    """Nothing follows."""


class Channel(Generic[_T]):
    """Lets go of both its ends when the worker stops."""

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

    def get_nowait(self) -> _T | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def is_empty(self) -> bool:
        return self._queue.empty()
