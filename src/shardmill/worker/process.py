"""A process that is one worker, whether an engine started it or a person did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardmill.core.console import Bar
from shardmill.core.errors import EXIT_DONE, EXIT_TRY_AGAIN, Preempted, ShardmillError
from shardmill.worker.pipeline import Worker
from shardmill.worker.pulse import quietly
from shardmill.worker.staff import end_at_budget
from shardmill.worker.steps import close_run, finish, is_more_than_swept

_SHOW_EVERY_S = 0.5


def run_worker(make: Callable[[], Worker], tell: Callable[[str], object]) -> int:
    """Make a worker that somebody placed, and let it work. Returns the status it ends with; `tell` hears why."""
    try:
        return EXIT_DONE if work(make()) else EXIT_TRY_AGAIN
    except Preempted as error:
        tell(f"{error.message} {error.hint}")
        return EXIT_TRY_AGAIN
    except ShardmillError as error:
        tell(error.as_last_words())
        return error.cure


def work(worker: Worker, *, alone: bool = False, quiet: bool = True) -> bool:
    """Work until all shards are committed (True) or the worker is told to stop (False).

    A worker that is `alone`, or whose run is detached, also does the steps that follow, or waits until they are done.
    Others leave them to the process that placed them; a branch leaves them to its home. A worker of a pool waits for
    nobody: False also if others hold the last shards, or do what follows; its task may stay open for the next run.
    """
    with _showing(worker, quiet):
        done = worker.work()
    ledger, in_pool = worker.ledger, worker.leaves is not None
    stays_open = in_pool and worker.task.serves_runs
    if not stays_open:
        quietly(worker.task.close)
    if done and ledger.staff.is_ending and not worker.choice.is_over():
        quietly(end_at_budget, ledger, worker.name)
        return False
    if in_pool and not (done and worker.choice.is_over()):
        return False
    if not done:
        return False
    if ledger.branch.assignment() is not None:
        return True
    if alone or ledger.execution().get("detach"):
        if stays_open and is_more_than_swept(worker.plan, worker.execution):
            # A step may open the model again, in another precision.
            quietly(worker.task.close)
        stop, waits = worker.told_to_stop, not in_pool
        return finish(ledger, worker.plan, worker.execution, worker.name, stop=stop, waits=waits, quiet=quiet)
    if not is_more_than_swept(worker.plan, worker.execution):
        quietly(close_run, ledger, worker.plan, worker.name)
    return True


@contextmanager
def _showing(worker: Worker, quiet: bool) -> Iterator[None]:
    """Show what the worker itself knows: a thousand workers that ask for the state of the run would be a storm."""
    ended = threading.Event()

    def show() -> None:
        with Bar(worker.plan.work.task, quiet=quiet) as bar:
            while not ended.wait(_SHOW_EVERY_S):
                bar.at(*worker.progress())
            bar.at(*worker.progress())

    shower = threading.Thread(target=show, name="progress", daemon=True)
    if not quiet:
        shower.start()
    try:
        yield
    finally:
        ended.set()
        if not quiet:
            shower.join()
