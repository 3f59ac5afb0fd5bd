"""One run folder: its parts, and the operations that need more than one of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from shardmill.core.errors import CorruptState, Preempted, UsageError
from shardmill.core.records import read_object
from shardmill.ledger.branch import Branch
from shardmill.ledger.checkpoint import CheckpointRecords
from shardmill.ledger.commit import Commits
from shardmill.ledger.editions import FOLDER, POINTER, open_current
from shardmill.ledger.failure import ErrorRecords, SuspectRecords
from shardmill.ledger.folder import Folder
from shardmill.ledger.free import FreeSearch
from shardmill.ledger.gang import GangRecords
from shardmill.ledger.history import HistoryRecords
from shardmill.ledger.kept import KeptRecords
from shardmill.ledger.lease import Leases
from shardmill.ledger.note import Notes
from shardmill.ledger.overview import Overview
from shardmill.ledger.process import name_person
from shardmill.ledger.published import PublishedFiles
from shardmill.ledger.record import Assignment, Claim, encode
from shardmill.ledger.report import ReportRecords
from shardmill.ledger.segment import Segments
from shardmill.ledger.staff import KEY, StaffRecord
from shardmill.ledger.state import StateRecord, started_over
from shardmill.ledger.step import StepRecords
from shardmill.ledger.trial import TrialRecords
from shardmill.ledger.worker import WorkerRecords
from shardmill.plan import EDITIONS_FORMAT, SPILLED, Plan, ShardRows, is_spilled
from shardmill.store import Store, locate, replacing
from shardmill.store.pruned import PRUNED, pruned

_ROLLED_UP = ("segments/", "rolled/")
# Names in these folders have the generation, the attempt or the content in them, or they have not.
_OWN_NAMES = (
    *("commits/", "parts/", "errors/", *_ROLLED_UP, "leases/", "suspects/", "steps/", "index/", "kept/", "history/"),
    *("lots/", "checkpoints/", "reports/", "trials/", "gangs/", "earlier/"),
)
_SHARED_NAMES = ("workers/", "logs/", "final/", "model/", FOLDER)
# The settings and the state say of which generation they are.
_FILES = (
    "report.json",
    "receipt.json",
    "forecast.json",
    "placement.json",
    "view.json",
    "trace.json",
    "sample.json",
    "comparison.json",
    "comparison.html",
    "summary.json",
    "refreshes.json",
    KEY,
    POINTER,
    PRUNED,
)
# Of no use once every shard is committed.
_HINTS = ("leases/", "suspects/", "kept/", "checkpoints/", "gangs/")
_COPIED_BYTES = 4 << 20
_SEALED = "sealed"
_DAMAGED = "Delete it, then run the command that started the run again."
# How long settings may be away that are about to be written.
_SETTLING_S, _LOOK_EVERY_S = 10.0, 0.5


class Ledger:
    """One run folder. Safe to use from any number of processes and hosts at once.

    Of a run with several editions, a place means the current one; a store is taken as it is.

    It keeps the plan and the settings, gives out claims, and makes its parts forget an earlier generation of the run.
    """

    def __init__(self, place: str | os.PathLike[str] | Store, clock: Callable[[], float] = time.time) -> None:
        self.store: Store = open_current(place) if isinstance(place, str | os.PathLike) else place
        self.clock = clock
        self.folder = Folder(self.store)
        self.commits = Commits(self.folder)
        self.branch = Branch(self.store)
        self.segments = Segments(self.folder, self.commits, self.branch)
        self.workers = WorkerRecords(self.folder, clock)
        self.leases = Leases(self.folder, self.commits, self.workers, clock)
        self.suspects = SuspectRecords(self.folder)
        self.errors = ErrorRecords(self.store)
        self.kept = KeptRecords(self.folder)
        self.checkpoints = CheckpointRecords(self.folder, clock)
        self.reports = ReportRecords(self.folder)
        self.published = PublishedFiles(self.folder)
        self.gangs = GangRecords(self.folder, clock)
        self.history = HistoryRecords(self.folder)
        self.overview = Overview(
            self.folder, self.commits, self.workers, self.leases, self.suspects, self.branch, clock
        )
        self.notes = Notes(self.store, clock)
        self.steps = StepRecords(self.folder, clock)
        self.lots = StepRecords(self.folder, clock, "lots")
        self.state = StateRecord(self.folder, clock)
        self.staff = StaffRecord(self.folder, clock)
        self.trials = TrialRecords(self.folder, clock)
        self._free = FreeSearch(self.commits, self.segments, self.leases)
        self._plan_tag = ""

    @property
    def url(self) -> str:
        return self.store.url

    # the plan and the settings

    def create(self, plan: Plan) -> Plan:
        """Write the plan unless one exists, and return the plan that is stored. The run is wanted from now on."""
        self.store.put_if_absent("plan.json", self._new_generation(plan))
        stored = self.plan()
        # A process that died before its plan may have spilled other data.
        kept = {self._shorten(file.place) for file in stored.stat.files}
        self.store.delete_all([key for key in self._spilled() if key not in kept])
        self.state.want(name_person())
        return stored

    def start_over(self, plan: Plan) -> Plan:
        """Put another run in the place of this one. Returns the plan of another parent that was first to do so.

        The new plan comes first, and then the old run is deleted: whoever dies in between leaves one whole run. What
        has a name for all runs is deleted before, as it could be the new run's after, and nothing rests on it. Files
        of a newer run are written after its plan, so files listed before a look at the plan are none of them.
        """
        listed = [*self._spilled(), *(entry.key for folder in _OWN_NAMES for entry in self.store.list(folder))]
        shared = [entry.key for folder in _SHARED_NAMES for entry in self.store.list(folder)]
        data, tag = self.store.get_tagged("plan.json")
        if read_object(data, "plan.json", _DAMAGED).get(_SEALED):
            raise Preempted(
                f"{self.url} is complete: another process has made this edition.", hint="Run the same command again."
            )
        if Plan.from_json(data).generation == self.folder.generation:
            self.store.delete_all([*shared, *_FILES])
            new = self._new_generation(plan)
            if self.store.replace_if_same("plan.json", new, tag):
                kept = {key for file in Plan.from_json(new).stat.files for key in (file.index, file.place)}
                self.store.delete_all([key for key in listed if key not in kept])
        stored = self.plan()
        self.state.want(name_person())
        return stored

    def grow(self, plan: Plan) -> Plan:
        """Add the shards that a plan of more items has to the one that is stored, and return what is stored then."""
        while True:
            try:
                data, tag = self.store.get_tagged("plan.json")
            except FileNotFoundError:
                raise started_over(self.url) from None
            stored = Plan.from_json(data)
            if stored.generation != self.folder.generation:
                raise started_over(self.url)
            if len(stored.shards) >= len(plan.shards):
                return self.plan()
            grown = plan.indexed_at([file.index for file in stored.stat.files])
            self.store.replace_if_same("plan.json", replace(grown, generation=stored.generation).encode(), tag)

    def see_growth(self, plan: Plan) -> bool:
        """Whether shards were added to a plan of items since it was read; the plan has them then."""
        if not plan.work.items or not isinstance(plan.shards, ShardRows):
            return False
        try:
            found = self.store.get_if_changed("plan.json", self._plan_tag)
        except FileNotFoundError:
            return False
        if found is None:
            return False
        data, self._plan_tag = found
        stored, before = Plan.from_json(data), len(plan.shards)
        if stored.generation == plan.generation and isinstance(stored.shards, ShardRows):
            plan.shards.grow(stored.shards)
        return len(plan.shards) > before

    def confirm(self) -> None:
        """Write the plan anew, before workers are placed.

        A process that died while it started the run over may have sent another plan, which has not arrived yet. It is
        to replace the plan as it was, so it is refused from now on.
        """
        self._rewrite_plan(lambda said: {**said, "confirmed": uuid.uuid4().hex[:8]})

    def seal(self, plan: Plan) -> None:
        """Say in the plan of a complete edition that it is to be read: it is never started over from now on."""
        self.commits.read_complete(plan)
        self._rewrite_plan(lambda said: {**said, _SEALED: True})

    def is_sealed(self) -> bool:
        return bool(read_object(self.store.get("plan.json"), "plan.json", _DAMAGED).get(_SEALED))

    def mark_editions(self) -> None:
        """Say in the plan that the run has several editions: versions that do not know of them refuse it."""
        self._rewrite_plan(lambda said: {**said, "format": EDITIONS_FORMAT})

    def _rewrite_plan(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Change what the plan says beside the work, unless the run was started over since it was read."""
        while True:
            try:
                data, tag = self.store.get_tagged("plan.json")
            except FileNotFoundError:
                raise started_over(self.url) from None
            said = read_object(data, "plan.json", _DAMAGED)
            if said.get("generation") != self.folder.known_generation():
                raise started_over(self.url)
            if (new := change(said)) == said:
                return
            if self.store.replace_if_same("plan.json", json.dumps(new, separators=(",", ":")).encode(), tag):
                return

    def _new_generation(self, plan: Plan) -> bytes:
        plan = plan.indexed_at([self._keep_index(i, f.index) for i, f in enumerate(plan.stat.files)])
        plan = plan.placed_at([self._shorten(place) for place in plan.places])
        return replace(plan, generation=uuid.uuid4().hex[:8]).encode()

    def _keep_index(self, file: int, place: str) -> str:
        """Copy a file's index into the run, for workers elsewhere; the key depends on the content."""
        if not place:
            return ""
        store, name = locate(place)
        content = hashlib.sha256()
        with store.reader(name) as data:
            while block := data.read(_COPIED_BYTES):
                content.update(block)
        key = f"index/{file:06d}.{content.hexdigest()[:8]}"
        with store.reader(name) as data, replacing(key, self.store) as kept:
            shutil.copyfileobj(data, kept, _COPIED_BYTES)
        return key

    def _shorten(self, place: str) -> str:
        """The place of a file: inside the run by its key, so that the run can be moved."""
        key = place.removeprefix(f"{self.url}/")
        return key if is_spilled(key) else place

    def _spilled(self) -> list[str]:
        return [entry.key for entry in self.store.list(SPILLED) if is_spilled(entry.key)]

    def is_own(self, key: str) -> bool:
        """Whether a key is in a folder that only the ledger and the sinks write."""
        return key.startswith((*_OWN_NAMES, FOLDER, SPILLED))

    def plan(self) -> Plan:
        found = self.find_plan()
        if found is None:
            raise UsageError(f"{self.url}: no run found here.", hint="Give the folder that was --out when it started.")
        if found.format == EDITIONS_FORMAT and self.store.head(PRUNED) is not None:
            raise pruned(self.url)
        return found

    def find_plan(self) -> Plan | None:
        """The plan, with the current locations of its files; None if there is no run."""
        plan = self.folder.read_plan()
        if plan is None:
            return None
        if plan.generation != self.folder.generation:
            self._enter(plan.generation)
        plan = plan.indexed_at([f.index and f"{self.url}/{f.index}" for f in plan.stat.files])
        plan = plan.relocated(self.execution())
        if any(is_spilled(file.place) for file in plan.stat.files[:1]):
            plan = plan.placed_at([f"{self.url}/{place}" for place in plan.places])
        return plan

    def put_execution(self, settings: dict[str, Any]) -> None:
        """Store the settings that may change between resumes."""
        if places := settings.get("places"):
            settings = {**settings, "places": [*map(self._shorten, places)]}
        self.store.put("execution.json", encode({"generation": self.folder.generation, "settings": settings}))

    def execution(self) -> dict[str, Any]:
        """The settings; empty if the run has none yet."""
        return self._find_execution() or {}

    def settle(self) -> tuple[Plan, dict[str, Any]]:
        """The plan and its settings, for whoever works on the run or resumes it; no settings are made up.

        The process that starts a run writes them after the plan. Until they are there, this waits a little.
        """
        deadline = time.monotonic() + _SETTLING_S
        while True:
            plan, settings = self.plan(), self._find_execution()
            if settings is not None:
                return plan, settings
            if time.monotonic() >= deadline:
                raise Preempted(
                    f"{self.url} has no settings: the process that starts the run has not written them.",
                    hint="Run the command that started it again.",
                )
            time.sleep(_LOOK_EVERY_S)

    def _find_execution(self) -> dict[str, Any] | None:
        """The settings of this generation of the run; None if there are none."""
        try:
            found = self._parse_execution(self.store.get("execution.json"))
        except FileNotFoundError:
            return None
        settings = found.get("settings", {})
        places = settings.get("places", []) if isinstance(settings, dict) else None
        if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
            raise CorruptState(f"{self.url}/execution.json is damaged: no settings.", hint=_DAMAGED)
        own = self.folder.known_generation()
        return dict(settings) if found.get("generation", own) == own else None

    def _parse_execution(self, data: bytes) -> dict[str, Any]:
        found = read_object(data, f"{self.url}/execution.json", _DAMAGED)
        if not isinstance(found.get("stopped", {}), dict):
            raise CorruptState(f"{self.url}/execution.json is damaged: stopped.", hint=_DAMAGED)
        return found

    def _enter(self, generation: str) -> None:
        """Switch to another generation of the run, and forget the previous one."""
        self.folder.generation = generation
        for part in (self.commits, self.segments, self.workers, self.overview, self.state, self.staff, self._free):
            part.reset()

    # what to do next

    def claim(
        self,
        worker: str,
        shards: int,
        *,
        lease_s: float,
        slot: float = 0.0,
        slow_s: float = 60.0,
        own_s: float = 0.0,
        held: Collection[int] = (),
        among: Collection[int] | None = None,
        wave: int = 0,
    ) -> Claim | None:
        """Claim a shard: a free one, else one whose holder is gone, else shadow the slowest holder.

        `slot` in [0, 1) is where in the list this worker starts looking, so that workers do not all try the same shard;
        `held` are the shards it already has. A holder is slow if it would finish later than this worker, which needs
        `own_s` per shard; if one of the times is unknown, a holder is slow after `slow_s`. If this folder has an
        assignment, or `among` names shards, only those are claimed; else, of a plan with waves, those of the first wave
        that is not committed.
        """
        if self.staff.is_ending:
            return None
        if among is None and (assigned := self._assignment()) is not None:
            among = assigned.shards
        elif among is None and wave:
            among = self._open_wave(shards, wave)
        if among is not None:
            others = [i for i in sorted(among) if i not in held and not self.commits.is_done(i)]
            first = int(slot * len(others))
            claim = self.leases.take_first([*others[first:], *others[:first]], worker, lease_s)
        else:
            claim = self._free.take(worker, shards, slot, lease_s, held)
            if claim is not None:
                return claim
            others = [i for i in self.leases.shards() if i < shards and i not in held and not self.commits.saw_done(i)]
            claim = self._free.take_given_back(worker, shards, slot, lease_s, held, others)
        return claim or self.leases.take_over(others, worker, lease_s, slow_s, own_s)

    def is_over(self, shards: int) -> bool:
        """Whether no work is left and none will come: all shards are committed, or all of a final assignment."""
        assigned = self._assignment()
        if assigned is None:
            return self.commits.is_complete(shards)
        return self.clock() >= assigned.until and all(map(self.commits.is_done, assigned.shards))

    def has_free(self, shards: int, wave: int = 0) -> bool:
        """Whether a worker that begins now would find a shard: one that nobody holds, or whose holder is gone."""
        if self.staff.is_ending:
            return False
        if wave:
            shards = max(self._open_wave(shards, wave), default=-1) + 1
        leased = set(self.leases.shards()) - (committed := self.commits.shards())
        return len(leased) + len(committed) < shards or self.leases.has_abandoned(sorted(leased))

    def _open_wave(self, shards: int, wave: int) -> list[int]:
        """The shards left of the first wave that is not committed: those of later waves build on its results."""
        left = self.commits.look_for_gaps(0, shards)
        return [shard for shard in left if shard // wave == left[0] // wave]

    def _assignment(self) -> Assignment | None:
        """The last assignment, if any; its shards are looked up again, as home may have deleted their commits."""
        assigned = self.branch.assignment()
        if assigned is not None:
            self.commits.look_again(assigned.shards)
        return assigned

    def excuse(self, worker: str) -> None:
        """A worker was preempted, or its machine was lost: no strike against its shards, and no death of its own."""
        self.workers.excuse(worker)
        self.leases.excuse(worker)

    # the whole folder

    def sweep(self) -> int:
        """Delete what no commit names: parts and error lists of attempts that died or came second.

        Nothing is deleted if another parent has started the run over: files of its run are written after its plan, so
        files listed before a look at the plan are none of them.
        """
        kept: set[str] = set()
        for shard, commit in self.commits.read().items():
            kept |= {self.commits.key(shard), commit.part, commit.errors_file}
        found = (e.key for folder in ("commits/", "parts/", "errors/") for e in self.store.list(folder))
        stray = [key for key in found if key not in kept]
        hints = [e.key for folder in _HINTS for e in self.store.list(folder)]
        ending = f".{self.folder.generation}.json"
        hints += [e.key for kind in _ROLLED_UP for e in self.store.list(kind) if not e.key.endswith(ending)]
        plan = self.folder.read_plan()
        if plan is None or plan.generation != self.folder.generation:
            return 0
        self.store.delete_all([*stray, *hints])
        return len(stray)
