"""A run folder whose workers work on one item together, and what was seen of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

from shardmill import run as runs
from shardmill.core.errors import EXIT_DONE
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.store.local import try_lock
from tests.support.forking import LIGHT, ForkedWorker
from tests.support.waiting import PATIENCE_S, wait_for

# Slow steps until all was seen that a test wants to see, then quick ones.
STEPS = 5_000


class Part(NamedTuple):
    """A process that took part in a generation."""

    generation: int
    rank: int
    size: int
    first: int
    pid: int


class GangSite:
    """A run folder, its workers, and who took part in what."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers, self.modules = folder, list[ForkedWorker](), LIGHT
        (folder / "seen").mkdir()

    def spec(self, steps: int, *, with_torch: bool = False, task: str = "Counting", **execution: Any) -> Spec:
        if with_torch:
            self.modules = (*LIGHT, "torch.distributed")
        work = {"items": 1, "task": f"tests.support.gang_tasks:{task}"}
        params = {"steps": steps, "seen": str(self.folder / "seen"), "with_torch": with_torch}
        return make_spec({**work, "params": params}, {"lease_s": 4.0, **execution})

    def prepare(self, steps: int, **how: Any) -> Ledger:
        runs.prepare(self.spec(steps, **how), self.folder / "run")
        self.ledger = Ledger(self.folder / "run")
        self.ledger.plan()
        return self.ledger

    def start(self, count: int = 1) -> None:
        self.workers += [ForkedWorker(self.ledger.url, self.modules) for _ in range(count)]

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
        """Let the workers end, and check the result."""
        (self.folder / "enough").touch()
        living = [worker for worker in self.workers if worker.poll() is None]
        assert {worker.wait(PATIENCE_S) for worker in living} == {EXIT_DONE}
        return self.check(steps)

    def check(self, steps: int) -> Run:
        run = Run(self.ledger.url)
        assert run.table().column("sum").to_pylist() == [steps * (steps + 1) // 2]
        assert not list(run.errors())
        assert run.verify().verified
        return run
