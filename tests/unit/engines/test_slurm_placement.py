"""Which tasks a command finds in the queue when it comes back, and which seats it fills. Slurm is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.engines.slurm import commands
from shardmill.engines.slurm.commands import ArrayTask
from shardmill.engines.slurm.options import SlurmOptions
from shardmill.engines.slurm.placement import SlurmPlacement
from shardmill.ledger import Ledger
from shardmill.plan.sizing.staff import Staff
from shardmill.plan.spec import Execution
from tests.support.ledgers import a_plan


@pytest.mark.parametrize(("state", "adopted"), [("RUNNING", True), ("PENDING", True), ("COMPLETING", False)])
def test_who_works_no_more_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, adopted: bool
) -> None:
    """A task that was cancelled a moment ago is still completing; it leaves its seat empty when it is gone."""
    Ledger(tmp_path).create(a_plan(shards=2))
    queued: list[list[str]] = []
    monkeypatch.setattr(commands, "array_size", lambda: 4)
    monkeypatch.setattr(commands, "tasks", lambda names: [ArrayTask(3, 0, state, 0, 0, "run", "")])
    monkeypatch.setattr(commands, "submit", lambda flags, script: queued.append(flags) or 4)
    execution = Execution(engine="slurm", workers=1)
    SlurmPlacement(str(tmp_path), "run", SlurmOptions(), "cpu", execution).start()
    assert len(queued) == (0 if adopted else 1)


def test_the_queue_follows_the_number_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer are cancelled in the queue, and more are queued again."""
    ledger = Ledger(tmp_path)
    ledger.create(a_plan(shards=2))
    ledger.put_execution(Execution(engine="slurm", workers=3, deadline="6h", acts=True).to_settings())
    queue: dict[int, ArrayTask] = {}
    cancelled: list[str] = []

    def submit(flags: list[str], script: str) -> int:
        job = 10 + len(queue)
        for index in range(3) if not queue else (1, 2):
            queue[job * 10 + index] = ArrayTask(job, index, "RUNNING", 0, 0, flags[0].removeprefix("--job-name="), "")
        return job

    def cancel(*words: str) -> None:
        cancelled.extend(words)
        for key, task in list(queue.items()):
            if f"{task.job}_{task.index}" in words:
                queue[key] = ArrayTask(task.job, task.index, "CANCELLED", 0, 0, task.name, "")

    monkeypatch.setattr(commands, "array_size", lambda: 4)
    monkeypatch.setattr(commands, "tasks", lambda names: list(queue.values()))
    monkeypatch.setattr(commands, "submit", submit)
    monkeypatch.setattr(commands, "cancel", cancel)
    execution = Execution(engine="slurm", workers=3, deadline="6h", acts=True)
    placement = SlurmPlacement(str(tmp_path), "run", SlurmOptions(), "cpu", execution)
    placement.start()
    assert len(queue) == 3
    ledger.staff.decide("any", 0.0, lambda before: Staff(1, "fewer will do", 1.0))
    placement._look()
    assert cancelled == ["10_1", "10_2"]
    placement._look()
    ledger.staff.decide("any", 0.0, lambda before: Staff(3, "more are needed", 2.0))
    placement._look()
    placement._look()
    assert sum(task.state == "RUNNING" for task in queue.values()) == 3
