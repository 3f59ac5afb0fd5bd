"""Server-sent events: the latest state for whoever is ready, and no patience without end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Ledger
from shardmill.watch.monitor.watcher import Watcher
from tests.support.ledgers import a_plan
from tests.support.libraries import needed

needed("starlette")
events = needed("shardmill.watch.monitor.events")


@pytest.fixture
def watcher(tmp_path: Path) -> Any:
    Ledger(tmp_path / "runs" / "one").create(a_plan())
    with Watcher(tmp_path / "runs") as watcher:
        yield watcher


async def never() -> Any:
    await asyncio.Event().wait()


def test_a_client_that_takes_nothing_is_let_go(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_PATIENCE_S", 0.05)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never()

    asyncio.run(events.EventStream(events.LiveFeed(watcher), "one")({}, never, send))


def test_a_client_that_left_is_forgotten(watcher: Watcher) -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def main() -> None:
        async with asyncio.timeout(60):
            await events.EventStream(events.LiveFeed(watcher), "one")({}, receive, send)

    asyncio.run(main())


def test_what_changed_is_told_and_nothing_else(watcher: Watcher) -> None:
    sent: list[bytes] = []

    async def main() -> None:
        done = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sum(body.count(b"event: run\n") for body in sent) >= 2:
                done.set()

        async def receive() -> Any:
            await done.wait()
            return {"type": "http.disconnect"}

        async with asyncio.timeout(60):
            await events.EventStream(events.LiveFeed(watcher), "one")({}, receive, send)

    asyncio.run(main())
    first = sent[1].decode()
    assert first.startswith('event: runs\ndata: {"url":')
    assert '\n\nevent: run\ndata: {"name":"one"' in first
    assert all(body.endswith(b"\n\n") for body in sent[1:])
    assert all(b"\n" not in line.partition(b"data: ")[2] for line in first.encode().split(b"\n"))


def test_a_run_that_is_none(watcher: Watcher) -> None:
    feed = events.LiveFeed(watcher)
    assert feed.run("none") is None
    assert feed.states("none") is None
    assert feed.run("one") is feed.run("one"), "it is made once for all"
