"""Whether a worker may work on its run, and what its own error means for the run."""

from __future__ import annotations

from shardmill.core.errors import Cure, ModelError, ShardmillError, SpecError
from shardmill.core.functions import changed_parts
from shardmill.ledger import Ledger, Search, find_crash_loop, read_search
from shardmill.plan import NEW_NUMERICS, Plan, new_numerics
from shardmill.plan.spec import Execution
from shardmill.tasks.base import Task
from shardmill.worker.pulse import quietly
from shardmill.worker.steps import record_failure


def check_wanted(ledger: Ledger, worker: str, max_restarts: int, *, watched: bool) -> Search | None:
    """Refuse a run that was stopped, has failed, or kills one worker after another with nobody to notice.

    Returns how far the search for rows that kill workers has come, for those who judge this worker later; None if
    somebody watches: a parent, or the home of a branch.
    """
    if (refusal := ledger.state.refusal()) is not None:
        raise refusal
    if watched or ledger.branch.assignment() is not None:
        return None
    search = read_search(ledger)
    if (loop := find_crash_loop(ledger, worker, max_restarts, search)) is not None:
        fail_run(ledger, worker, loop)
        raise loop
    return search


def is_precise(execution: Execution, task: Task) -> bool:
    """Whether a worker computes in float32; refuses that for a run whose rows are in another precision."""
    precise = execution.precision == "float32"
    if precise and task.rounded:
        raise SpecError(
            f"This run computes in {task.rounded}: rows in float32 would not be of the same result.",
            hint="Resume it with --precision auto, or embed in float32 into another folder.",
        )
    return precise


def check_model(ledger: Ledger, plan: Plan, task: Task) -> None:
    """Refuse a model that is not the plan's: on another machine, or later, the model of that name may differ."""
    here, planned = task.fingerprint(), plan.fingerprint
    if new_numerics(planned, here):
        raise ModelError(f"This run cannot be continued: {NEW_NUMERICS}.", hint="Start it over with --fresh.")
    if not (changed := changed_parts(planned, here)):
        return
    if "function" in changed:
        raise ModelError(
            "The function here is not the one that the run was planned with: its module or package has changed.",
            hint="Install the planned version on every machine, or name its file, which is sent along: file.py:name.",
        )
    if "imports" in changed:
        raise ModelError(
            f"The function imports other code here ({here.get('imports', 'none of its own modules')}) than where the "
            f"run was planned ({planned['imports']}).",
            hint="Have the same modules on every machine: installed on all of them, or in the folder of each worker.",
        )
    raise ModelError(
        f"The model here is not the one that the run was planned with ({', '.join(changed)} differ).",
        hint="Use a machine that has the planned model, or pass a model that all see: a folder or a URL."
        if ledger.branch.assignment() is None
        else "Pass the model as a folder: it is then sent to the hosts.",
    )


def fail_run(ledger: Ledger, worker: str, error: BaseException) -> None:
    """End the run for all workers if an error is final. On a branch, home decides what it means for the run."""
    if not isinstance(error, ShardmillError) or error.cure is not Cure.FINAL:
        return
    if ledger.branch.assignment() is None:
        quietly(record_failure, ledger, worker, error.message, error.hint, error.resumes)
