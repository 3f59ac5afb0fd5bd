"""Redis 8 as a sink: `redis://HOST:PORT/DB#KEY`, a vector set; the columns of a row are the attributes of its member.

It compares by cosines, and keeps vectors at length 1. Its writes have no order: repeatable, repaired by verify. (A
script on the server could refuse late ones; none is used.) What is known of a set is kept beside it, under
KEY:shardmill. With `appendonly yes` a lot counts as delivered when the server
has it on its disk; without, a crash of the server loses what it had not saved, and verify finds that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package
from shardmill.core.passwords import withheld
from shardmill.sinks.base import Shipment
from shardmill.sinks.points.base import METRIC, Collection, Point, PointDelivery, unfit
from shardmill.sinks.points.patience import Trouble
from shardmill.sinks.points.payload import to_json
from shardmill.sinks.points.places import find_server

_PORT = 6379
_TIMEOUT_S = 60
_SAVED_MS = 60_000
# What the client says in front of an answer: the command, with the bytes of a vector.
_COMMAND = re.compile(r"^Command # \d+ .* of pipeline caused error: ", re.DOTALL)
_BUSY = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY")


class RedisDelivery(PointDelivery):
    store = "Redis"
    usage = "redis://HOST:6379/0#KEY"

    def __init__(self, address: str, shipment: Shipment) -> None:
        server = find_server(address, _PORT)
        if server is None or not (server.path or "0").isdecimal():
            raise UsageError(f"{address} names no database of a server.", hint=f"Write: {self.usage}")
        self._server = server
        super().__init__(address, shipment)
        try:
            import redis
        except ImportError as error:
            raise missing_package("redis") from error
        self._library: Any = redis
        self._notes = f"{self.collection}:shardmill"

    def find_collection(self) -> str:
        return self._server.fragment

    def connect(self) -> Any:
        return self._library.Redis(
            host=self._server.host,
            port=self._server.port,
            db=int(self._server.path or 0),
            username=self._server.user or None,
            password=withheld(self.address).get("password"),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=5,
        )

    def judge(self, error: Exception) -> Trouble:
        errors = self._library.exceptions
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
            return Trouble.FINAL
        is_away = isinstance(error, errors.ConnectionError | errors.TimeoutError | OSError)
        return Trouble.PASSING if is_away or str(error).startswith(_BUSY) else Trouble.FINAL

    def reason(self, error: Exception) -> str:
        return _COMMAND.sub("", super().reason(error))

    def describe(self) -> Collection | None:
        kept = {name.decode(): value.decode() for name, value in self.client.hgetall(self._notes).items()}
        found = self._info()
        if not found:
            return Collection(int(kept["dims"]), METRIC, kept["made_by"]) if kept else None
        if found["quant-type"] != "f32":
            raise unfit(self.address, f"its vectors are quantised ({found['quant-type']})")
        return Collection(int(found["vector-dim"]), METRIC, kept.get("made_by", ""))

    def create(self) -> None:
        """The set itself is created by its first member."""
        self.client.hset(self._notes, mapping={"dims": self.dims, "made_by": self.shipment.made_by})

    def upsert(self, points: Sequence[Point]) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            for p in points:
                vector = p.vector.astype("<f4").tobytes()
                pipe.execute_command(
                    "VADD", self.collection, "FP32", vector, p.id, "NOQUANT", "SETATTR", to_json(p.payload)
                )
            pipe.execute()

    def find(self, ids: Sequence[str]) -> set[str]:
        return {id for id, there in zip(ids, self._each("VGETATTR", ids), strict=True) if there is not None}

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        return self._page([id.encode() for id in ids])

    def remove(self, ids: Sequence[str]) -> None:
        self._each("VREM", ids)

    def settle(self) -> None:
        """Refused by a server that keeps no log."""
        with suppress(self._library.exceptions.ResponseError):
            self.client.execute_command("WAITAOF", 1, 0, _SAVED_MS)

    def pages(self) -> Iterator[list[Point]]:
        for ids in self._ids():
            yield self.ask(partial(self._page, ids))

    def _info(self) -> dict[str, str]:
        said = self.client.execute_command("VINFO", self.collection)
        if not said:
            return {}
        pairs = said.items() if isinstance(said, dict) else zip(said[::2], said[1::2], strict=True)
        return {_plain(name): _plain(value) for name, value in pairs}

    def _ids(self) -> Iterator[list[bytes]]:
        """All members. A server before 8.4 cannot list them in parts: it gives all ids in one answer."""
        try:
            last = b"-"
            while page := self.ask(partial(self._range, last), at_start=last == b"-"):
                yield page
                last = b"(" + page[-1]
        except _NoRange:
            whole = self.ask(self._all)
            for at in range(0, len(whole), self.page_rows):
                yield whole[at : at + self.page_rows]

    def _range(self, last: bytes) -> list[bytes]:
        try:
            found: list[bytes] = self.client.execute_command("VRANGE", self.collection, last, "+", self.page_rows)
        except self._library.exceptions.ResponseError as error:
            if "unknown command" in str(error):
                raise _NoRange(self.store) from error
            raise
        return found

    def _all(self) -> list[bytes]:
        count = self.client.execute_command("VCARD", self.collection)
        if not count:
            return []
        any_vector = np.eye(1, self.dims, dtype="<f4").tobytes()
        found: list[bytes] = self.client.execute_command(
            "VSIM", self.collection, "FP32", any_vector, "COUNT", count, "TRUTH"
        )
        return found

    def _page(self, ids: Sequence[bytes]) -> list[Point]:
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.execute_command("VEMB", self.collection, id, "RAW")
                pipe.execute_command("VGETATTR", self.collection, id)
            said = pipe.execute()
        return [
            Point(id.decode("utf-8", "replace"), _vector(raw), _attributes(text))
            for id, raw, text in zip(ids, said[::2], said[1::2], strict=True)
            if raw is not None
        ]

    def _each(self, command: str, ids: Sequence[str]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.execute_command(command, self.collection, id)
            found: list[Any] = pipe.execute()
        return found


class _NoRange(UsageError):
    """The server does not know the command that lists members in parts."""


def _plain(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _vector(raw: Any) -> Any:
    data = raw["raw"] if isinstance(raw, dict) else raw[1]
    return np.frombuffer(data, "<f4")


def _attributes(text: Any) -> dict[str, Any]:
    """Other programs may have set any JSON, or none."""
    if isinstance(text, dict):
        return text
    with suppress(TypeError, ValueError):
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    return {}
