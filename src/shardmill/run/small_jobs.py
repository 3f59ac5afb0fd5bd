"""Whether this process may do small jobs itself: a command may, which does nothing else and ends with its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ALLOWED = ContextVar("small jobs here", default=False)


@contextmanager
def small_jobs_here() -> Iterator[None]:
    """Do small jobs in this process."""
    before = _ALLOWED.set(True)
    try:
        yield
    finally:
        _ALLOWED.reset(before)


def are_small_jobs_here() -> bool:
    return _ALLOWED.get()
