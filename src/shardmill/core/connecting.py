"""Connects to a server that may be away for a while: again and again, with growing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from shardmill.core.errors import DatabaseError, DatabaseLost

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0

_Connection = TypeVar("_Connection")


def connect_patiently(
    connect: Callable[[], _Connection],
    url: str,
    patience_s: float,
    errors: type[Exception],
    refusal: Callable[[Exception], DatabaseError | None],
    message: Callable[[Exception], str],
) -> _Connection:
    """Call `connect` until it succeeds, for `patience_s`; an error that has a `refusal` is not retried."""
    deadline, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return connect()
        except errors as error:
            if (refused := refusal(error)) is not None:
                raise refused from error
            if time.monotonic() + pause_s > deadline:
                kind = DatabaseLost if patience_s else DatabaseError
                raise kind(
                    f"{url} cannot be reached: {message(error)}.",
                    hint="Check host and port, and that the server is up and accepts connections from this machine.",
                ) from error
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
