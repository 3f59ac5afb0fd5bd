"""Work on many things at once, on all allowed cores, with the results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from shardmill.core.devices import cores

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def in_order(work: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> Iterator[_Answer]:
    """The result of `work` for each, in order. Only a few per core are begun ahead, so that few results wait."""
    threads = cores()
    waiting: deque[Future[_Answer]] = deque()
    with ThreadPoolExecutor(threads, "results") as pool:
        try:
            for one in asked:
                waiting.append(pool.submit(work, one))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:
                left.cancel()
