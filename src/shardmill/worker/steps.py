"""What follows the last shard: sweep, index, a verb's steps, deliver, verify, merge. Each is done once, under a lease.

`index` belongs to every load; `verify` and `merge:FILE` are asked for in the run's `then`. Any process of the run does
them.

Design: docs/design/runs-without-a-parent.md
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardmill.core.console import say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import ShardmillError, StepFailed, too_many_errors
from shardmill.core.telemetry import is_on, open_trace, timed_step
from shardmill.ledger import DONE, FAILED, Ledger, RunState, Step, started_over
from shardmill.plan import Plan
from shardmill.plan.spec import ErrorLimit, Execution
from shardmill.plugins import find_verb, load_part

_LONGEST_PAUSE_S = 2.0
DELIVER = "deliver"


def steps_of(plan: Plan, execution: Execution) -> list[str]:
    """The steps of a run, in order."""
    is_indexed = plan.work.to is not None and execution.index != "none"
    indexes = [f"index:{execution.index}"] if is_indexed else []
    deliveries = [f"{DELIVER}:{address}" for address in execution.into]
    return ["sweep", *indexes, *find_verb(plan.work.task).steps, *deliveries, *execution.then]


def is_more_than_swept(plan: Plan, execution: Execution) -> bool:
    """Whether more follows the last shard than what every run has."""
    return len(steps_of(plan, execution)) > 1


def finish(
    ledger: Ledger,
    plan: Plan,
    execution: Execution,
    worker: str,
    *,
    stop: threading.Event,
    waits: bool = True,
    quiet: bool = True,
) -> bool:
    """Do the steps of a run whose shards are all committed, and wait for those that others do.

    False if told to `stop` meanwhile, or if others do a step and this process does not wait. Raises StepFailed if a
    step cannot be done; the run then is not done.
    """
    for step in steps_of(plan, execution):
        pause = 0.05
        _forget_early(ledger, plan, step)
        _help(ledger, plan, execution, step, worker, stop)
        while (seen := ledger.steps.take(step, worker, execution.lease_s)).state != "done":
            if seen.state == "failed":
                raise _end_run(ledger, worker, seen)
            if seen.worker == worker and not stop.is_set():
                kind = step.partition(":")[0]
                with (
                    _held(ledger, step, worker, execution.lease_s, stop),
                    timed_step(plan.id, plan.generation, kind, worker=worker),
                ):
                    result = _do(ledger, plan, execution, step, quiet)
                ledger.steps.finish(step, worker, {**result, **_extent(plan)})
            elif not waits or stop.wait(pause) or not ledger.state.is_wanted():
                ledger.steps.release(step, worker)
                return False
            # A thousand workers may wait for a long merge.
            pause = min(max(_LONGEST_PAUSE_S, execution.lease_s / 4), pause * 1.5)
    close_run(ledger, plan, worker)
    return True


def _help(ledger: Ledger, plan: Plan, execution: Execution, step: str, worker: str, stop: threading.Event) -> None:
    """Do what any number of processes may do of a step before one of them holds it."""
    seen = ledger.steps.find(step)
    if step.startswith(f"{DELIVER}:") and (seen is None or seen.state not in (DONE, FAILED)) and not stop.is_set():
        from shardmill.results.delivery import stage_lots

        stage_lots(ledger, plan, step.partition(":")[2], worker, lease_s=execution.lease_s, stop=stop)


def _extent(plan: Plan) -> dict[str, Any]:
    return {"shards": len(plan.shards)} if plan.work.items else {}


def _forget_early(ledger: Ledger, plan: Plan, step: str) -> None:
    """Do a step again that was done before shards were added to the plan."""
    seen = ledger.steps.find(step) if plan.work.items else None
    if seen is not None and seen.state == "done" and not _extent(plan).items() <= seen.result.items():
        ledger.steps.forget(step)


def do_first(ledger: Ledger, step: str, worker: str, lease_s: float, do: Callable[[], dict[str, Any]]) -> None:
    """Do once what must be there before a run is planned: others who want it wait until its holder is done or gone.

    `ledger` is of a folder that has no plan.
    """
    if (seen := ledger.steps.find(step)) is not None:
        ledger.steps.forget(step)
    pause = 0.05
    while (seen := ledger.steps.take(step, worker, lease_s)).state != "done":
        if seen.state == "failed":
            raise StepFailed(f"{step}: {seen.error}", hint=seen.hint or "Run the same command again.")
        if seen.worker == worker:
            try:
                with _held(ledger, step, worker, lease_s, threading.Event()):
                    result = do()
            except StepFailed as error:
                raise error.__cause__ or error from None
            ledger.steps.finish(step, worker, result)
        else:
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)


def close_run(ledger: Ledger, plan: Plan, worker: str) -> None:
    """Say that the run is done. Whoever is first to say so also leaves its last view, and ends its trace."""
    if ledger.state.finish(worker).by != worker:
        return
    with suppress(ShardmillError):
        ledger.overview.close(plan, worker)
    end_trace(ledger, plan, DONE)


def record_failure(ledger: Ledger, by: str, cause: str, hint: str = "", resumes: bool = True) -> RunState:
    """Say that the run has failed, unless it is over already. Whoever is first to say so also ends its trace."""
    is_news = is_on() and ledger.state.look().state != FAILED
    decided = ledger.state.fail(by, cause, hint, resumes=resumes)
    if is_news and (decided.state, decided.by) == (FAILED, by):
        with suppress(ShardmillError):
            end_trace(ledger, ledger.plan(), FAILED, cause)
    return decided


def end_trace(ledger: Ledger, plan: Plan, state: str, failed: str = "") -> None:
    """Send the first span of a run that is over, if it is traced. A run that goes on later sends it again."""
    if (trace := open_trace(plan.id, plan.generation)) is not None:
        with suppress(ShardmillError):
            trace.end(ledger.notes.began() or time.time(), failed=failed, state=state, shards=len(plan.shards))


def begin_again(ledger: Ledger, plan: Plan, execution: Execution) -> None:
    """Let failed steps be tried again, and those that cost little if there is nothing to do."""
    for step in steps_of(plan, execution):
        seen = ledger.steps.find(step)
        if seen is not None and (seen.state == "failed" or step.partition(":")[0] in ("sweep", "index", DELIVER)):
            ledger.steps.forget(step)


@contextmanager
def _held(ledger: Ledger, step: str, worker: str, lease_s: float, stop: threading.Event) -> Iterator[None]:
    """Keep the lease of a step while it is done; give it back if told to stop, or if another process may succeed."""
    try:
        with ledger.steps.kept(step, worker, lease_s, stop, ledger.state.is_wanted):
            yield
    except ShardmillError as error:
        if error.retryable:
            ledger.steps.release(step, worker)
            raise
        failed = ledger.steps.fail(step, worker, error.message, error.hint)
        failure = _end_run(ledger, worker, failed, resumes=error.resumes)
        if step == "sweep":
            raise
        raise failure from error
    except Exception as error:
        _end_run(ledger, worker, ledger.steps.fail(step, worker, f"{type(error).__name__}: {error}"))
        raise
    except BaseException:
        ledger.steps.release(step, worker)
        raise


def _end_run(ledger: Ledger, worker: str, failed: Step, *, resumes: bool = True) -> StepFailed:
    """Record that the run has failed at a step, and return the error to raise."""
    what = "" if failed.step == "sweep" else f"{failed.step}: "
    hint = failed.hint or "All shards are committed: `shardmill resume RUN` tries it again."
    record_failure(ledger, worker, what + failed.error, hint, resumes=resumes)
    return StepFailed(what + failed.error, hint=hint)


def _sweep(ledger: Ledger, plan: Plan, execution: Execution, step: str, quiet: bool) -> dict[str, Any]:
    """Check the limit of failed rows over all workers, and delete what no commit names."""
    try:
        commits = ledger.commits.read_complete(plan)
    except FileNotFoundError:
        # Only a process that starts the run over deletes commits.
        raise started_over(ledger.url) from None
    errors, rows = sum(c.errors for c in commits), sum(c.rows - plan.work.takes_part * c.dropped for c in commits)
    if ErrorLimit.parse(execution.max_errors).exceeded(errors, rows):
        last = next(commit for commit in reversed(commits) if commit.errors)
        reasons = [failed["reason"] for failed in ledger.errors.read(last)]
        raise too_many_errors(errors, rows, execution.max_errors, reasons[-1] if reasons else "", ledger.url)
    with suppress(FileNotFoundError):
        return {"deleted": ledger.sweep()}
    return {}


def _index(ledger: Ledger, plan: Plan, execution: Execution, step: str, quiet: bool) -> dict[str, Any]:
    import pyarrow as pa

    from shardmill.sinks.address import find_table
    from shardmill.sources import kept_schema
    from shardmill.tasks import open_task

    schema = pa.schema([*kept_schema(plan), *open_task(plan.work.task, plan.work.params).output])
    built = find_table(plan.work).finish(plan, schema, kind=execution.index, quiet=quiet)
    for line in built if not quiet else ():
        say(f"Indexed: {line}")
    return {"built": built}


def _verify(ledger: Ledger, plan: Plan, execution: Execution, step: str, quiet: bool) -> dict[str, Any]:
    from shardmill.results.verify import verify

    report = verify(ledger, plan, quiet=quiet)
    ledger.notes.put_report(report.to_json())
    if not report.verified:
        wrong = ", ".join(check.name for check in report.checks if not check.ok)
        raise StepFailed(f"Not verified ({wrong}).", hint=f"See: {shell_command('verify', ledger.url)}")
    if not quiet:
        say(f"Verified: {report.rows:,} rows, {report.errors:,} errors, {report.seconds} s.")
    return {"verified": True, "rows": report.rows, "errors": report.errors, "seconds": report.seconds}


def _merge(ledger: Ledger, plan: Plan, execution: Execution, step: str, quiet: bool) -> dict[str, Any]:
    from shardmill.results.merge import merge

    merged = merge(ledger, plan, step.partition(":")[2], quiet=quiet)
    if not quiet:
        say(f"Merged: {merged.rows:,} rows, {merged.bytes:,} bytes: {', '.join(merged.files)}")
    return {"files": list(merged.files), "rows": merged.rows, "bytes": merged.bytes}


def _deliver(ledger: Ledger, plan: Plan, execution: Execution, step: str, quiet: bool) -> dict[str, Any]:
    from shardmill.results.delivery import deliver_run, tell_delivery

    address = step.partition(":")[2]
    found = deliver_run(ledger, plan, address, lease_s=execution.lease_s, quiet=quiet)
    if not quiet:
        say(f"Delivered: {found['rows']:,} rows to {address}")
        tell_delivery(address, found)
    return found


_DO: dict[str, Callable[[Ledger, Plan, Execution, str, bool], dict[str, Any]]] = {
    "sweep": _sweep,
    "index": _index,
    DELIVER: _deliver,
    "verify": _verify,
    "merge": _merge,
}


def _do(ledger: Ledger, plan: Plan, execution: Execution, step: str, quiet: bool) -> dict[str, Any]:
    if own := find_verb(plan.work.task).steps.get(step):
        result: dict[str, Any] = load_part(own)(ledger, plan, quiet=quiet)
        return result
    return _DO[step.partition(":")[0]](ledger, plan, execution, step, quiet)
