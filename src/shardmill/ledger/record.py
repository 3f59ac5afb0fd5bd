"""What is written into a run folder, as values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Commit:
    """The durable record that one shard is done.

    `rows` counts items of the source. `part_rows` and `inputs` say how many rows the part has and how many texts the
    model was given, where an item can have several of them; 0 stands for one an item.
    """

    shard: int
    plan: str
    generation: str
    attempt: str
    part: str
    digest: str
    part_bytes: int
    rows: int
    lines: int
    errors: int
    errors_file: str
    tokens: int
    truncated: int
    worker: str
    device: str
    finished_at: float
    seconds: float
    timings: dict[str, float] = field(default_factory=dict)
    part_rows: int = 0
    inputs: int = 0

    @property
    def rows_in_part(self) -> int:
        return self.part_rows or self.rows


@dataclass(frozen=True, slots=True)
class Lease:
    """Who is at a shard until when, and when it expects to commit it, 0 while it cannot tell.

    `crashes` counts those who held it and vanished; `shadow` is who works beside the holder.
    """

    worker: str
    host: str
    pid: int
    since: float
    until: float
    crashes: int = 0
    shadow: str = ""
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A shard this worker is at. `attempt` names its part; a `shadow` works beside another who is slow."""

    shard: int
    attempt: str
    crashes: int = 0
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a folder that is only a branch of a run may work on. More may be assigned to it, until some time."""

    shards: tuple[int, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Suspects:
    """Rows of a shard that were on the device when a worker vanished, and rows that were found to do that alone.

    `strikes` counts how often the one row that is left was run and not survived, `probes` how often a plain text was.
    """

    rows: tuple[int, ...] = ()
    strikes: int = 0
    probes: int = 0
    poison: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunForecast:
    """What a run was expected to take, from the time it was begun: seconds at least, likely and at most."""

    at: float
    low_s: float
    likely_s: float
    high_s: float
    devices: int
    basis: str


_to_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode


def encode(value: dict[str, Any] | Commit | Lease | Assignment | Suspects | RunForecast) -> bytes:
    """As it is written; a record by the names of its fields, without the copying of `asdict`."""
    if not isinstance(value, dict):
        value = {name: getattr(value, name) for name in value.__slots__}
    return _to_json(value).encode("utf-8", "replace")
