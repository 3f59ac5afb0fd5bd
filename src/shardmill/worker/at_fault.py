"""A task that fails before it has done a row: no row is at fault. Whether it fails for every worker, engines see."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from shardmill.core.errors import Cure, ShardmillError, WorkerFailed, is_passing

_LONGEST = 300


def task_at_fault(what: str, error: Exception, *, at_start: bool = True) -> WorkerFailed:
    """The error of a task, with the place of its code that raised it if it has done nothing before."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    name, said = Path(last.filename).name, " ".join(str(error).split())[:_LONGEST]
    failed = WorkerFailed(
        f"{what}: {type(error).__name__}: {said} ({name}, line {last.lineno}).",
        hint="The device or the task is at fault, not the rows. See the workers' logs. Committed shards are kept.",
    )
    failed.cure = Cure.HERE
    if at_start and not _may_pass(error):
        failed.place = f"{type(error).__name__} {name}:{last.lineno}"
    return failed


def _may_pass(error: Exception) -> bool:
    return isinstance(error, ShardmillError | MemoryError) or is_passing(error)


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """Open a task; its log has where it failed."""
    try:
        yield
    except Exception as error:
        if _may_pass(error):
            raise
        traceback.print_exception(error)
        raise task_at_fault("The task cannot be opened", error) from error
