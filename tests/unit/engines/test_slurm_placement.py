"""Which tasks a command finds in the queue when it comes back, and which seats it fills. Slurm is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.engines.slurm import commands
from shardmill.engines.slurm.commands import ArrayTask
from shardmill.engines.slurm.options import SlurmOptions
from shardmill.engines.slurm.placement import SlurmPlacement
from shardmill.ledger import Ledger
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
