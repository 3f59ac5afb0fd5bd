"""The run folder's grammar: plan, commits, leases, heartbeats, suspects. Nothing else writes there.

A commit is the only truth about progress. Everything else here is a hint that saves time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from shardmill.errors import NotComplete, StoreError
from shardmill.ledger.leases import Leases, process_alive
from shardmill.ledger.records import Assignment, Claim, Commit, Lease, RunForecast, Suspects, encode
from shardmill.plan import Plan
from shardmill.store import LocalStore, Store

__all__ = ["Assignment", "Claim", "Commit", "Lease", "Ledger", "RunForecast", "Suspects", "process_alive"]

_FOLDERS = ("commits/", "parts/", "errors/", "leases/", "suspects/", "workers/", "logs/", "final/", "index/")


class Ledger(Leases):
    """One run folder. Safe to use from any number of processes and hosts at once."""

    def __init__(self, place: str | os.PathLike[str] | Store, clock: Callable[[], float] = time.time) -> None:
        super().__init__(place, clock)
        self._commits: dict[int, Commit] = {}

    def _forget(self) -> None:
        super()._forget()
        self._commits.clear()

    # commits

    def commit(self, record: Commit) -> bool:
        """Whether this attempt is the one that counts. The first wins; coming second is no error."""
        return self.store.put_if_absent(self._key("commits", record.shard), encode(record))

    def done(self) -> set[int]:
        """Which shards are committed."""
        return set(self._indices("commits"))

    def commits(self) -> dict[int, Commit]:
        """All commits by shard; only those not seen before are fetched."""
        new = sorted(self.done() - self._commits.keys())
        for index, data in zip(new, self._each(self.store.get, [self._key("commits", i) for i in new]), strict=True):
            self._commits[index] = Commit(**json.loads(data))
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
        self.store.put(self._key("suspects", shard), encode(suspects))

    def drop_suspects(self, shard: int) -> None:
        self.store.delete(self._key("suspects", shard))

    # workers

    def beat(self, worker: str, state: dict[str, Any]) -> None:
        self.store.put(f"workers/{worker}.json", encode({"id": worker, "at": self.clock(), **state}))

    def workers(self) -> list[dict[str, Any]]:
        """The last record of each worker."""
        return self.some_workers(None)[0]

    def some_workers(self, most: int | None) -> tuple[list[dict[str, Any]], float]:
        """The last records of some workers, and how many workers each of them stands for."""
        entries = list(self.store.list("workers/"))
        asked = entries if most is None or len(entries) <= most else random.sample(entries, most)
        found = self._each(self._worker, [entry.key for entry in asked])
        return [worker for worker in found if worker is not None], len(entries) / max(1, len(asked))

    def _worker(self, key: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self.store.get(key)))
        except (FileNotFoundError, ValueError):
            return None

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
        for name in ("report.json", "forecast.json", "placement.json", "execution.json", "plan.json"):
            self.store.delete(name)
        self._forget()

    def put_report(self, report: dict[str, Any]) -> None:
        self.store.put("report.json", json.dumps(report, indent=2, sort_keys=True).encode())
