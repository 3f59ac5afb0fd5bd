"""Runs that are computed in this process and kept in its memory: of data in memory, without a run folder."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from shardmill.core.console import say
from shardmill.core.devices import Device, parse_device
from shardmill.core.errors import UsageError
from shardmill.store.remote import forget_memory

_Result = TypeVar("_Result", bound=Any)
_NAME = "memory://shardmill-"
# What workers in other processes would be needed for.
_ELSEWHERE = ("engine", "workers", "detach", "engine_options", "hosts")
# Nothing resumes, so shards need not be small.
_SHARD_BYTES = 64 << 20
_told = False


def is_in_memory(url: str) -> bool:
    """Whether a run is in the memory of this process alone."""
    return url.startswith(_NAME)


def choose_one(devices: list[Device], asked: str) -> list[Device]:
    """The device of the one worker here: this process sees the GPUs as it was started."""
    _, numbers = parse_device(asked)
    if numbers and numbers[0]:
        raise UsageError(
            f"--device {asked}: without --out the first GPU computes.",
            hint="Name a folder for the run: --out runs/mine, or set CUDA_VISIBLE_DEVICES before Python starts.",
        )
    return devices[:1]


def start_in_memory(
    start: Callable[[str, dict[str, Any]], _Result], execution: dict[str, Any], *, quiet: bool
) -> _Result:
    """Start a run without a folder, with the address and the execution that it gets.

    The memory is free again when nothing refers to the result any more.
    """
    for name in _ELSEWHERE:
        if execution.get(name):
            raise UsageError(
                f"--{name.replace('_', '-')} needs a run folder that workers can see.", hint="Name one: --out runs/mine"
            )
    _say_once(quiet)
    url = f"{_NAME}{uuid.uuid4().hex}/run"
    try:
        result = start(url, {"shard_bytes": _SHARD_BYTES, **execution, "workers": 1})
        # Whatever reads the result holds its store.
        weakref.finalize(getattr(result, "run", result).ledger.store, forget_memory, url)
    except BaseException:
        forget_memory(url)
        raise
    return result


def _say_once(quiet: bool) -> None:
    global _told
    if not (_told or quiet):
        say("Without out= the run is not crash-safe: it is computed in this process, and its result is only in memory.")
    _told = True
