"""Everything that the report of a run says, read from its folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardmill._version import __version__
from shardmill.core.errors import ShardmillError
from shardmill.ledger import Commit, HistoryPoint, Ledger
from shardmill.plan import Plan
from shardmill.plugins import find_verb
from shardmill.run.costs.cost import Cost, read_cost
from shardmill.run.editions import EditionLine, list_editions
from shardmill.run.reports.shape import OwnAccount
from shardmill.run.status.past import read_past
from shardmill.run.status.state import Status

_MOST_EDITIONS = 20
_ABOUT_ENGINE = ("engine", "workers", "precision", "device", "max_errors", "deadline", "budget_usd")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What the workers on one kind of device did together."""

    device: str
    workers: int
    hosts: int
    rows: int
    device_s: float
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Account:
    """What a run was, did and cost. `proof` is its report.json as `verify` wrote it, None if it was not verified.

    `ended_at` is None while workers are at work. `lengths` counts inputs by powers of two of their tokens. `past` is
    empty if the workers recorded no history. `computed` says by which kernel and precision how many rows were made.
    `own` is what the verb tells, such as the trials of a study or the curve of a training. `editions` are the newest
    ones of a run that was refreshed.
    """

    run: str
    version: str
    made_at: float
    state: str
    plan: Plan
    settings: dict[str, Any]
    status: Status
    cost: Cost
    began_at: float | None
    ended_at: float | None
    devices: tuple[DeviceUse, ...]
    computed: dict[str, int]
    libraries: dict[str, tuple[str, ...]]
    lengths: tuple[int, ...]
    past: tuple[HistoryPoint, ...]
    proof: dict[str, Any] | None
    own: OwnAccount | None = None
    editions: tuple[EditionLine, ...] = ()

    @property
    def has_long_items(self) -> bool:
        """Whether a row is a trial or a training, so that rates and lengths of rows say nothing."""
        return find_verb(self.plan.work.task).long_items

    @property
    def verdict(self) -> str:
        """Whether the result was proved, in a word or two."""
        if self.state != "complete":
            return "not complete"
        if self.proof is None:
            return "not verified"
        return "verified" if self.proof.get("verified") else "verification failed"

    def to_json(self) -> dict[str, Any]:
        source = self.plan.stat
        return {
            "run": self.run,
            "shardmill": self.version,
            "made_at": self.made_at,
            "state": self.state,
            "verdict": self.verdict,
            "plan": {
                "id": self.plan.id,
                "generation": self.plan.generation,
                "work": self.plan.work.model_dump(mode="json", exclude_none=True),
                "fingerprint": dict(self.plan.fingerprint),
                "shards": len(self.plan.shards),
                "source": {"format": source.format, "files": len(source.files), "bytes": source.size_bytes},
            },
            "settings": self.settings,
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "rows": self.status.rows,
            "errors": self.status.errors,
            "tokens": self.status.tokens,
            "tokens_out": self.status.tokens_out,
            "truncated": self.status.truncated,
            "rows_per_s": self.status.mean_rows_per_s,
            "reasons": self.status.reasons,
            "devices": [asdict(use) for use in self.devices],
            "computed": self.computed,
            "libraries": self.libraries,
            "lengths": self.lengths,
            "past": [{name: getattr(point, name) for name in HistoryPoint.__slots__} for point in self.past],
            "cost": {name: value for name, value in self.cost.to_json().items() if name != "workers"},
            "proof": self.proof,
            "editions": [line.to_json() for line in self.editions],
            **({self.own.name: self.own.to_json()} if self.own is not None else {}),
        }


def read_account(ledger: Ledger, plan: Plan, status: Status) -> Account:
    """Read what a run recorded, at any time during or after it; `status` was just read."""
    commits = ledger.commits.read().values()
    proof = ledger.notes.report()
    ends = [*(float(worker["at"]) for worker in status.workers), *(step.ended_at for step in status.steps)]
    settings = {name: value for name, value in ledger.execution().items() if name in _ABOUT_ENGINE and value}
    return Account(
        run=ledger.url,
        version=__version__,
        made_at=time.time(),
        state=status.state,
        plan=plan,
        settings=settings,
        status=status,
        cost=read_cost(ledger, plan),
        began_at=status.times.began_at,
        ended_at=None if status.state == "running" else max(ends, default=None),
        devices=_devices(status.workers),
        computed=_computed(commits),
        libraries=_versions(status.workers),
        lengths=_add(commit.lengths for commit in commits),
        past=tuple(read_past(ledger, status)),
        # A proof of an earlier plan in this folder says nothing about this one.
        proof=proof if proof is not None and proof.get("plan") == plan.id else None,
        own=_read_own(ledger, plan, status),
        editions=_read_editions(ledger),
    )


def _read_editions(ledger: Ledger) -> tuple[EditionLine, ...]:
    """None of a run that has one edition, or whose editions cannot be read."""
    try:
        found = list_editions(ledger.url, _MOST_EDITIONS)
    except (ShardmillError, FileNotFoundError):
        return ()
    return tuple(found) if len(found) > 1 else ()


def _read_own(ledger: Ledger, plan: Plan, status: Status) -> OwnAccount | None:
    """What the verb tells. A run whose parts are damaged still has a report, and `verify` says what is wrong."""
    read = find_verb(plan.work.task).part("report")
    try:
        found: OwnAccount | None = None if read is None else read(ledger, plan, status)
    except (ShardmillError, FileNotFoundError):
        return None
    return found


def _devices(workers: Iterable[Mapping[str, Any]]) -> tuple[DeviceUse, ...]:
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for worker in workers:
        by_device.setdefault(str(worker["device"]), []).append(worker)
    return tuple(
        DeviceUse(
            device,
            len(those),
            len({worker["host"] for worker in those}),
            sum(int(worker["rows"]) for worker in those),
            sum(float((worker.get("timings") or {}).get("device_s", 0.0)) for worker in those),
            max(int(worker.get("peak_rss_bytes") or worker["rss_bytes"]) for worker in those),
        )
        for device, those in sorted(by_device.items())
    )


def _computed(commits: Iterable[Commit]) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for commit in commits:
        rows[", ".join(filter(None, (commit.kernel, commit.precision))) or "not recorded"] += commit.rows
    return dict(rows.most_common())


def _versions(workers: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Every version of each library that a worker used; more than one if hosts differ."""
    found: dict[str, set[str]] = {}
    for worker in workers:
        named = worker.get("libraries")
        pairs = {"shardmill": worker.get("version"), **(named if isinstance(named, dict) else {})}
        for name, version in pairs.items():
            if version:
                found.setdefault(str(name), set()).add(str(version))
    return {name: tuple(sorted(versions)) for name, versions in found.items()}


def _add(counts: Iterable[list[int]]) -> tuple[int, ...]:
    total: list[int] = []
    for each in counts:
        total += [0] * (len(each) - len(total))
        for power, count in enumerate(each):
            total[power] += count
    return tuple(total)
