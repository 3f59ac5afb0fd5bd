"""The run folder's grammar: plan, commits, leases, heartbeats, suspects. Nothing else writes there.

A commit is the only truth about progress. Everything else here is a hint that saves time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import socket
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shardmill.errors import NotComplete, StoreError, UsageError
from shardmill.plan import Plan
from shardmill.store import LocalStore, Store, locate, open_store

_TRIES = 16
_FOLDERS = ("commits/", "parts/", "errors/", "leases/", "suspects/", "workers/", "logs/", "final/", "index/")


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
    """Who is at a shard until when. `crashes` counts those who held it and vanished."""

    worker: str
    host: str
    pid: int
    since: float
    until: float
    crashes: int = 0
    shadow: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A shard this worker is at. `attempt` names its part; a `shadow` works beside another who is slow."""

    shard: int
    attempt: str
    crashes: int = 0
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Hand:
    """What a folder that is only a branch of a run may work on. More may be handed to it, until some time."""

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
class Forecast:
    """What a run was expected to take, from the time it was begun: seconds at least, likely and at most."""

    at: float
    low_s: float
    likely_s: float
    high_s: float
    devices: int
    basis: str


class Ledger:
    """One run folder. Safe to use from any number of processes and hosts at once."""

    def __init__(self, place: str | os.PathLike[str] | Store, clock: Callable[[], float] = time.time) -> None:
        self.store: Store = open_store(place) if isinstance(place, str | os.PathLike) else place
        self.clock = clock
        self._commits: dict[int, Commit] = {}
        self._free: defaultdict[str, deque[int]] = defaultdict(deque)
        self._generation = ""

    @property
    def url(self) -> str:
        return self.store.url

    # plan and execution

    def create(self, plan: Plan) -> Plan:
        """Write the plan if none is there; the plan that stands there afterwards is returned."""
        plan = plan.indexed_at([self._keep_index(i, f.index) for i, f in enumerate(plan.stat.files)])
        self.store.put_if_absent("plan.json", replace(plan, generation=uuid.uuid4().hex[:8]).encode())
        return self.plan()

    def _keep_index(self, file: int, place: str) -> str:
        """Copy a file's index into the run, for workers elsewhere; the key is told apart by content."""
        if not place:
            return ""
        store, name = locate(place)
        data = store.get(name)
        key = f"index/{file:06d}.{hashlib.sha256(data).hexdigest()[:8]}"
        self.store.put(key, data)
        return key

    def plan(self) -> Plan:
        found = self.find_plan()
        if found is None:
            raise UsageError(f"{self.url}: no run is here.", hint="Give the folder that was --out when it was started.")
        return found

    def find_plan(self) -> Plan | None:
        try:
            plan = Plan.from_json(self.store.get("plan.json"))
        except FileNotFoundError:
            return None
        if plan.generation != self._generation:
            self._generation = plan.generation
            self._commits.clear()
            self._free.clear()
        plan = plan.indexed_at([f.index and f"{self.url}/{f.index}" for f in plan.stat.files])
        now = self.execution()
        return plan.relocated(now.get("places", ()), now.get("to_url", ""))

    def put_execution(self, settings: dict[str, Any]) -> None:
        self.store.put("execution.json", _encode({"generation": self._generation, "settings": settings}))

    def execution(self) -> dict[str, Any]:
        return dict(self._execution().get("settings", {}))

    def is_current(self) -> bool:
        """Whether the run is still the one whose plan was read here, and not wiped or begun anew since."""
        return bool(self._execution().get("generation") == self._generation)

    def _execution(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.store.get("execution.json")))
        except FileNotFoundError:
            return {}

    def put_forecast(self, forecast: Forecast) -> None:
        """Keep the first forecast of a run; later ones would be of what was left."""
        self.store.put_if_absent("forecast.json", _encode(asdict(forecast)))

    def forecast(self) -> Forecast | None:
        try:
            return Forecast(**json.loads(self.store.get("forecast.json")))
        except FileNotFoundError:
            return None

    # commits

    def commit(self, record: Commit) -> bool:
        """Whether this attempt is the one that counts. The first wins; coming second is no error."""
        return self.store.put_if_absent(self._key("commits", record.shard), _encode(asdict(record)))

    def done(self) -> set[int]:
        """Which shards are committed."""
        return set(self._indices("commits"))

    def commits(self) -> dict[int, Commit]:
        """All commits by shard; only those not seen before are fetched."""
        for index in sorted(self.done() - self._commits.keys()):
            self._commits[index] = Commit(**json.loads(self.store.get(self._key("commits", index))))
        return self._commits

    def all_commits(self, plan: Plan) -> list[Commit]:
        """One commit a shard, in source order; NotComplete while some are missing."""
        commits = self.commits()
        missing = [s.index for s in plan.shards if s.index not in commits]
        if missing:
            raise NotComplete(
                f"{self.url}: {len(missing)} of {len(plan.shards)} shards are not done.",
                hint="Run the same command again: it resumes.",
            )
        return [commits[s.index] for s in plan.shards]

    # leases

    def claim(
        self,
        worker: str,
        shards: int,
        *,
        lease_s: float,
        slot: float = 0.0,
        slow_s: float = 60.0,
        held: Collection[int] = (),
        among: Collection[int] | None = None,
    ) -> Claim | None:
        """Take a shard nobody is at: a free one, else one whose holder is gone, else the slowest near the end.

        `slot` in [0, 1) is where in the list this worker starts looking, so that many workers do not all try the same;
        `held` are the shards it is at already. What is there is listed only when the shards that were free at the last
        listing are used up: listing for each claim is more than a store of thousands of shards bears. Where a
        hand was dealt to this folder, or `among` names some shards, it is one of those.
        """
        lease = self._new_lease(worker, lease_s)
        if among is None and (hand := self.hand()) is not None:
            among = hand.shards
        claim = self._take_free(lease, held) if among is None else None
        if claim is not None:
            return claim
        done = self.done()
        pending = [i for i in (range(shards) if among is None else among) if i not in done and i not in held]
        if not pending:
            return None
        start = int(slot * len(pending))
        pending = pending[start:] + pending[:start]
        leased = set(self._indices("leases"))
        self._free[worker] = deque(i for i in pending if i not in leased)
        return self._take_free(lease, held) or self._take_over(
            worker, [i for i in pending if i in leased], lease_s, slow_s
        )

    def _take_free(self, lease: Lease, held: Collection[int]) -> Claim | None:
        """One of the shards that were free when last looked at, unless others took too many of them since."""
        free = self._free[lease.worker]
        for _ in range(min(_TRIES, len(free))):
            shard = free.popleft()
            if shard in held or not self.store.put_if_absent(self._key("leases", shard), _encode(asdict(lease))):
                continue
            if self.store.head(self._key("commits", shard)) is None:
                return Claim(shard, _attempt())
            self.store.delete(self._key("leases", shard))
        free.clear()
        return None

    def _take_over(self, worker: str, held: list[int], lease_s: float, slow_s: float) -> Claim | None:
        now = self.clock()
        slowest: tuple[float, int, Lease, str] | None = None
        for shard in held:
            found = self._lease(shard)
            if found is None:
                continue
            lease, tag = found
            if lease.until <= now or _vanished(lease):
                taken = self._new_lease(worker, lease_s, lease.crashes + 1)
                if self.store.replace_if_same(self._key("leases", shard), _encode(asdict(taken)), tag):
                    return Claim(shard, _attempt(), taken.crashes)
            elif lease.worker != worker and not lease.shadow and now - lease.since > slow_s:
                slowest = min(slowest or (lease.since, shard, lease, tag), (lease.since, shard, lease, tag))
        if slowest is None:
            return None
        _, shard, lease, tag = slowest
        shadowed = replace(lease, shadow=worker)
        if self.store.replace_if_same(self._key("leases", shard), _encode(asdict(shadowed)), tag):
            return Claim(shard, _attempt(), shadow=True)
        return None

    def renew(self, claim: Claim, worker: str, lease_s: float) -> None:
        found = self._lease(claim.shard)
        if found is None or found[0].worker != worker:
            return
        lease, tag = found
        renewed = replace(lease, until=self.clock() + lease_s)
        self.store.replace_if_same(self._key("leases", claim.shard), _encode(asdict(renewed)), tag)

    def release(self, claim: Claim, worker: str) -> None:
        """Give a shard back: done, or not begun, or left in good order."""
        found = self._lease(claim.shard)
        if found is not None and found[0].worker == worker:
            self.store.delete(self._key("leases", claim.shard))

    def bury(self, worker: str) -> None:
        """Let go of everything a dead worker held, counting its death against each shard it was at."""
        for shard in list(self._indices("leases")):
            found = self._lease(shard)
            if found is None or found[0].worker != worker:
                continue
            lease, tag = found
            buried = replace(lease, until=0.0)
            self.store.replace_if_same(self._key("leases", shard), _encode(asdict(buried)), tag)

    def leases(self) -> dict[int, Lease]:
        found = {shard: self._lease(shard) for shard in self._indices("leases")}
        return {shard: pair[0] for shard, pair in found.items() if pair is not None}

    def _lease(self, shard: int) -> tuple[Lease, str] | None:
        try:
            data, tag = self.store.get_tagged(self._key("leases", shard))
            return Lease(**json.loads(data)), tag
        except FileNotFoundError:
            return None

    def _new_lease(self, worker: str, lease_s: float, crashes: int = 0) -> Lease:
        now = self.clock()
        return Lease(worker, socket.gethostname(), os.getpid(), now, now + lease_s, crashes)

    # a branch of a run: its shards are dealt to it, its commits are fetched

    def deal(self, hand: Hand) -> None:
        self.store.put("hand.json", _encode(asdict(hand)))

    def hand(self) -> Hand | None:
        """What was dealt to this folder, which is a branch then; branches are on disks."""
        if not isinstance(self.store, LocalStore):
            return None
        try:
            raw = json.loads(self.store.get("hand.json"))
        except FileNotFoundError:
            return None
        return Hand(tuple(raw["shards"]), raw["until"])

    def is_over(self, shards: int) -> bool:
        """Whether nothing is left to do here, nor will be."""
        hand = self.hand()
        if hand is None:
            return len(self.done()) >= shards
        return self.clock() >= hand.until and self.done().issuperset(hand.shards)

    def forget(self, shards: Collection[int]) -> None:
        """Drop what a branch has of these shards: it was fetched, or is not wanted."""
        for shard in shards:
            with contextlib.suppress(FileNotFoundError):
                commit = json.loads(self.store.get(self._key("commits", shard)))
                for key in filter(None, (commit["part"], commit["errors_file"])):
                    self.store.delete(key)
            self.store.delete(self._key("commits", shard))
            self._commits.pop(shard, None)

    # rows that could not be done

    def put_errors(self, claim: Claim, lines: bytes) -> str:
        key = f"errors/{claim.shard:06d}.{claim.attempt}.jsonl"
        self.store.put(key, lines)
        return key

    def errors(self, commit: Commit) -> Iterator[dict[str, Any]]:
        if commit.errors_file:
            for line in self.store.get(commit.errors_file).splitlines():
                yield json.loads(line)

    def suspects(self, shard: int) -> Suspects:
        try:
            raw = json.loads(self.store.get(self._key("suspects", shard)))
            return Suspects(tuple(raw["rows"]), raw["strikes"], raw["probes"], tuple(raw["poison"]))
        except FileNotFoundError:
            return Suspects()

    def put_suspects(self, shard: int, suspects: Suspects) -> None:
        self.store.put(self._key("suspects", shard), _encode(asdict(suspects)))

    def drop_suspects(self, shard: int) -> None:
        self.store.delete(self._key("suspects", shard))

    # workers

    def beat(self, worker: str, state: dict[str, Any]) -> None:
        self.store.put(f"workers/{worker}.json", _encode({"id": worker, "at": self.clock(), **state}))

    def workers(self, most: int | None = None) -> list[dict[str, Any]]:
        """The last record of each worker; of more than `most`, of some of them."""
        entries = list(self.store.list("workers/"))
        found = []
        for entry in entries if most is None or len(entries) <= most else random.sample(entries, most):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found.append(json.loads(self.store.get(entry.key)))
        return found

    def log_path(self, name: str) -> Path | None:
        """Where a worker on this machine may write its log; None when the run is in an object store."""
        if not isinstance(self.store, LocalStore):
            return None
        folder = self.store.root / "logs"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}.") from error
        return folder / f"{name}.log"

    # the whole folder

    def sweep(self) -> int:
        """Delete what no commit names: parts and error lists of attempts that died or came second."""
        kept: set[str] = set()
        for shard, commit in self.commits().items():
            kept |= {self._key("commits", shard), commit.part, commit.errors_file}
        found = (e.key for folder in ("commits/", "parts/", "errors/") for e in self.store.list(folder))
        stray = [key for key in found if key not in kept]
        hints = [e.key for folder in ("leases/", "suspects/") for e in self.store.list(folder)]
        for key in [*stray, *hints]:
            self.store.delete(key)
        return len(stray)

    def wipe(self) -> None:
        """Delete the run and nothing beside it; commits first and the plan last, so that a half-wiped run is a run."""
        for folder in _FOLDERS:
            for entry in list(self.store.list(folder)):
                self.store.delete(entry.key)
        for name in ("report.json", "forecast.json", "execution.json", "plan.json"):
            self.store.delete(name)
        self._commits.clear()
        self._free.clear()
        self._generation = ""

    def _key(self, folder: str, shard: int) -> str:
        return f"{folder}/{shard:06d}.{self._known_generation()}.json"

    def _indices(self, folder: str) -> Iterator[int]:
        """The shards that have something in a folder, in this life of the run."""
        ending = f"{self._known_generation()}.json"
        for entry in self.store.list(f"{folder}/"):
            shard, _, rest = entry.key.rpartition("/")[2].partition(".")
            if rest == ending:
                yield int(shard)

    def _known_generation(self) -> str:
        if not self._generation:
            self.find_plan()
        return self._generation

    def put_report(self, report: dict[str, Any]) -> None:
        self.store.put("report.json", json.dumps(report, indent=2, sort_keys=True).encode())


def process_alive(host: str, pid: int) -> bool | None:
    """Whether a process lives, where that can be known: on its own host."""
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return False


def _vanished(lease: Lease) -> bool:
    return process_alive(lease.host, lease.pid) is False


def _attempt() -> str:
    return uuid.uuid4().hex[:8]


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
