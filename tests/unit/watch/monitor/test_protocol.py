"""Requests that never end: each takes one of the connections that the monitor has, so they are let go."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for

uvicorn = needed("uvicorn")

from shardmill.watch.monitor import protocol  # noqa: E402

MOST = 8
ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "_HEADERS_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            http=protocol.TimedProtocol,
            lifespan="off",
            log_level="error",
            limit_concurrency=MOST,
            timeout_keep_alive=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize(
    ("sent", "answers"), [(b"", 0), (ASK[:20], 0), (ASK + ASK[:20], 1)], ids=["nothing", "a half", "one and a half"]
)
def test_a_request_that_never_ends_is_let_go(port: int, sent: bytes, answers: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as slow:
        slow.sendall(sent)
        heard = b"".join(iter(lambda: slow.recv(4096), b""))
    assert heard.count(b"200 OK") == answers


def test_many_of_them_do_not_keep_others_out(port: int) -> None:
    def is_well() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE_S) as said:
                return bool(said.status == 200)
        except urllib.error.HTTPError:
            return False

    with contextlib.ExitStack() as stack:
        for _ in range(MOST + 4):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            slow.sendall(ASK[:20])
        wait_for(is_well)
