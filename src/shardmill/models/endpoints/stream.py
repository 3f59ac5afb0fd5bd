"""The thread that sends requests, as its caller sees it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic

from shardmill.models.endpoints.counts import EndpointCounts
from shardmill.models.endpoints.line import EndpointAddress
from shardmill.models.endpoints.pace import Pace
from shardmill.models.endpoints.patience import Patience
from shardmill.models.endpoints.request import PromptRequest
from shardmill.models.endpoints.sender import K, PromptJob, RequestSender, Result, Revise


class RequestStream(Generic[K]):
    """Sends requests from one thread with one event loop, and gives their results in any order."""

    def __init__(
        self,
        address: EndpointAddress,
        pace: Pace,
        patience: Patience,
        counts: EndpointCounts,
        revise: Revise | None = None,
    ) -> None:
        self._pace = pace
        self._done: queue.SimpleQueue[tuple[K, Result] | Exception] = queue.SimpleQueue()
        self._error: Exception | None = None
        self.held = 0
        started = threading.Event()

        async def serve() -> None:
            self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
            async with address.connect() as line:
                self._sender = RequestSender(address, line, pace, patience, counts, revise, self._done.put, self._fail)
                started.set()
                await self._closing.wait()
                await self._sender.stop()

        def run() -> None:
            try:
                asyncio.run(serve())
            except Exception as error:
                self._done.put(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="endpoint", daemon=True)
        self._thread.start()
        started.wait()

    @property
    def wants_more(self) -> bool:
        """Whether another request should be sent: a second round is kept ready, no more."""
        return self.held < 2 * self._pace.limit and self._error is None

    def send(self, key: K, request: PromptRequest) -> None:
        self.held += 1
        self._call(lambda: self._sender.take(PromptJob(key, request)))

    def collect(self, timeout_s: float | None) -> list[tuple[K, Result]]:
        """The results that are there, after waiting for one. The error that ends all is raised after all results."""
        found: list[tuple[K, Result]] = []
        while self._error is None:
            try:
                got = self._done.get_nowait() if found else self._done.get(timeout=timeout_s)
            except queue.Empty:
                break
            if isinstance(got, Exception):
                self._error = got
            else:
                found.append(got)
        self.held -= len(found)
        if self._error is not None and not found:
            raise self._error
        return found

    def close(self) -> None:
        """Give up what is under way."""
        self._call(self._closing.set)
        self._thread.join(10)

    def _fail(self, error: Exception) -> None:
        self._done.put(error)
        self._closing.set()

    def _call(self, function: Callable[[], object]) -> None:
        # A loop that failed has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)
