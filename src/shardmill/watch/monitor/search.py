"""Search over finished runs, in a process of its own that is started by the first search and ends when idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from shardmill.core.errors import ShardmillError, StoreError, UsageError

LONGEST_QUERY = 2000
_PATIENCE_S, _IDLE_S = 300.0, 600.0
# Searches that may wait for the one that is under way.
_WAITING = 8
_LONGEST_ANSWER = 4 << 20


class Searcher:
    """Keeps at most one process, for the runs searched last. The model and the vectors are its memory alone."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._over: tuple[str, ...] = ()
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def search(self, urls: Sequence[str], text: str, k: int, map_url: str = "") -> list[dict[str, Any]]:
        """The `k` items nearest to a text, with their points on a map. ShardmillError says why there is no answer."""
        if self._waiting >= _WAITING:
            raise StoreError("Too many searches at once.", hint="Try again in a moment.")
        self._waiting += 1
        try:
            async with self._lock:
                return await self._ask((map_url, *urls), {"text": text, "k": k})
        finally:
            self._waiting -= 1

    async def _ask(self, over: tuple[str, ...], request: dict[str, Any]) -> list[dict[str, Any]]:
        if self._idle is not None:
            self._idle.cancel()
        try:
            process = await self._process_for(over)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(_PATIENCE_S):
                await process.stdin.drain()
                line = await process.stdout.readline()
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            await self.close()
            slow = isinstance(error, TimeoutError)
            raise StoreError(
                f"The search took longer than {_PATIENCE_S:.0f} s." if slow else "The search ended without an answer.",
                hint="`shardmill search` says more.",
            ) from error
        self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self.stop)
        if "error" in answer:
            raise UsageError(answer["error"])
        hits: list[dict[str, Any]] = answer["hits"]
        return hits

    async def _process_for(self, over: tuple[str, ...]) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None or self._over != over:
            await self.close()
            threads = str(max(1, (os.cpu_count() or 2) // 2))
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shardmill.watch.monitor.searching", *over),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"},
                limit=_LONGEST_ANSWER,
                start_new_session=True,
            )
            self._over = over
        return self._process

    def stop(self) -> None:
        """End the process; the next search starts another."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        self.stop()
        if self._process is not None:
            await self._process.wait()
            self._process = None


def explain(error: ShardmillError) -> str:
    """What went wrong and what to do, on one line."""
    return f"{error.message} {error.hint}".strip()
