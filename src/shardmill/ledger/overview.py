"""Writes and reads the rolled-up view of a run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.ledger.branch import Branch
from shardmill.ledger.commit import Commits
from shardmill.ledger.failure import SuspectRecords
from shardmill.ledger.folder import Folder
from shardmill.ledger.history import History, HistoryPoint
from shardmill.ledger.lease import Leases
from shardmill.ledger.record import DoneShard
from shardmill.ledger.segment import Segments
from shardmill.ledger.view import COMMITTED, RunView, Totals, mark_states, merge_reasons
from shardmill.ledger.worker import WorkerRecords, is_live
from shardmill.plan import Plan

_KEY = "view.json"
# Runs with this many shards or workers have a view. Of smaller ones the records themselves are read.
LARGE_SHARDS, LARGE_WORKERS = 1000, 32
# A view reads one record per worker, so more workers write it less often.
_EVERY_S, _EVERY_S_PER_WORKER = 30.0, 0.1
# More new commits than this are read from segments.
_MOST_NEW = 1000
_MOST_SUSPECTS = 32


def is_large(shards: int, workers: float) -> bool:
    return shards >= LARGE_SHARDS or workers > LARGE_WORKERS


def view_every_s(workers: float) -> float:
    """Seconds between two views of a run with this many workers."""
    return _EVERY_S + _EVERY_S_PER_WORKER * workers


class Overview:
    """Keeps the view. Of several processes that write it at once, one succeeds and the others give way."""

    def __init__(
        self,
        folder: Folder,
        commits: Commits,
        workers: WorkerRecords,
        leases: Leases,
        suspects: SuspectRecords,
        branch: Branch,
        clock: Callable[[], float],
    ) -> None:
        self._folder, self._store, self._commits = folder, folder.store, commits
        self._workers, self._leases, self._suspects = workers, leases, suspects
        self._branch, self._clock = branch, clock
        self._tag = ""
        self._seen: RunView | None = None

    def reset(self) -> None:
        """Forget what was read."""
        self._tag, self._seen = "", None

    def read(self) -> RunView | None:
        """The view, in one request that is answered in full only after a change; None if there is none for this run."""
        try:
            found = self._store.get_if_changed(_KEY, self._tag)
        except FileNotFoundError:
            self.reset()
            return None
        if found is not None:
            self._seen, self._tag = self._decode(found[0]), found[1]
        return self._seen

    def is_turn(self, shards: int, workers: float, waited_s: float) -> bool:
        """Whether a worker writes the view with this heartbeat, `waited_s` after the last: together, one per interval.

        A branch has none: home sees all workers.
        """
        if not is_large(shards, workers) or self._branch.assignment() is not None:
            return False
        return random.random() * view_every_s(workers) * max(1.0, workers) < 2 * waited_s

    def close(self, plan: Plan, by: str) -> None:
        """Leave the last view of a run whose shards are all committed, if it has views."""
        if is_large(len(plan.shards), 0) or self.read() is not None:
            self.write(plan, by, 1.0, final=True)

    def write(self, plan: Plan, by: str, workers: float, *, young_s: float | None = None, final: bool = False) -> bool:
        """Write the view unless there is one younger than `young_s`, by default half an interval; False if there is.

        The `final` one is written in any case.
        """
        tag: str | None
        try:
            data, tag = self._store.get_tagged(_KEY)
        except FileNotFoundError:
            data, tag = b"", None
        before, every_s = self._decode(data), view_every_s(workers)
        young_s = every_s / 2 if young_s is None else young_s
        if before is not None and not final and self._clock() - before.at < young_s:
            return False
        view = self._make(plan, by, every_s, before, final=final).encode()
        return self._store.put_if_absent(_KEY, view) if tag is None else self._store.replace_if_same(_KEY, view, tag)

    def _make(self, plan: Plan, by: str, every_s: float, before: RunView | None, *, final: bool) -> RunView:
        now, shards = self._clock(), len(plan.shards)
        beats = self._workers.read()
        workers = [{**beat, "live": is_live(beat, now)} for beat in beats]
        held = {int(shard) for beat in workers if beat["live"] for shard in beat["open"]}
        leased = set(self._leases.shards()) | held
        # The last view counts all commits anew.
        done, totals = self._sum_up(plan, None if final else before)
        recorded = [beat["reasons"] for beat in beats if "reasons" in beat]
        return RunView(
            generation=self._folder.known_generation(),
            at=now,
            by=by,
            every_s=every_s,
            states=mark_states(shards, done, leased, self._convicted()),
            totals=totals,
            workers=workers,
            history=_continue(before, totals, workers, now),
            reasons=merge_reasons(recorded) if recorded else None,
            final=final or (before is not None and before.final and len(done) == shards),
        )

    def _sum_up(self, plan: Plan, before: RunView | None) -> tuple[set[int], Totals]:
        """The committed shards and their sums: those of the view before and what was committed since.

        Without a view that makes sense, or if too much is new, all is summed up from segments.
        """
        shards, weights = len(plan.shards), plan.weights
        if before is not None:
            had = {i for i, state in enumerate(before.states) if state == COMMITTED}
            commits = Commits(self._folder)
            commits.believe(had)
            done = set(range(shards)) - set(commits.list_left(shards))
            new = sorted(done - had)
            if before.totals.shards == len(had) and len(new) <= _MOST_NEW:
                read = self._folder.ask_each(self._read_commit, new)
                return done, before.totals.plus(filter(None, read), weights)
        every = Segments(self._folder, Commits(self._folder), self._branch).read(shards)
        return set(every), Totals().plus(every.values(), weights)

    def _read_commit(self, shard: int) -> DoneShard | None:
        with contextlib.suppress(FileNotFoundError):
            return DoneShard.of(self._commits.get(shard))
        return None

    def _convicted(self) -> list[int]:
        """Shards with rows that killed workers; of many, some are looked at."""
        listed = list(self._folder.shards("suspects"))
        some = listed if len(listed) <= _MOST_SUSPECTS else random.sample(listed, _MOST_SUSPECTS)
        return [shard for shard in some if self._suspects.get(shard).poison]

    def _decode(self, data: bytes) -> RunView | None:
        with contextlib.suppress(CorruptState):
            view = RunView.decode(data, _KEY)
            return view if view.generation == self._folder.known_generation() else None
        return None


def _continue(before: RunView | None, totals: Totals, workers: list[dict[str, Any]], now: float) -> History:
    """The history of the totals, up to now."""
    history, was = (before.history, before.totals) if before is not None else (History(step_s=30.0), Totals())
    live = [worker for worker in workers if worker["live"]]
    began = [float(worker["began"]) for worker in workers if worker["began"]]
    since = before.at if before is not None else min([*began, now])
    uses = [float(use) for worker in live if (use := worker.get("use")) is not None]
    history.add(
        HistoryPoint(
            at=now,
            seconds=max(0.0, now - since),
            rows=totals.rows - was.rows,
            bytes=totals.weight_bytes - was.weight_bytes,
            tokens=totals.tokens - was.tokens,
            tokens_out=totals.tokens_out - was.tokens_out,
            memory_bytes=float(sum(worker["rss_bytes"] for worker in live)),
            device_bytes=float(sum(worker.get("device_bytes") or 0 for worker in live)),
            use=sum(uses) / len(uses) if uses else None,
        )
    )
    return history
