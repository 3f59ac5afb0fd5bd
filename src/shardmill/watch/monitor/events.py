"""Server-sent events. No client has a queue: whoever is slow gets the latest state when it is ready for more."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel

from shardmill.core.extras import missing_package
from shardmill.watch.monitor.description import describe_run, find_searched, summarize_run
from shardmill.watch.monitor.model import OpenAlert, RunDetail, RunList
from shardmill.watch.monitor.reading import RunSeen
from shardmill.watch.monitor.watcher import Watcher

try:
    from starlette.responses import Response
except ImportError as error:
    raise missing_package("fastapi") from error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from shardmill.watch.alerts import AlertDesk

# A client is told that it is not forgotten, and one that takes nothing for this long is let go.
_ALIVE_S, _PATIENCE_S = 10.0, 30.0
# Changes within this time are told at once.
_TOGETHER_S = 0.5
_KEPT = 64


class LiveFeed:
    """What is sent, made once for all clients and kept until the next change; and who waits for that."""

    def __init__(
        self,
        watcher: Watcher,
        clock: Callable[[], float] = time.time,
        *,
        searches: bool = False,
        worker_link: str = "",
        desk: AlertDesk | None = None,
    ) -> None:
        self._watcher, self._clock, self._desk = watcher, clock, desk
        self._searches, self._worker_link = searches, worker_link
        self._made: dict[str, tuple[object, bytes]] = {}
        self._packed: dict[str, tuple[str, bytes]] = {}
        self._bell: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def runs(self) -> bytes:
        return self._keep("", self._watcher.version, self._list)

    def run(self, key: str) -> bytes | None:
        """Everything about a run; None if there is none."""
        seen = self._watcher.run(key)
        if seen is None:
            return None
        make: Callable[[], BaseModel] = (
            (lambda: self._describe(seen)) if seen.status is not None else (lambda: summarize_run(seen, self._clock()))
        )
        return self._keep(f"run {key}", (seen.url, seen.version), make)

    def _describe(self, seen: RunSeen) -> RunDetail:
        searchable = self._searches and bool(find_searched(seen, self._watcher.runs()))
        return describe_run(seen, self._clock(), searchable=searchable, worker_link=self._worker_link)

    def states(self, key: str) -> tuple[bytes, str] | None:
        """The states of all shards, packed, and their tag; None if there is no such run, or it was never read."""
        seen = self._watcher.run(key)
        if seen is None or seen.status is None:
            return None
        if self._packed.get(key, ("", b""))[0] != seen.states_version:
            if len(self._packed) >= _KEPT:
                self._packed.clear()
            self._packed[key] = seen.states_version, gzip.compress(seen.status.states, 3, mtime=0)
        return self._packed[key][1], f'"{seen.states_version}"'

    def _list(self) -> BaseModel:
        now = self._clock()
        seen = [summarize_run(run, now) for run in self._watcher.runs()]
        return RunList(
            url=self._watcher.url,
            trouble=self._watcher.trouble,
            remarks=self._desk.describe_troubles() if self._desk is not None else [],
            alerts=[OpenAlert(**alert) for alert in self._desk.open_alerts()] if self._desk is not None else [],
            runs=seen,
        )

    def _keep(self, name: str, version: object, make: Callable[[], BaseModel]) -> bytes:
        kept = self._made.get(name)
        if kept is None or kept[0] != version:
            if len(self._made) >= _KEPT:
                self._made.clear()
            kept = self._made[name] = version, make().model_dump_json().encode()
        return kept[1]

    async def changed(self, timeout_s: float) -> None:
        """Wait for the next change, or for so long."""
        if self._bell is None or self._bell.done():
            self._bell = asyncio.get_running_loop().create_future()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._watcher.listen(self._ring)
        await asyncio.wait([self._bell], timeout=timeout_s)

    def _ring(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)


class EventStream(Response):
    """One stream of events: the list of runs and, if one is named, everything about that one."""

    def __init__(self, feed: LiveFeed, key: str) -> None:
        super().__init__(media_type="text/event-stream")
        self._feed, self._key = feed, key
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_disconnected(receive))
        sent: dict[str, bytes] = {}
        try:
            while not gone.done():
                body = b"".join(self._news(sent)) or b": alive\n\n"
                async with asyncio.timeout(_PATIENCE_S):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await self._feed.changed(_ALIVE_S)
                await asyncio.wait([gone], timeout=_TOGETHER_S)
        except (TimeoutError, OSError):
            # It takes nothing: the connection is dropped, and a browser that lives connects again.
            return
        finally:
            gone.cancel()

    def _news(self, sent: dict[str, bytes]) -> list[bytes]:
        """The events whose content differs from what was sent before."""
        found = {"runs": self._feed.runs()}
        if self._key:
            found["run"] = self._feed.run(self._key) or b"null"
        news = [name for name, data in found.items() if sent.get(name) is not data and sent.get(name) != data]
        sent.update(found)
        return [b"event: %s\ndata: %s\n\n" % (name.encode(), found[name]) for name in news]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
