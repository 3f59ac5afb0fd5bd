"""A finished run's measurements of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

# The first rows of a run compile and fill caches, and a few of them may be unlike the rest.
FEWEST_TEXTS = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates of one device, all its workers together, and seconds before its first item."""

    tokens_per_s: float
    items_per_s: float
    bytes_per_s: float
    mean_tokens: float
    start_s: float
    tokens: int
    workers: int
    date: str
    kernel: str = ""

    def __post_init__(self) -> None:
        rates = (self.tokens_per_s, self.items_per_s, self.bytes_per_s)
        if not all(math.isfinite(rate) and rate > 0 for rate in rates) or not self.start_s >= 0:
            raise ValueError(f"not a measurement: {self}")

    @property
    def is_enough(self) -> bool:
        """Whether enough texts were measured to tell of others."""
        return self.tokens >= FEWEST_TEXTS * self.mean_tokens
