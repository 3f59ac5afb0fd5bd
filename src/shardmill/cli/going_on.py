"""Verbs for a run that was planned or begun: resume it, work on it, stop it."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.specs import read_options
from shardmill.cli.tasks import FAMILY, report_run
from shardmill.console import say
from shardmill.errors import ShardmillError, UsageError


def add_to(app: typer.Typer) -> None:
    app.command("resume", cls=Verb, rich_help_panel=FAMILY, epilog=_RESUME)(resume)
    app.command("work", cls=Verb, rich_help_panel=FAMILY, epilog=_WORK)(work)
    app.command("stop", cls=Verb, rich_help_panel=FAMILY, epilog=_STOP)(stop)


_RESUME = """\
shardmill resume runs/reviews
shardmill resume s3://bucket/runs/docs --engine slurm --partition gpu --workers 16
shardmill resume runs/chats --endpoint http://gpu2:8000/v1"""


@takes(*o.PLACING, *o.SERVED, "detach", "then", *o.LIMITING)
def resume(run: o.Run, allow_code: o.AllowCode = False, as_json: o.AsJson = False, **options: Any) -> None:
    """Resume a run from its folder, on any engine. Options change how it runs, never the result."""
    from shardmill.run import resume as resume_run

    _, changes = read_options(None, options)
    began = time.monotonic()
    report_run(resume_run(run, changes, allow_code=allow_code, quiet=False), began, as_json)


_WORK = """\
shardmill plan reviews.jsonl --text reviewText --out runs/reviews && shardmill work runs/reviews
shardmill work s3://bucket/runs/docs --device cuda
shardmill work s3://bucket/runs --forever"""


def work(
    run: Annotated[str, o.argument("RUN", "The run folder, or a folder of runs: a path or a URL.")],
    forever: Annotated[
        bool, o.option(o.PLACE, "--forever", help="With a folder of runs: wait for the next run instead of ending.")
    ] = False,
    device: Annotated[
        str | None, o.option(o.PLACE, metavar="DEVICE", help="auto, cpu or cuda.  [default: the run's]")
    ] = None,
    workers: Annotated[
        int, o.option(o.PLACE, metavar="N", min=1, help="Run one worker on each of N GPUs here.  [default: 1]")
    ] = 1,
    allow_code: o.AllowCode = False,
    as_json: o.AsJson = False,
) -> None:
    """Be one worker of a run until the run is done. Start as many as you like, anywhere, at any time.

    It pulls shards, waits while others hold the last ones, and does or awaits what follows the last shard (--then).
    Given a folder of runs, it serves those that are wanted, the highest priority first, and ends when nothing can be
    claimed.
    """
    from shardmill.run import work as work_on
    from shardmill.run.pool import is_pool, serve
    from shardmill.run.working import for_scheduler

    began = time.monotonic()
    how: Any = {"device": device, "allow_code": allow_code, "quiet": False, "own_process": True}
    try:
        if is_pool(run):
            if workers > 1:
                raise UsageError("--workers is for one run.", hint="For a folder, start one worker for each GPU.")
            served = serve(run, forever=forever, **how)
            print_json(served.to_json()) if as_json else say(served.describe())
            return
        if forever:
            raise UsageError(f"{run} is a run: --forever is for a folder of runs.", hint="Leave out --forever.")
        done = work_on(run, workers=workers, **how)
    except ShardmillError as error:
        raise for_scheduler(error, run) from None
    report_run(done, began, as_json)


_STOP = """\
shardmill stop runs/reviews"""


def stop(run: o.Run, as_json: o.AsJson = False) -> None:
    """End a run's workers, on any engine. Committed shards stay; `shardmill resume RUN` continues."""
    from shardmill.run import stop as stop_run

    ended = stop_run(run)
    if as_json:
        print_json(ended.to_json())
    elif ended.state == "complete":
        say("The run is complete: nothing to stop.")
    else:
        left = f", {ended.living:,} not ended yet" if ended.living else ""
        say(f"Stopped (workers: {ended.workers:,}{left}). Resume with: shardmill resume {run}")
