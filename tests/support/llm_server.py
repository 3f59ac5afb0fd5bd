"""A small OpenAI-compatible server in a process of its own, which answers by rule and fails by seed.

Whether a request fails, and how, depends on the seed, the request's bytes and how often they came: never on the clock.
`GET /stats` tells what it saw.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

MODEL = "tiny-llm"
KINDS = ("429", "500", "503", "reset", "slow", "short body", "cut json", "garbage", "no choices")


def answer_to(prompt: str) -> str:
    return "answer " + hashlib.sha256(prompt.encode()).hexdigest()


class LlmServer:
    """The server as a test sees it; it can be killed and started again at the same address."""

    def __init__(self, **options: Any) -> None:
        self._options = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.llm_server", f"--port={self._port}", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/stats") as answer:
            return dict(json.load(answer))


@contextlib.contextmanager
def llm_server(**options: Any) -> Iterator[LlmServer]:
    server = LlmServer(**options)
    try:
        yield server
    finally:
        server.kill()


class _Fault(Exception):
    """The connection ends without a whole answer; `sent` is what is sent before."""

    def __init__(self, sent: bytes = b"") -> None:
        self.sent = sent


class _Service:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.attempts: Counter[str] = Counter()
        self.sound: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.not_before: dict[str, float] = {}
        self.nothing_before = 0.0
        self.early = self.early_any = self.under_way = self.peak = self.connections = 0
        self.slots = asyncio.Semaphore(options.slots)
        self.bucket: list[float] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                method, path, headers, body = await self._read(reader)
                try:
                    status, more, said = await self._answer(method, path, headers, body)
                except _Fault as fault:
                    await self._break_off(writer, fault.sent)
                    break
                writer.write(_response(status, more, said))
                await writer.drain()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:]) if n}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = lines[0].split(" ")
        return method, path, headers, body

    async def _break_off(self, writer: asyncio.StreamWriter, sent: bytes) -> None:
        if sent:
            writer.write(sent)
            await writer.drain()
            return
        # Sends a reset instead of an orderly end.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        if path == "/stats":
            return 200, {}, json.dumps(self._stats()).encode()
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if self.options.key and key != self.options.key:
            return _error(401, f"Incorrect API key provided: {key}.")
        if path == "/v1/models":
            listed = [{"id": MODEL, "object": "model", "max_model_len": 4096}]
            return 200, {}, json.dumps({"object": "list", "data": listed}).encode()
        if method != "POST" or path not in ("/v1/completions", "/v1/chat/completions"):
            return _error(404, "Not Found")
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            return await self._complete(path, json.loads(body), hashlib.sha256(body).hexdigest())
        finally:
            self.under_way -= 1

    def _stats(self) -> dict[str, Any]:
        return {
            "requests": self.attempts.total(),
            "sound": self.sound.total(),
            "sound_twice": sum(n > 1 for n in self.sound.values()),
            "faults": dict(self.faults),
            "early": self.early,
            "early_any": self.early_any,
            "peak": self.peak,
            "connections": self.connections,
        }

    async def _complete(self, path: str, asked: dict[str, Any], digest: str) -> tuple[int, Any, bytes]:
        prompt = asked["prompt"] if path == "/v1/completions" else asked["messages"][-1]["content"]
        if asked["model"] != MODEL:
            return _error(404, f"The model `{asked['model']}` does not exist.", "model_not_found")
        if self.options.token_limit not in asked:
            wanted = self.options.token_limit
            return _error(400, f"Unsupported parameter: 'max_tokens' is not supported. Use '{wanted}' instead.")
        now = time.monotonic()
        self.early += now < self.not_before.pop(digest, 0.0)
        self.early_any += now < self.nothing_before
        attempt = self.attempts[digest]
        self.attempts[digest] += 1
        async with self.slots:
            await asyncio.sleep(self.options.latency)
        said = await self._by_rule(prompt) or self._refuse_too_many()
        if said is not None:
            return said
        completion = self._completion(path, asked, prompt)
        draw = hashlib.sha256(f"{self.options.seed}:{digest}:{attempt}".encode()).digest()
        if prompt != "Hi" and int.from_bytes(draw[:4], "big") < self.options.faults * 2**32:
            kinds = self.options.kinds.split(",") if self.options.kinds else KINDS
            kind = kinds[draw[4] % len(kinds)]
            self.faults[kind] += 1
            if kind != "slow":
                return self._fail(kind, digest, completion)
            await asyncio.sleep(0.05)
        self.sound[digest] += 1
        return 200, self._limits(), completion

    async def _by_rule(self, prompt: str) -> tuple[int, Any, bytes] | None:
        """What prompts ask for by their first word."""
        match prompt.partition(" ")[0]:
            case "!hang":
                await asyncio.sleep(3600)
            case "!500":
                return _error(500, "CUDA error: an illegal memory access was encountered")
            case "!long":
                return _error(400, "This model's maximum context length is 4096 tokens. " + "word " * 500)
            case "!large":
                return _error(413, "Payload Too Large")
            case "!quota":
                return _error(429, "You exceeded your current quota.", "insufficient_quota")
            case "!later":
                return (429, {"retry-after": "86400"}, _error(429, "Come back tomorrow.")[2])
        return None

    def _refuse_too_many(self) -> tuple[int, Any, bytes] | None:
        """A bucket of so many requests per second, if there is one."""
        if not self.options.per_s:
            return None
        now = time.monotonic()
        self.bucket = [at for at in self.bucket if at > now - 1]
        if len(self.bucket) >= self.options.per_s:
            self.faults["rate"] += 1
            return _error(429, "Rate limit reached.")
        self.bucket.append(now)
        return None

    def _limits(self) -> dict[str, str]:
        if not self.options.per_s:
            return {}
        left = self.options.per_s - len(self.bucket)
        return {
            "x-ratelimit-limit-requests": str(self.options.per_s),
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": "1s",
        }

    def _completion(self, path: str, asked: dict[str, Any], prompt: str) -> bytes:
        text, finish = answer_to(prompt), "stop"
        if prompt.startswith("!filter"):
            text, finish = "", "content_filter"
        if asked.get("response_format"):
            fits = prompt.startswith("!fits") or (prompt.startswith("!fussy") and asked["temperature"] > 0)
            text = json.dumps({"name": answer_to(prompt), "seed": asked["seed"]}) if fits else '{"name": 7}'
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(text.split())}
        chosen = {"text": text} if path == "/v1/completions" else {"message": {"role": "assistant", "content": text}}
        return json.dumps({"choices": [{**chosen, "finish_reason": finish}], "usage": usage}).encode()

    def _fail(self, kind: str, digest: str, completion: bytes) -> tuple[int, Any, bytes]:
        if kind in ("429", "429 date"):
            # In this order: a pause between the two clocks asks for less, not for more than is said.
            began, now = time.monotonic(), time.time()
            until = now + 0.02 if kind == "429" else int(now) + 1
            # Less than a clock may be set by meanwhile.
            self.nothing_before = self.not_before[digest] = began + until - now - 0.005
            said = str(until - now) if kind == "429" else formatdate(until, usegmt=True)
            return 429, {"retry-after": said}, _error(429, "Too many requests.")[2]
        if kind in ("500", "503"):
            return _error(int(kind), "Internal error.")
        if kind == "garbage":
            return 200, {}, b"<html>Bad gateway</html>"
        if kind == "no choices":
            return 200, {}, b'{"choices": []}'
        if kind == "cut json":
            return 200, {}, completion[: len(completion) // 2]
        if kind == "short body":
            raise _Fault(_response(200, {}, completion)[:-20])
        raise _Fault


def _error(status: int, message: str, code: str | None = None) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps({"error": {"message": message, "code": code}}).encode()


def _response(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="")
    parser.add_argument("--faults", type=float, default=0.0)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--per-s", type=int, default=0)
    parser.add_argument("--token-limit", default="max_tokens")
    service = _Service(parser.parse_args())
    server = await asyncio.start_server(service.serve, "127.0.0.1", service.options.port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
