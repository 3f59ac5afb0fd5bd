"""Rates measured by finished runs on this machine, kept in the user's cache folder for later plans."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from shardmill.core.cache import Cache
from shardmill.core.devices import cores, cpu_model
from shardmill.plan.sizing.measured import Measured

_CACHE = Cache("profile.json", "rates")
CPU = "cpu"
# A run much shorter than the recorded one is less reliable.
_SHORTER = 0.1


@dataclass(frozen=True, slots=True)
class Rated:
    """What a rate applies to: the device's name, the work (a task and its model's digest), the precision."""

    device: str
    work: str
    precision: str

    @classmethod
    def on(cls, device: str, work: str, precision: str) -> Rated:
        """On a GPU of this name, or on this machine's own CPU."""
        return cls(own_cpu() if device == CPU else device, work, precision)

    @property
    def name(self) -> str:
        return json.dumps([self.device, self.work, self.precision])


def work_digest(task: str, fingerprint: dict[str, str], params: dict[str, Any], *, listed: bool = False) -> str:
    """A name for a task and its model or function, the same on every machine, with what adds work.

    The source of `listed` items has only their paths, so that its bytes say something else.
    """
    windows = (
        f" windows of {params['window_tokens']}, {params.get('overlap') or 0}" if "window_tokens" in params else ""
    )
    makes = f" up to {params['max_tokens']}" if "max_tokens" in params else ""
    called = fingerprint.get("weights") or fingerprint.get("function", "")
    return f"{task} {called[:16]}{windows}{makes}{' listed' if listed else ''}"


def own_cpu() -> str:
    """This machine's CPU model and usable cores, since several machines may share a cache folder."""
    return f"{CPU} {cpu_model()}, {cores()} cores"


def recall_rate(rated: Rated) -> Measured | None:
    """The recorded rate; None if it is missing, broken, or of too few texts."""
    try:
        measured = Measured(**_CACHE.read()[rated.name])
        return measured if measured.is_enough else None
    except (LookupError, TypeError, ValueError):
        return None


def recall_rates(work: str, precision: str) -> dict[str, Measured]:
    """The recorded rates of this work, by device name."""
    found = {}
    for name in _CACHE.read():
        try:
            device, other, how = json.loads(name)
        except (TypeError, ValueError):
            continue
        measured = recall_rate(Rated(device, other, how))
        if (other, how) == (work, precision) and measured is not None:
            found[device] = measured
    return found


def remember_rate(rated: Rated, measured: Measured) -> None:
    """Record a rate, unless it is of too few texts, or the recorded one is from a run more than ten times as long."""
    before = recall_rate(rated)
    if not measured.is_enough:
        return
    if before is None or measured.tokens >= _SHORTER * before.tokens:
        _CACHE.put(rated.name, asdict(measured))
