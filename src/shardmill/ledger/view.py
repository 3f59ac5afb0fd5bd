"""A rolled-up view of a run: what a reader shows of it, in one object. It saves requests and proves nothing.

Whoever works writes it now and then. It has the heartbeats of all workers, the state of each shard, the sums over the
committed shards and their history, and failed rows by reason.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import check_record, read_object
from shardmill.ledger.history import History
from shardmill.ledger.record import DoneShard, encode
from shardmill.ledger.worker import complete_beat

# The state of a shard, as one byte.
WAITING, RUNNING, COMMITTED, CONVICTED = range(4)
STATES = ("waiting", "running", "done", "failed")
# A view lists this many workers: the living, then those seen last.
_MOST_WORKERS = 2000
MOST_REASONS = 10
_LONGEST_PLAN = 10_000_000
# What a view keeps of a heartbeat.
_KEPT = (
    *("id", "at", "live", "state", "host", "device", "kind", "share", "cores", "started", "began", "progress_at"),
    *("rows", "bytes", "tokens", "tokens_out", "errors", "commits", "rows_per_s", "bytes_per_s", "tokens_per_s"),
    *("open", "idle_s", "sink_wait_s", "timings", "rss_bytes", "device_bytes", "use", "error", "cpus", "notes"),
    *("place", "log"),
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over committed shards. `weight_bytes` is their share of the plan."""

    shards: int = 0
    rows: int = 0
    inputs: int = 0
    errors: int = 0
    tokens: int = 0
    tokens_out: int = 0
    truncated: int = 0
    device_s: float = 0.0
    weight_bytes: int = 0
    rows_in_part: int = 0
    dropped: int = 0

    def plus(self, done: Iterable[DoneShard], weights: Sequence[int]) -> Totals:
        sums = {name: getattr(self, name) for name in Totals.__slots__}
        for one in done:
            sums["shards"] += 1
            sums["weight_bytes"] += weights[one.shard]
            for name in _SUMMED:
                sums[name] += getattr(one, name)
        return Totals(**sums)


_SUMMED = tuple(name for name in Totals.__slots__ if name in DoneShard.__slots__)


@dataclass(frozen=True, slots=True)
class RunView:
    """What was known of a run `at` some time; the next view is expected `every_s` later.

    `states` has one byte per shard. `workers` are heartbeats with `live` as it was then. `unlisted` has the seconds of
    workers that are not listed, by device; there are some only after thousands of restarts. `reasons` are failed rows
    by reason with an example each, or None if no worker recorded them. `final` is the last view of a finished run.
    """

    generation: str
    at: float
    by: str
    every_s: float
    states: bytes
    totals: Totals
    workers: list[dict[str, Any]]
    history: History
    reasons: list[dict[str, Any]] | None = None
    unlisted: dict[str, float] = field(default_factory=dict)
    final: bool = False

    def encode(self) -> bytes:
        listed, unlisted = _choose(self.workers)
        return encode(
            {
                "generation": self.generation,
                "at": self.at,
                "by": self.by,
                "every_s": self.every_s,
                "shards": len(self.states),
                "states": base64.b64encode(zlib.compress(self.states)).decode(),
                "totals": {name: getattr(self.totals, name) for name in Totals.__slots__},
                "fields": list(_KEPT),
                "workers": [[beat.get(name) for name in _KEPT] for beat in listed],
                "unlisted": unlisted,
                "history": self.history.to_json(),
                "reasons": self.reasons,
                "final": self.final,
            }
        )

    @classmethod
    def decode(cls, data: bytes, place: str) -> RunView:
        """Read what `encode` wrote; CorruptState if it makes no sense."""
        said = read_object(data, place)
        try:
            states = _unpack(said["states"], said["shards"])
            beats = [complete_beat(dict(zip(said["fields"], row, strict=False))) for row in said["workers"]]
            unlisted = {str(device): float(seconds) for device, seconds in said["unlisted"].items()}
            if not all(map(math.isfinite, (said["at"], said["every_s"], *unlisted.values()))):
                raise ValueError("a time that is not a number")
            return cls(
                generation=str(said["generation"]),
                at=float(said["at"]),
                by=str(said["by"]),
                every_s=float(said["every_s"]),
                states=states,
                totals=check_record(Totals, said["totals"], place),
                workers=[beat for beat in beats if beat is not None],
                history=History.from_json(said["history"], place),
                reasons=None if said["reasons"] is None else merge_reasons([said["reasons"]]),
                unlisted=unlisted,
                final=bool(said["final"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError, zlib.error, binascii.Error) as error:
            raise CorruptState(f"{place} is damaged: {type(error).__name__}.") from error


def count_states(states: bytes) -> dict[str, int]:
    """How many shards are in each state."""
    return {name: states.count(number) for number, name in enumerate(STATES)}


def mark_states(shards: int, done: Iterable[int], running: Iterable[int], convicted: Iterable[int]) -> bytes:
    """One byte per shard. A shard with convicted rows has failed until somebody works on it again."""
    states = bytearray(shards)
    for some, state in ((convicted, CONVICTED), (running, RUNNING), (done, COMMITTED)):
        for shard in some:
            if 0 <= shard < shards:
                states[shard] = state
    return bytes(states)


def merge_reasons(lists: Iterable[Any]) -> list[dict[str, Any]]:
    """Failed rows by reason, from several workers: the most frequent first, each with one example."""
    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, Any]] = {}
    for record in (record for reasons in lists if isinstance(reasons, list) for record in reasons):
        if isinstance(record, dict) and isinstance(record.get("reason"), str) and type(record.get("count")) is int:
            counts[record["reason"]] += record["count"]
            examples.setdefault(record["reason"], record)
    return [{**examples[reason], "count": count} for reason, count in counts.most_common(MOST_REASONS)]


def _unpack(packed: str, shards: int) -> bytes:
    if not 0 <= shards <= _LONGEST_PLAN:
        raise ValueError(f"{shards} shards")
    unpacking = zlib.decompressobj()
    states = unpacking.decompress(base64.b64decode(packed, validate=True), shards + 1)
    if len(states) != shards or (states and max(states) >= len(STATES)):
        raise ValueError("states of other shards")
    return states


def _choose(workers: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], dict[str, float]]:
    """The workers that a view lists, and the seconds of the others by device."""
    ordered = sorted(workers, key=lambda beat: (not beat.get("live"), -beat["at"]))
    unlisted: Counter[str] = Counter()
    for beat in ordered[_MOST_WORKERS:]:
        unlisted[beat["device"]] += beat["share"] * max(0.0, beat["at"] - (beat["started"] or beat["at"]))
    return ordered[:_MOST_WORKERS], dict(unlisted)
