"""What goes into a generation and what comes out, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue or to answer: its ids, how many new tokens at least and at most, and a draw for each."""

    ids: NDArray[np.int32]
    limit: int
    draws: NDArray[np.float32] | None = None
    least: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """New tokens, the ending one included. `ended` says that the model ended by itself.

    `scores` are the log-probabilities of the tokens, if they were asked for.
    """

    ids: NDArray[np.int64]
    ended: bool
    scores: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished text; `reason` is "stop" if the model or a stop string ended it, "length" if the limit did.

    `scores` are those of its tokens.
    """

    text: str
    ids: NDArray[np.int64]
    reason: str
    tokens_in: int
    scores: NDArray[np.float32] | None = None

    @property
    def tokens_out(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt for each text, None for a missing or a bad one, and why a text is bad."""

    prompts: list[Prompt | None]
    bad: dict[int, str] = field(default_factory=dict)
