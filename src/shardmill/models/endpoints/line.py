"""The connections to a server. The key is known here and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.core import permission
from shardmill.core.errors import EndpointRefused, nearest
from shardmill.core.extras import missing_package
from shardmill.models.endpoints.request import BrokenAnswer

_CONNECT_S = 20.0
# Servers close a connection that was idle for five seconds or more.
_IDLE_S = 4.0
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Where a server is, the model it is asked for, and the variable with its key."""

    url: str
    model: str
    key_variable: str

    def read_key(self) -> str:
        """The key, "" if there is none. It is sent only to a server that the user named."""
        key = os.environ.get(self.key_variable, "").strip()
        if key and not (key.isascii() and key.isprintable()):
            raise EndpointRefused(f"{self.key_variable} holds characters that no key has.", hint="Set it again.")
        if key:
            permission.check([permission.key_name(self.key_variable, self.url)])
        return key

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[ServerLine]:
        try:
            from httpx2 import AsyncClient, Limits, Timeout
        except ImportError as error:
            raise missing_package("httpx2") from error
        key = self.read_key()
        headers = {"content-type": "application/json", "accept": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        limits = Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S)
        # How long an answer may take is for whoever asks.
        async with AsyncClient(headers=headers, limits=limits, timeout=Timeout(None, connect=_CONNECT_S)) as client:
            yield ServerLine(self, client, key)


class ServerLine:
    """Sends a request once, and gives the status, the headers and the body of the response."""

    def __init__(self, address: EndpointAddress, client: Any, key: str) -> None:
        self._address, self._client = address, client
        self._secrets = {key.encode(), json.dumps(key)[1:-1].encode()} if key else set()

    async def post(self, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        return await self._send("POST", path, body)

    async def list_models(self) -> list[dict[str, Any]] | None:
        """The server's models as it describes them; None if it does not list them."""
        status, _, body = await self._send("GET", "/models", None)
        if status in (401, 403):
            raise EndpointRefused(f"{self._address.url} denies access ({status}).", hint=await self.advise(status))
        try:
            listed = [entry for entry in json.loads(body)["data"] if isinstance(entry["id"], str)]
        except (ValueError, LookupError, TypeError):
            return None
        return listed if status == 200 else None

    async def advise(self, status: int) -> str:
        """What to do about a refusal."""
        variable = self._address.key_variable
        if status in (401, 403):
            return f"Check the key in {variable}." if self._secrets else f"Set {variable} to a key of this server."
        try:
            listed = await self.list_models() if status == 404 else None
        except Exception:
            listed = None
        if listed is None:
            return "Give the URL up to /v1, as in http://host:8000/v1, and a model that this server has."
        if any(entry["id"] == self._address.model for entry in listed):
            return "The server lists this model, so it lacks the kind of request: does the model have a chat template?"
        return nearest(self._address.model, [entry["id"] for entry in listed])

    async def _send(self, method: str, path: str, content: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        received = bytearray()
        async with self._client.stream(method, self._address.url + path, content=content) as response:
            async for piece in response.aiter_bytes():
                received += piece
                if len(received) > _MOST_BYTES:
                    raise BrokenAnswer(f"its answer is larger than {_MOST_BYTES >> 20} MiB")
        body = bytes(received)
        # A server may repeat the key in a message.
        for secret in self._secrets:
            body = body.replace(secret, b"***")
        return response.status_code, response.headers, body
