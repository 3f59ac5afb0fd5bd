"""What a workflow's end means for its run: written into the run folder by the exit handler, also if all pods failed."""

from __future__ import annotations

import os

from shardmill.ledger import Ledger, RunState
from shardmill.worker.steps import record_failure

SUCCEEDED = "Succeeded"


def report_end(place: str | os.PathLike[str], status: str, by: str) -> RunState | None:
    """Record that a run has failed if its workflow did, with the last worker's error as the cause.

    A run that is done, stopped or failed stays so; None if there is no run.
    """
    ledger = Ledger(place)
    if ledger.find_plan() is None:
        return None
    if status == SUCCEEDED:
        return ledger.state.look()
    said = [worker for worker in ledger.workers.read() if worker.get("error")]
    last = max(said, key=lambda worker: float(worker["at"]), default=None)
    cause = f"{by} ended as {status}" + (f": {last['error']}" if last else ".")
    return record_failure(ledger, by, cause, "Its pods say more; their last lines are in logs/ of the run folder.")
