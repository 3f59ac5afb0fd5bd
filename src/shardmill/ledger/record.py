"""The records of a run folder, as values."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

# A name that is one part of a path.
_PLAIN = "[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True, slots=True)
class Commit:
    """The durable record that one shard is done.

    `rows` counts items of the source. `part_rows` counts rows of the part and `inputs` texts given to the model, if an
    item can have several; 0 means one per item, unless items were `dropped`: those that the task gave no row. `tokens`
    were read, `tokens_out` generated. `kernel` and `precision` say how the rows were computed. `lengths` counts inputs
    by their cost, in tokens for most tasks: the number at i is of those from 2**i on. Rows that an earlier attempt kept
    are not in it. `items_digest` is of the items as they were read, `rows_digest` of the part's rows as the task
    returned them, each bound to its place; "" if a version wrote it that made none. Of `reused` items the rows were
    taken over from an earlier edition; about `borrowed_bytes` of them stayed in its parts. `unreadable` of the
    `errors` are of items that the source has without a usable text.
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
    kernel: str = ""
    precision: str = ""
    tokens_out: int = 0
    lengths: list[int] = field(default_factory=list)
    dropped: int = 0
    items_digest: str = ""
    rows_digest: str = ""
    reused: int = 0
    borrowed_bytes: int = 0
    unreadable: int = 0

    def __post_init__(self) -> None:
        for key, folder in ((self.part, "parts"), (self.errors_file, "errors")):
            if key and not re.fullmatch(rf"{folder}/{_PLAIN}", key):
                raise ValueError(f"{key!r} is not a file of this run")

    @property
    def rows_in_part(self) -> int:
        return self.part_rows if self.part_rows or self.dropped else self.rows

    @property
    def rows_bytes(self) -> int:
        """About how large its rows are, wherever they lie."""
        return self.part_bytes + self.borrowed_bytes


@dataclass(frozen=True, slots=True)
class DoneShard:
    """What a status, a limit or a price needs of a commit."""

    shard: int
    rows: int
    inputs: int
    errors: int
    tokens: int
    truncated: int
    device_s: float
    worker: str
    finished_at: float
    tokens_out: int = 0
    rows_in_part: int = 0
    dropped: int = 0

    @classmethod
    def of(cls, commit: Commit) -> DoneShard:
        device_s = commit.timings.get("device_s", 0.0)
        same = {name: getattr(commit, name) for name in cls.__slots__ if name != "device_s"}
        return cls(device_s=device_s, **same)


@dataclass(frozen=True, slots=True)
class Lease:
    """Which worker holds a shard, until when, and when it is `due` to commit: 0 while unknown.

    `host` names the process (`name_process`), not only its host. `crashes` counts earlier holders that vanished;
    `shadow` is the worker that repeats the shard beside the holder.
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
    """A shard that this worker works on. `attempt` names its part; a `shadow` works beside a slow holder."""

    shard: int
    attempt: str
    crashes: int = 0
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Items [first_row, first_row + rows) of a shard that an attempt finished: counts, failed rows, how computed.

    Its digests are those that a commit of these items alone would have.
    """

    shard: int
    plan: str
    first_row: int
    rows: int
    part_rows: int
    counts: dict[str, int]
    numerics: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    items_digest: str = ""
    rows_digest: str = ""
    reused: int = 0

    @property
    def stop(self) -> int:
        return self.first_row + self.rows


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The last two checkpoints of an item, and the attempt that may replace them; without files, nothing was kept yet.

    `files` has the key, the size and the digest of each file by its name, `before_files` those of the one before.
    """

    shard: int
    row: int
    plan: str
    attempt: str
    step: int = 0
    at: float = 0.0
    files: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    before_step: int = 0
    before_files: dict[str, tuple[str, int, str]] = field(default_factory=dict)

    @property
    def before(self) -> CheckpointRecord:
        """The checkpoint before this one, as if it were the last."""
        return replace(self, step=self.before_step, files=self.before_files, before_step=0, before_files={})

    @property
    def keys(self) -> set[str]:
        return {key for key, _, _ in (*self.files.values(), *self.before_files.values())}


@dataclass(frozen=True, slots=True)
class Gang:
    """Workers that work on one item together, in order of their rank. Without members, the first ones are awaited.

    `generation` grows whenever others work together; `address` is that of the first. `over` once nobody is needed.
    """

    shard: int
    row: int
    generation: int
    leader: str
    address: str = ""
    members: tuple[str, ...] = ()
    over: bool = False


@dataclass(frozen=True, slots=True)
class GangMember:
    """A worker that belongs to a gang or waits for a place in it, until when; `process` names its process."""

    worker: str
    process: str
    pid: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """The shards that a branch may work on. More may be assigned before `until`."""

    shards: tuple[int, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Suspects:
    """Rows of a shard that were on the device when a worker vanished; `poison` are rows that proved to be the cause.

    `strikes` counts workers that died on the last remaining row, `probes` workers that died on a plain text.
    """

    rows: tuple[int, ...] = ()
    strikes: int = 0
    probes: int = 0
    poison: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its holder until when, or its `result`, or why it failed. `deaths` counts holders that vanished.

    The last holder had it from `began_at` to `ended_at`; version 0.2.0 does not say.
    """

    step: str
    state: str
    worker: str = ""
    host: str = ""
    pid: int = 0
    until: float = 0.0
    deaths: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    hint: str = ""
    began_at: float = field(default=0.0, compare=False)
    ended_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class RunForecast:
    """How long a run that began `at` was expected to take: the least, the likely and the most seconds."""

    at: float
    low_s: float
    likely_s: float
    high_s: float
    devices: int
    basis: str


@dataclass(frozen=True, slots=True)
class EditionSummary:
    """What the refresh that made an edition did, and when it was done.

    `seconds_saved` and `usd_saved` are what the reused items took when they were computed; None if that is not known.
    """

    edition: int
    at: float
    items_before: int = 0
    items: int = 0
    reused: int = 0
    computed: int = 0
    seconds: float = 0.0
    seconds_saved: float | None = None
    usd: float | None = None
    usd_saved: float | None = None


@dataclass(frozen=True, slots=True)
class RefreshState:
    """How the refreshes of a run go: its newest `edition`, and since when the source is known to be newer.

    At `fresh_at` the edition was last known to be what the source holds. `behind_since` is None while it is not known
    to be older. `failures` counts refreshes that failed in a row, the last one at `failed_at` with an `error`.
    `compared` is a digest of the files that were read and found to be what the edition was made from.
    """

    edition: int = 1
    made_at: float | None = None
    fresh_at: float | None = None
    behind_since: float | None = None
    failures: int = 0
    failed_at: float | None = None
    error: str = ""
    compared: str = ""


Record = (
    Commit
    | Lease
    | Assignment
    | Suspects
    | RunForecast
    | Step
    | KeptRows
    | CheckpointRecord
    | Gang
    | GangMember
    | EditionSummary
    | RefreshState
)

# Version 0.1.0 reads no commit with other keys than its own, so these are left out if they are empty.
_NEW_KEYS = (
    *("kernel", "precision", "tokens_out", "lengths", "dropped", "items_digest", "rows_digest", "reused"),
    *("borrowed_bytes", "unreadable"),
)
_to_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode


def encode(value: dict[str, Any] | Record) -> bytes:
    """A record as JSON; its fields are read by name, which avoids the copies of `asdict`."""
    if not isinstance(value, dict):
        fields = {name: getattr(value, name) for name in value.__slots__}
        value = {name: field for name, field in fields.items() if field or name not in _NEW_KEYS}
    return _to_json(value).encode("utf-8", "replace")
