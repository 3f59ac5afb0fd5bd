"""Commands for a run that was planned or begun: resume it, work on it, stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardmill.core.console import print_json, say
from shardmill.core.devices import parse_device
from shardmill.core.dialect import shell_command
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.plan.execution import (
    Computing,
    Delivering,
    Detaching,
    ErrorLimits,
    Following,
    Limiting,
    NamedEngineOptions,
    Placing,
    Serving,
    ShardLimits,
)
from shardmill.plan.options import PLACE, option
from shardmill.plan.shared import OfRun, Printing, Trusting

if TYPE_CHECKING:
    from shardmill.run.pool import ServedRuns
    from shardmill.run.request import Request
    from shardmill.run.result import Run


class ResumeOptions(
    OfRun,
    Trusting,
    Printing,
    Placing,
    NamedEngineOptions,
    Serving,
    Detaching,
    Following,
    Delivering,
    ErrorLimits,
    Limiting,
    Computing,
    ShardLimits,
):
    """What `resume` takes."""


def resume(request: Request) -> Run:
    from shardmill.run import resume as resume_run

    options: ResumeOptions = request.options
    return resume_run(options.run, request.execution, allow_code=options.allow_code, quiet=False)


class WorkerOptions(Trusting, Printing):
    """What `work` takes."""

    run: str = option(..., "The run folder, or a folder of runs: a path or a URL.", metavar="RUN", argument=True)
    forever: bool = option(
        False, "With a folder of runs: wait for the next run instead of ending.", group=PLACE, common=True
    )
    device: str | None = option(
        None, "auto, cpu, cuda or cuda:0.", group=PLACE, metavar="DEVICE", common=True, shown="the run's"
    )
    workers: int = option(1, "Run one worker on each of N GPUs here.", group=PLACE, metavar="N", common=True, ge=1)


def work(request: Request) -> Run | ServedRuns:
    from shardmill.run import work as work_on
    from shardmill.run.pool import is_pool, serve
    from shardmill.run.working import for_scheduler

    options: WorkerOptions = request.options
    how: Any = {"device": options.device, "allow_code": options.allow_code, "quiet": False, "own_process": True}
    try:
        if options.device is not None:
            _check_device(options.device)
        if is_pool(options.run):
            if options.workers > 1:
                raise UsageError("--workers is for one run.", hint="For a folder, start one worker for each GPU.")
            return serve(options.run, forever=options.forever, **how)
        if options.forever:
            raise UsageError(f"{options.run} is a run: --forever is for a folder of runs.", hint="Leave out --forever.")
        return work_on(options.run, workers=options.workers, **how)
    except ShardmillError as error:
        raise for_scheduler(error, options.run) from None


def _check_device(text: str) -> None:
    try:
        parse_device(text)
    except ValueError as error:
        raise UsageError(f"--device: {error}.") from None


def show_work(request: Request, done: Any) -> None:
    """Say what a worker did: of one run, or of a folder of runs."""
    from shardmill.run.outcome import show_outcome

    if hasattr(done, "describe"):
        print_json(done.to_json()) if request.options.as_json else say(done.describe())
    else:
        show_outcome(done, as_json=request.options.as_json)


class RollbackOptions(OfRun, Printing):
    """What `rollback` takes."""

    edition: int | None = option(
        None, "The edition to read from now on.", metavar="N", common=True, shown="the one read before", ge=1
    )


def rollback(request: Request) -> None:
    from shardmill.run.rollback import roll_back

    options: RollbackOptions = request.options
    done = roll_back(options.run, options.edition)
    if options.as_json:
        print_json(done.to_json())
    else:
        say(f"Edition {done.edition} is read from now on; it was {done.before}.")


class PruneOptions(OfRun, Printing):
    """What `prune` takes."""

    keep_editions: int = option(
        3, "How many editions to keep, the current one included.", metavar="N", common=True, ge=1
    )
    even_delivered: bool = option(
        False, "Also delete editions that a store still has: it cannot be brought up any more.", common=True
    )


def prune(request: Request) -> None:
    from shardmill.run.pruning import prune

    options: PruneOptions = request.options
    done = prune(options.run, options.keep_editions, even_delivered=options.even_delivered)
    if options.as_json:
        print_json(done.to_json())
    else:
        for line in done.describe_held():
            say(line)
        nothing = "Nothing to delete. What is read, is being made, or was replaced within the hour stays."
        say(f"Deleted: edition {', '.join(map(str, done.pruned))}." if done.pruned else nothing)


class StopOptions(OfRun, Printing):
    """What `stop` takes."""


def stop(request: Request) -> None:
    from shardmill.run import stop as stop_run

    run = request.options.run
    ended = stop_run(run)
    if request.options.as_json:
        print_json(ended.to_json())
    elif ended.state == "complete":
        say("The run is complete: nothing to stop.")
    else:
        left = f", {ended.living:,} not ended yet" if ended.living else ""
        say(f"Stopped (workers: {ended.workers:,}{left}). Resume with: {shell_command('resume', run)}")
