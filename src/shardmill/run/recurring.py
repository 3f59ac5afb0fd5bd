"""Refreshes a run again and again, until somebody ends it. What fails is told and tried again at the next turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from shardmill.core.console import duration, say
from shardmill.core.errors import RunExists, ShardmillError, StaleResume
from shardmill.run.refreshed import Refreshed
from shardmill.run.refreshes import is_refusal

# Between the end of a refresh that took longer than its turn and the next one.
_LEAST_PAUSE_S = 1.0


def refresh_every(
    every_s: float,
    refresh: Callable[[], Refreshed],
    tell: Callable[[Refreshed], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Call `refresh` every `every_s` seconds, and `tell` what it did.

    It ends by a signal, or if the first refresh says that the run cannot be refreshed at all. Any other error is said:
    an outage of the source, of the store or of the devices must not end it. That nothing changed is told once, until
    something has.
    """
    failures, is_told, is_first = 0, False, True
    while True:
        due = clock() + every_s
        try:
            done = refresh()
        except (RunExists, StaleResume) as error:
            say(f"{error.message} {error.hint}")
        except ShardmillError as error:
            if is_first and is_refusal(error):
                raise
            failures += 1
            is_told = False
            pause = duration(max(_LEAST_PAUSE_S, due - clock()))
            again = f", {failures:,} times in a row" if failures > 1 else ""
            say(f"The refresh failed{again}: {error}\nThe next one begins in {pause}.")
        else:
            if done.changed or failures or not is_told:
                tell(done)
            failures, is_told = 0, not done.changed
        is_first = False
        wait(max(_LEAST_PAUSE_S, due - clock()))
