"""Several workers on one item: whoever is killed, stopped or joins, the rest goes on from the last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shardmill import permission
from shardmill import run as runs
from shardmill.errors import EXIT_DONE, EXIT_TRY_AGAIN
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.spec import make_spec
from shardmill.store.local import try_lock
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for


class Part(NamedTuple):
    """A process that took part in a generation."""

    generation: int
    rank: int
    size: int
    first: int
    pid: int


class Site:
    """A run folder, its workers, and who took part in what."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers = folder, list[subprocess.Popen[bytes]]()
        (folder / "seen").mkdir()

    def prepare(self, steps: int, *, with_torch: bool = False, **execution: Any) -> Ledger:
        work = {"items": 1, "task": "tests.support.gang_tasks:Counting"}
        params = {"steps": steps, "seen": str(self.folder / "seen"), "with_torch": with_torch}
        runs.prepare(make_spec({**work, "params": params}, {"lease_s": 4.0, **execution}), self.folder / "run")
        self.ledger = Ledger(self.folder / "run")
        self.ledger.plan()
        return self.ledger

    def start(self, count: int = 1) -> None:
        environment = {**os.environ, **permission.environment(), "SHARDMILL_THREADS": "1"}
        argv = [sys.executable, "-m", "shardmill.worker", self.ledger.url]
        self.workers += [subprocess.Popen(argv, env=environment) for _ in range(count)]

    def parts(self) -> list[Part]:
        return sorted(Part(*map(int, path.name.split("."))) for path in (self.folder / "seen").iterdir())

    def wait_for_size(self, size: int, after: int = 0) -> list[Part]:
        """The last group, once it has this size, all its members are in it, and it has kept a checkpoint."""

        def last() -> list[Part]:
            parts = self.parts()
            group = [p for p in parts if p.generation == parts[-1].generation]
            whole = bool(group) and group[0].generation > after and len(group) == group[0].size == size
            kept = self.ledger.checkpoints.find(0)
            return group if whole and kept is not None and kept.step > group[0].first else []

        found: list[Part] = wait_for(last)
        return found

    def kill(self, part: Part, number: int = signal.SIGKILL) -> None:
        os.kill(part.pid, number)

    def freeze(self, part: Part) -> None:
        """Stop a process where it holds no lock of the folder: a process that sleeps keeps its locks."""
        while True:
            self.kill(part, signal.SIGSTOP)
            if all(self._is_unlocked(lock) for lock in (self.folder / "run").rglob(".lock")):
                return
            self.kill(part, signal.SIGCONT)

    def _is_unlocked(self, lock: Path) -> bool:
        with open(lock, "rb+") as file:
            return bool(try_lock(file.fileno()))

    def finish(self, steps: int) -> Run:
        living = [worker for worker in self.workers if worker.poll() is None]
        assert {worker.wait(PATIENCE_S) for worker in living} == {EXIT_DONE}
        run = Run(self.ledger.url)
        assert run.table().column("sum").to_pylist() == [steps * (steps + 1) // 2]
        assert not list(run.errors())
        assert run.verify().verified
        return run


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("with_torch", [False, True], ids=["sockets", "torch"])
def test_one_two_and_three_processes_in_turn_with_kills(with_torch: bool, site: Site) -> None:
    """A worker that joins makes a larger group, a killed one a smaller, whether it leads or not; no step is lost."""
    if with_torch:
        needed("torch")
    steps = 400
    site.prepare(steps, with_torch=with_torch)
    site.start()
    group = site.wait_for_size(1)
    site.start()
    group = site.wait_for_size(2, group[0].generation)
    site.start()
    group = site.wait_for_size(3, group[0].generation)
    site.kill(group[1])
    group = site.wait_for_size(2, group[0].generation)
    assert group[0].first > 0
    site.kill(group[0])
    group = site.wait_for_size(1, group[0].generation)
    assert group[0].first > 0
    run = site.finish(steps)
    assert run.table().column("generations").to_pylist()[0] >= group[0].generation


def test_a_gang_waits_for_its_least_number(site: Site) -> None:
    ledger = site.prepare(12, min_workers=2, workers=2)
    site.start()
    wait_for(lambda: ledger.gangs.find(0) is not None)
    wait_for(lambda: len(ledger.gangs.present(0)) == 1)
    assert not site.parts()
    site.start(2)
    site.finish(12)
    assert {part.size for part in site.parts()} == {2}


def test_who_is_told_to_stop_leaves_the_rest_at_work(site: Site) -> None:
    steps = 200
    site.prepare(steps, min_workers=2)
    site.start(2)
    group = site.wait_for_size(2)
    member = next(worker for worker in site.workers if worker.pid == group[1].pid)
    site.kill(group[1], signal.SIGTERM)
    assert member.wait(PATIENCE_S) == EXIT_TRY_AGAIN
    site.start()
    site.wait_for_size(2, group[0].generation)
    site.finish(steps)


def test_a_stopped_run_keeps_what_the_gang_did(site: Site) -> None:
    ledger = site.prepare(100_000, min_workers=2)
    site.start(2)
    group = site.wait_for_size(2)
    assert group
    runs.stop(ledger.url)
    assert {worker.wait(PATIENCE_S) for worker in site.workers} == {EXIT_TRY_AGAIN}
    kept = ledger.checkpoints.find(0)
    assert kept is not None
    assert ledger.leases.read() == {}


def test_a_frozen_leader_is_replaced_and_changes_nothing(site: Site) -> None:
    """A process that is stopped for longer than a lease wakes up to find that others went on without it."""
    steps = 300
    ledger = site.prepare(steps)
    site.start()
    group = site.wait_for_size(1)
    site.start()
    group = site.wait_for_size(2, group[0].generation)
    leader = ledger.gangs.find(0)
    site.freeze(group[0])
    new = site.wait_for_size(1, group[0].generation)
    assert new[0].pid == group[1].pid
    site.kill(group[0], signal.SIGCONT)
    site.finish(steps)
    after = ledger.gangs.find(0)
    assert leader is not None
    assert after is None or after.leader != leader.leader or after.generation > new[0].generation
