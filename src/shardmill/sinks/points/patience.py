"""What is done about the answers of a server: wait if it is away or busy, send less at once if that was too much."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from shardmill.core.errors import ShardmillError, is_passing

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0

_Answer = TypeVar("_Answer")


class Trouble(Enum):
    """What an error of a server means."""

    PASSING = "the server is away or busy"
    TOO_LARGE = "the request is larger than the server takes"
    FINAL = "the server refuses it"


class TooLarge(Exception):
    """The server does not take so much at once."""


class RequestPace:
    """How many bytes are sent at once: less after each refusal.

    Of the seconds in calls, `asked_s`, `waited_s` were waits for a server that was away or busy, `busy` times.
    """

    def __init__(self, most: int, least: int = 1 << 16) -> None:
        self.bytes, self._most, self._least = most, most, least
        self.asked_s = self.waited_s = 0.0
        self.busy = 0

    def refused(self) -> None:
        """So much at once is never taken."""
        self.bytes = self._most = max(self._least, self.bytes // 2)

    def slowed(self) -> None:
        """So much at once was not taken in time."""
        self.bytes = max(self._least, self.bytes // 2)

    def taken(self) -> None:
        self.bytes = min(self._most, self.bytes + self.bytes // 8 + 1)

    def ask(
        self,
        call: Callable[[], _Answer],
        judge: Callable[[Exception], Trouble],
        patience_s: float,
        give_up: Callable[[Exception, Trouble], ShardmillError],
    ) -> _Answer:
        """Call until there is an answer. While the server is away or busy, again with growing pauses for `patience_s`.

        Raises TooLarge, or what `give_up` makes of the error.
        """
        began = time.monotonic()
        try:
            return self._ask(call, judge, patience_s, give_up)
        finally:
            self.asked_s += time.monotonic() - began

    def _ask(
        self,
        call: Callable[[], _Answer],
        judge: Callable[[Exception], Trouble],
        patience_s: float,
        give_up: Callable[[Exception, Trouble], ShardmillError],
    ) -> _Answer:
        began, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                answer = call()
            except ShardmillError:
                raise
            except Exception as error:
                trouble = judge(error)
                if trouble is Trouble.TOO_LARGE:
                    raise TooLarge from error
                if trouble is Trouble.FINAL or time.monotonic() - began + pause_s > patience_s:
                    raise give_up(error, trouble) from error
                self.slowed()
                self.busy += 1
            else:
                if pause_s > _FIRST_PAUSE_S:
                    self.waited_s += time.monotonic() - began
                return answer
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def judge_http(error: BaseException) -> Trouble:
    """What an error of an HTTP client means, by the status of the answer or the error of the connection."""
    if status_of(error) == 413:
        return Trouble.TOO_LARGE
    status = status_of(error) or 0
    if status in (408, 425, 429) or status >= 500 or is_passing(error) or _is_cut_off(error):
        return Trouble.PASSING
    return Trouble.FINAL


def _is_cut_off(error: BaseException) -> bool:
    """Whether the connection failed or ended, by the names of httpx."""
    seen: BaseException | None = error
    while seen is not None:
        if any(kind.__name__ == "TransportError" for kind in type(seen).__mro__):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error, or what caused it, speaks of."""
    seen: BaseException | None = error
    while seen is not None:
        status: Any = getattr(seen, "status_code", None) or getattr(
            getattr(seen, "response", None), "status_code", None
        )
        if isinstance(status, int):
            return status
        seen = seen.__cause__ or seen.__context__
    return None
