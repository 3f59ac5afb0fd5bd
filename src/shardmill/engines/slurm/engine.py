"""The engine `slurm`: checks the options and turns them into an array job."""

from __future__ import annotations

import hashlib
import re
import time

from shardmill.core import passwords
from shardmill.core.devices import Device
from shardmill.core.errors import EngineSilent, UsageError
from shardmill.engines.slurm.commands import ArrayTask, cancel, check_installed, tasks
from shardmill.engines.slurm.options import read_options
from shardmill.engines.slurm.placement import SlurmPlacement
from shardmill.plan import Plan
from shardmill.plan.spec import Execution

_END_S = 60.0
_LOOK_S = 0.5


class SlurmEngine:
    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.options = read_options(execution.engine_options, execution.device)
        self.kind = "cpu" if execution.device == "cpu" else "cuda"
        check_installed()
        if passwords.environment():
            raise UsageError(
                "A password in a URL cannot be passed to a Slurm job: Slurm would store it.",
                hint="Remove it from the URL and put it into ~/.pgpass, where the nodes see it too.",
            )

    @property
    def devices(self) -> list[Device]:
        """One per worker asked for. Their names are placeholders: the real device is known once Slurm grants it."""
        name = f"slurm {self.options.partition} {self.options.gres or self.kind}"
        count = self._execution.workers or 1
        return [Device(self.kind, name, max(1, self.options.cpus), visible=str(i)) for i in range(count)]

    def start(self, run: str) -> SlurmPlacement:
        placement = SlurmPlacement(run, job_name(run), self.options, self.kind, self._execution)
        placement.start()
        return placement


def end_workers(execution: Execution, run: str, plan: Plan) -> int:
    """Cancel the array jobs of a run, queued tasks included, and wait until Slurm has ended them."""
    check_installed()
    found = left = _active(run)
    if found:
        cancel(*sorted({str(task.job) for task in found}))
    deadline = time.monotonic() + _END_S
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        left = _active(run)
    if left:
        raise EngineSilent(f"Slurm has not ended {len(left)} tasks in {_END_S:.0f} s.", hint="squeue --me shows them.")
    return len(found)


def _active(run: str) -> list[ArrayTask]:
    return [task for task in tasks([job_name(run)]) if task.active]


def job_name(run: str) -> str:
    """The job name of a run, derived from its folder, so that a restarted command finds the jobs it queued.

    >>> job_name("/data/runs/my wiki")
    'my_wiki-448cbcd8'
    """
    last = run.rstrip("/").rpartition("/")[2]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', last)[:40]}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"
