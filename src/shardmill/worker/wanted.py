"""Whether a worker may work on its run, and what its own error means for the run."""

from __future__ import annotations

from collections.abc import Mapping

from shardmill.errors import Cure, ModelError, ShardmillError
from shardmill.ledger import Ledger, Search, find_crash_loop, read_search
from shardmill.plan import NEW_NUMERICS, Plan, new_numerics
from shardmill.worker.pulse import quietly


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


def check_model(ledger: Ledger, plan: Plan, here: Mapping[str, str]) -> None:
    """Check the model's fingerprint: on another machine, or later, the model of that name may differ."""
    if new_numerics(plan.fingerprint, here):
        raise ModelError(f"This run cannot be continued: {NEW_NUMERICS}.", hint="Start it over with --fresh.")
    planned = plan.fingerprint
    if here != planned:
        changed = [name for name in sorted({*here, *planned}) if here.get(name) != planned.get(name)]
        is_branch = ledger.branch.assignment() is not None
        raise ModelError(
            f"The model here is not the one that the run was planned with ({', '.join(changed)} differ).",
            hint="Pass the model as a folder: it is then sent to the hosts."
            if is_branch
            else "Use a machine that has the planned model, or pass a model that all see: a folder or a URL.",
        )


def fail_run(ledger: Ledger, worker: str, error: BaseException) -> None:
    """End the run for all workers if an error is final. On a branch, home decides what it means for the run."""
    if not isinstance(error, ShardmillError) or error.cure is not Cure.FINAL:
        return
    if ledger.branch.assignment() is None:
        quietly(ledger.state.fail, worker, error.message, error.hint)
