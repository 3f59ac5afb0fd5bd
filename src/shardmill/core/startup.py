"""What this process does before its work begins, and for how long: for people who wait for it.

with doing("loading the model"):
    ...
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

IMPORTING, LOADING, TRYING, COMPILING = (
    "importing libraries",
    "loading the model",
    "trying kernels",
    "compiling the model",
)
# What is done now and when it began, as one value: another thread reads it.
_now: list[tuple[str, float]] = [("", 0.0)]


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is done in this block; what was done before it goes on afterwards."""
    before, _now[0] = _now[0], (what, time.time())
    try:
        yield
    finally:
        _now[0] = before


def now_doing() -> tuple[str, float]:
    """What is done now, "" if nothing was said, and since when."""
    return _now[0]


def describe() -> str:
    """What is done now, with its seconds."""
    what, since = _now[0]
    return tell(what, time.time() - since)


def tell(what: str, seconds: float) -> str:
    """A step of start-up with its seconds.

    >>> tell(COMPILING, 7.4), tell("", 0.0)
    ('compiling the model, 7 s', 'loading the model')
    """
    return f"{what}, {max(0.0, seconds):.0f} s" if what else LOADING
