"""How long is waited, and how often is tried."""

from __future__ import annotations

import random
from dataclasses import dataclass

from shardmill.core.errors import UsageError

LONGEST_PAUSE_S = 30.0
# Before this many answers nobody knows how long one takes; after them, one that takes much longer than all is cut.
_KNOWN_AFTER, _MUCH_LONGER, _LEAST_LIMIT_S = 20, 8.0, 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest time for one answer and for a server that is away, the first pause, and the tries of a prompt."""

    answer_s: float = 600.0
    away_s: float = 600.0
    pause_s: float = 0.5
    tries: int = 8
    slow_tries: int = 3

    def __post_init__(self) -> None:
        if min(self.tries, self.slow_tries) < 2:
            raise UsageError("A prompt has two tries or more.")

    def limit_s(self, answers: int, longest_s: float, slow: int) -> float:
        """How long an answer may take; a prompt that took too long before gets twice the time."""
        if answers < _KNOWN_AFTER:
            return self.answer_s
        return min(self.answer_s, max(_LEAST_LIMIT_S, _MUCH_LONGER * longest_s) * 2.0**slow)

    def pause(self, faults: int, longest_s: float = LONGEST_PAUSE_S) -> float:
        """A random pause, twice as long after each fault."""
        return min(longest_s, self.pause_s * 2.0 ** (faults - 1)) * random.uniform(0.5, 1.0)
