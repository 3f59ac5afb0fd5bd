"""A line between us and a real S3 server on which things go wrong, as told. Loopback only."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Fault = Callable[[str, str], str]


class BadLine(ThreadingHTTPServer):
    """Hands requests on to the real server, `Host` and all, for that is signed; `fault` says what goes wrong.

    lost request    hangs up at once
    lost answer     carries the request out and hangs up
    reset           carries the request out and resets the connection
    torn            half the body, then a reset
    cut             half the body under the right Content-Length, then the end
    short           of a range or a listing, half the body under a Content-Length that agrees with it
    stall           half the body, then nothing more for `stall_s`
    late            takes its time
    503 SlowDown    this status and code instead of an answer, as any other pair
    """

    daemon_threads = True
    request_queue_size = 128
    stall_s = 30.0

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.upstream = urlsplit(upstream).netloc
        self.fault: Fault = lambda method, path: ""
        self.seen: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that gives up on a stalled answer is what is wanted."""


class _Line(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: BadLine

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        fault = self.server.fault(self.command, self.path)
        self.server.seen[fault] += 1
        if fault == "lost request":
            self.close_connection = True
        elif fault[:3].isdigit():
            status, _, code = fault.partition(" ")
            self._answer(int(status), {}, f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode())
        else:
            self._carry_out(body, fault)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _hand_on  # noqa: N815

    def _carry_out(self, body: bytes, fault: str) -> None:
        if fault == "late":
            time.sleep(0.05)
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=20)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        data, headers = answer.read(), dict(answer.getheaders())
        upstream.close()
        if fault == "lost answer":
            self.close_connection = True
        elif fault == "reset":
            self._reset()
        elif fault == "short" and (answer.status == 206 or "list-type" in self.path):
            self._answer(answer.status, headers, data[: len(data) // 2])
        elif fault in ("torn", "cut", "stall"):
            self._answer(answer.status, headers, data, sent=len(data) // 2)
            self.close_connection = True
            if fault == "torn":
                self._reset()
            elif fault == "stall":
                time.sleep(self.server.stall_s)
        else:
            self._answer(answer.status, headers, data)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, sent: int | None = None) -> None:
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:sent])

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def first_time(what: str, where: Callable[[str, str], bool]) -> Fault:
    """The fault strikes the first request of each kind at each path."""
    struck: set[tuple[str, str]] = set()
    lock = threading.Lock()

    def fault(method: str, path: str) -> str:
        with lock:
            if not where(method, path) or (method, path) in struck:
                return ""
            struck.add((method, path))
            return what

    return fault


def now_and_then(seed: int, faults: Iterable[str], share: float) -> Fault:
    """A share of all requests meets one of the faults, drawn by the seed; no path meets more than two in a row."""
    draw, lock, choices = random.Random(seed), threading.Lock(), list(faults)
    in_a_row: Counter[tuple[str, str]] = Counter()

    def fault(method: str, path: str) -> str:
        with lock:
            if draw.random() >= share or in_a_row[method, path] >= 2:
                in_a_row[method, path] = 0
                return ""
            in_a_row[method, path] += 1
            return draw.choice(choices)

    return fault
