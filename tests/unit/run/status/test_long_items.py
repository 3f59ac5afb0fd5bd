"""How far a run is whose items take hours: by the steps that they report, long before a row is committed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.status.state import Status, read_status
from shardmill.tasks.context import Context
from shardmill.testing import FakeLong, InProcessEngine
from tests.support.waiting import wait_for

SEEN: list[Status] = []


class Watched(FakeLong):
    """Reports that three of four steps are done, and waits until the run folder shows it."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        context.report(3, {"loss": 0.5}, steps=4)
        run = Run(self._run)
        SEEN.append(wait_for(lambda: (found := read_status(run.ledger, run.plan)).said() and found))
        return super().work(item, context)


def test_its_share_is_that_of_its_steps(tmp_path: Path) -> None:
    work = {"items": 1, "task": f"{__name__}:Watched", "params": {"run": str(tmp_path / "run")}}
    run = start(make_spec(work, {"device": "cpu"}), tmp_path / "run", engine=InProcessEngine())
    (half,) = SEEN
    assert half.share == 0.75
    assert half.said() == {0: "step 3 of 4 · loss 0.5"}
    assert run.status().share == 1.0
