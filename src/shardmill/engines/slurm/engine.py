"""The engine `slurm`: checks the options and turns them into an array job."""

from __future__ import annotations

import hashlib
import re

from shardmill import passwords
from shardmill.devices import Device
from shardmill.engines.slurm.commands import cancel, check_installed, tasks
from shardmill.engines.slurm.options import read_options
from shardmill.engines.slurm.placement import SlurmPlacement
from shardmill.errors import UsageError
from shardmill.plan import Plan
from shardmill.spec import Execution


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
    """Cancel the array jobs of a run, queued tasks included."""
    check_installed()
    found = [task for task in tasks([job_name(run)]) if task.active]
    if found:
        cancel(*sorted({str(task.job) for task in found}))
    return len(found)


def job_name(run: str) -> str:
    """The job name of a run, derived from its folder, so that a restarted command finds the jobs it queued.

    >>> job_name("/data/runs/my wiki")
    'my_wiki-448cbcd8'
    """
    last = run.rstrip("/").rpartition("/")[2]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', last)[:40]}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"
