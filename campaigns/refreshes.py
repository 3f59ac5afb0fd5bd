"""Runs that are refreshed, rolled back and pruned while everything goes wrong that may, and others read them.

python -m campaigns.refreshes --seeds 1000
python -m campaigns.refreshes --seed 12      plays one seed again, with every request and fault

Somebody edits the source all the while. Whoever reads must find one edition, whole: the rows of the source in the state
that this edition was made from. Or it is told that the edition was pruned. In the end a refresh gives what a fresh run
would give, every edition that is left is whole, and nothing is left of those that were pruned but what others need.
`--mutate NAME` plants a known bug, which must be found.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from campaigns import faulty_run
from campaigns.edited_source import EditedSource, compare_rows
from campaigns.faulty_run import CALM_S, ROOMS, Outcome, World
from campaigns.planted_bugs import REFRESH_BUGS, planted
from campaigns.seeds import run_campaign
from campaigns.simulated_os import Process
from campaigns.simulated_source import LEASE_S, STUCK_S, memory_folder
from shardmill.core.errors import CorruptState, EditionPruned, NotComplete, Preempted, ShardmillError, StoreError
from shardmill.ledger import Editions, Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Spec, make_spec
from shardmill.results import frames, verify
from shardmill.run import Run, refreshing, running
from shardmill.run.planner import make_plan
from shardmill.run.pruning import prune
from shardmill.run.rollback import roll_back
from shardmill.sinks import parquet
from shardmill.sinks.parquet import read_borrowed

TROUBLE_S = 150.0
DIMS = 4
_read_batches = parquet._read_batches
assert frames.result_table


class RefreshWorld(World):
    """The run is made in good weather. Then the source changes, and the weather turns."""

    rooms = (*ROOMS, "shardmill.results", "shardmill.core.pool")

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        super().__init__(seed, traced=traced)
        self.delivers = False
        self._rough, self.weather.troubled = self.weather.troubled, 0.0
        # A refresh asks more often than a run.
        self.weather.elsewhere = self.chance.choice((0.01, 0.05, 0.3))
        self._until = TROUBLE_S
        self._place = Path(tempfile.mkdtemp(prefix="refreshes-", dir=memory_folder()))
        chance = self.chance
        self.source = EditedSource(self._place / "source", random.Random(f"edits {seed}"), chance.choice((12, 20)))
        self._fewest_bytes, self._most_parts = chance.choice((0, 0, 64)), chance.choice((2, 3, 8))
        self._grace_s = chance.choice((0.0, 5.0, 30.0))
        # Whether the disk can tell that a file is as it was, or all have to be read.
        self._tells = random.Random(f"disk {seed}").random() < 0.7
        self.workers = chance.choice((1, 1, 2))
        self.machines.skew_s["c"] = 0.0

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._place, ignore_errors=True)

    def patches(self) -> list[tuple[Any, str, Any]]:
        earlier, index, editions = (f"shardmill.{n}" for n in ("sinks.earlier", "sinks.items_index", "ledger.editions"))
        return [
            *super().patches(),
            (earlier, "_FEWEST_BYTES", self._fewest_bytes),
            (earlier, "_MOST_PARTS", self._most_parts),
            (earlier, "_PARTS_LEFT", self._most_parts - 1),
            (index, "_RUN_ITEMS", 12),
            (editions, "GRACE_S", self._grace_s),
            # A thread of Arrow's would not wait for its turn.
            # The times of the real disk differ each time a seed is played.
            ("shardmill.sources.discovery", "settled", lambda place, size, tag: f"1-{tag}" if self._tells else ""),
            ("shardmill.sinks.parquet", "_read_batches", partial(_read_batches, threads=False)),
        ]

    def _plan(self, spec: Spec, devices: Any, **how: Any) -> Plan:
        return make_plan(spec, devices, **how)

    # commands

    def start(self, host: str, *, fresh: bool = False) -> Process:
        work = {"source": str(self.source.folder), "text": "text", "id": "id", "keep": "n"}
        work |= {"task": "shardmill.testing:FakeTask"}
        execution = {"shard_bytes": 500, "batch_tokens": 40, "max_errors": "100%", "lease_s": LEASE_S}
        execution |= {"stuck_s": STUCK_S, "workers": self.workers}
        spec = make_spec({**work, "params": {"dims": DIMS, "delay_s": 0.2}}, execution)
        return self.command(host, "fresh" if fresh else "start", lambda: running.start(spec, self.url, fresh=fresh))

    def refresh(self, host: str) -> Process:
        return self.command(host, "refresh", lambda: refreshing.refresh(self.url, allow_shrink=True))

    def read(self) -> None:
        """Read all rows of the edition that is read now, as `merge` does."""
        found = Run(self.url)
        wrong = compare_rows(found.table(), self.source.rows_of(found.plan), DIMS)
        if wrong:
            self.outcome.faults.append(f"{found.ledger.url} is read, and is not whole: {wrong}")
        self.outcome.counts["reads"] += 1

    # the story

    def tell(self) -> None:
        self.turns.spawn(self._make)

    def _make(self) -> None:
        made = self.start("a")
        made.ended.wait(CALM_S)
        assert made.status == 0, made.error
        self.weather.troubled, self._until = self._rough, self.turns.now + TROUBLE_S
        for host in "ab"[: self.chance.choice((1, 2))]:
            self.turns.spawn(lambda host=host: self._refresh_often(host))
        for _ in range(2):
            self.turns.spawn(self._read_often)
        self.turns.spawn(self._edit_often)
        self.turns.spawn(self._look_after)
        self.turns.spawn(self._disturb)

    def _edit_often(self) -> None:
        pause_s = self.chance.choice((15, 30, 60))
        while self.turns.now < self._until:
            self.machines.note(None, f"the source is edited: {self.source.edit()}")
            self.turns.pause(self.turns.now + self.chance.expovariate(1 / pause_s))

    def _refresh_often(self, host: str) -> None:
        while self.turns.now < self._until:
            process = self.refresh(host)
            if self.chance.random() < 0.2:
                process.writes_left = self.chance.randrange(6)
            process.ended.wait(self.chance.choice((self.chance.uniform(0, 20), 200, 200)))
            if process.status is None:
                process.signal(9)
            self._expect(process)
            self.turns.pause(self.turns.now + self.chance.expovariate(0.3))

    def _read_often(self) -> None:
        while self.turns.now < self._until:
            process = self.command("c", "read", self.read)
            if self.chance.random() < 0.3:
                self.turns.pause(self.turns.now + self.chance.uniform(0, 1))
                process.frozen_until = self.turns.now + self.chance.uniform(1, 40)
            process.ended.wait()
            self._expect(process, NotComplete)
            self.turns.pause(self.turns.now + self.chance.expovariate(0.3))

    def _look_after(self) -> None:
        """Somebody prunes, and goes back to earlier editions; some of these processes die or sleep in the middle."""
        calm = self.chance.choice((0.05, 0.2, 0.5))
        while self.turns.now < self._until:
            self.turns.pause(self.turns.now + self.chance.expovariate(calm))
            if self.turns.now >= self._until:
                return
            what: Callable[[], object] = lambda: roll_back(self.url)  # noqa: E731
            name, keep = "rollback", self.chance.choice((1, 1, 2, 3))
            if self.chance.random() < 0.7:
                name, what = "prune", lambda keep=keep: prune(self.url, keep)
            process = self.command(self.chance.choice("ab"), name, what)
            process.ended.wait(self.chance.choice((0.2, 1.0, 3.0, 60.0)))
            if process.status is None and self.chance.random() < 0.5:
                process.signal(9)
            elif process.status is None:
                process.frozen_until = self.turns.now + self.chance.uniform(1, 60)
            else:
                self._expect(process)

    def _disturb(self) -> None:
        rough = self.chance.choice((0.0001, 0.03, 0.1))
        while self.turns.now < self._until:
            self.turns.pause(self.turns.now + self.chance.expovariate(rough))
            if victims := [p for p in self.machines.living() if not p.name.startswith("read-")]:
                victim = self.chance.choice(victims)
                if self.chance.random() < 0.5:
                    victim.signal(9)
                else:
                    victim.frozen_until = self.turns.now + self.chance.uniform(1, 60)
                    self.machines.note(victim, "  frozen")
        self.weather.calm_down()
        self._finish()

    def _expect(self, process: Process, *wrong: type[ShardmillError]) -> None:
        """What a command may say that did not do its work: the store is away, another one was first, begin again."""
        error = process.error
        self.outcome.counts[f"{process.name.partition('-')[0]}: done"] += process.status == 0
        if isinstance(error, (CorruptState, *wrong)) and not isinstance(error, (Preempted, EditionPruned, StoreError)):
            self.outcome.faults.append(f"{process.name} says: {type(error).__name__}: {error}")

    def _finish(self) -> None:
        """The weather is good: a refresh brings the run up to its source, whatever was left, and a prune clears up."""
        self._wait_for_all()
        for _ in range(4):
            process = self.refresh("a")
            process.ended.wait(CALM_S)
            if process.status == 0:
                break
            # The last heartbeat of a dead worker is believed for a while, for longer where clocks differ.
            self.turns.pause(self.turns.now + 100.0)
        else:
            self.outcome.faults.append(f"it cannot be refreshed: {process.error}")
        self._wait_for_all()
        for left in self.machines.living():
            self.outcome.faults.append(f"{left.name} never ends")
            left.end(-9)
        self.turns.pause(self.turns.now + 200.0)

    # the proof

    def prove(self) -> None:
        self.outcome.faults += self.line.violations
        self._prove_editions()
        current = Run(self.url)
        if self.source.rows_of(current.plan) != self.source.rows:
            self.outcome.faults.append("the last refresh is not of the source as it is")
        self.outcome.counts["pruned"] += len(prune(self.url, 1).pruned)
        self._prove_editions()
        self._prove_pruned()

    def _prove_editions(self) -> None:
        """Every edition that can be read is as a fresh run of its state of the source would be."""
        editions, gone = Editions(self.url), set[int]()
        for edition in editions.all():
            if edition.pruned:
                gone.add(edition.number)
            # One that was never read is refused once the one that it is made from is gone.
            if edition.pruned or not (edition.was_read or (edition.complete and edition.base not in gone)):
                continue
            ledger = Ledger(editions.open(edition.number))
            plan = ledger.plan()
            if edition.current:
                report = verify.verify(ledger, plan, sample=0, quiet=True)
                self.outcome.faults += [f"verify: {c.name}: {c.seen}" for c in report.checks if not c.ok]
            table = frames.result_table(ledger, plan)
            if wrong := compare_rows(table, self.source.rows_of(plan), DIMS):
                self.outcome.faults.append(f"edition {edition.number} is not whole: {wrong}")
            self.outcome.counts["editions"] += not edition.current

    def _prove_pruned(self) -> None:
        """Of editions that were pruned, parts are left that others have rows of, and no others."""
        editions, kept = Editions(self.url), set[str]()
        every = editions.all()
        for edition in every:
            if not edition.pruned:
                ledger = Ledger(editions.open(edition.number))
                commits = ledger.commits.read() if ledger.find_plan() is not None else {}
                kept |= {part.place(self.url) for c in commits.values() for part in read_borrowed(ledger.store, c)}
        for edition in every:
            store = editions.open(edition.number)
            if edition.pruned:
                left = {f"{store.url}/{entry.key}" for entry in store.list("parts/")}
                if left - kept:
                    self.outcome.faults.append(f"pruning left {sorted(left - kept)}, which nobody needs")


def play(seed: int, mutation: str = "", *, traced: bool = False) -> Outcome:
    with planted(mutation), patch.object(faulty_run, "World", RefreshWorld):
        return faulty_run.play(seed, traced=traced)


if __name__ == "__main__":
    run_campaign(play, __doc__ or "", "python -m campaigns.refreshes", REFRESH_BUGS)
