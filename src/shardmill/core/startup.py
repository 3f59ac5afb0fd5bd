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
# What is done now, the innermost last, each with when it began; another thread reads it, and
# two may load at once, so each takes out its own.
_doing: list[tuple[str, float]] = []


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is done in this block; what was done before it goes on afterwards."""
    step = (what, time.time())
    _doing.append(step)
    try:
        yield
    finally:
        _doing.remove(step)


def now_doing() -> tuple[str, float]:
    """What is done now, "" if nothing was said, and since when."""
    return (_doing[-1:] or [("", 0.0)])[0]


def describe() -> str:
    """What is done now, with its seconds."""
    what, since = now_doing()
    return tell(what, time.time() - since)


def tell(what: str, seconds: float) -> str:
    """A step of start-up with its seconds.

    >>> tell(COMPILING, 7.4), tell("", 0.0)
    ('compiling the model, 7 s', 'loading the model')
    """
    return f"{what}, {max(0.0, seconds):.0f} s" if what else LOADING
