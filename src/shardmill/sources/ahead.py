"""Read ahead of the consumer."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def ahead(make: Callable[[], Iterator[_T]], depth: int = 2) -> Iterator[_T]:
    """Yield the same values, produced in a thread that stays at most `depth` values ahead."""
    passed: queue.Queue[tuple[str, object]] = queue.Queue(depth)
    stop = threading.Event()

    def put(kind: str, value: object) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                passed.put((kind, value), timeout=0.1)
                return

    def work() -> None:
        try:
            for value in make():
                put("value", value)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, name="reading-ahead", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = passed.get()
            if kind == "error":
                raise value  # type: ignore[misc]
            if kind == "end":
                return
            yield value  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
