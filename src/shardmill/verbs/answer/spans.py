"""SQuAD 2.0's rules for reading an answer out of a passage, as transformers 4 has them in `squad_metrics`.

A passage is cut into windows that overlap. A span starts at a token that has more context in its window than in any
other, ends in the same window, lies in the passage and has a limited length. The null score is that of the first token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS, STEP, QUESTION_TOKENS = 384, 128, 64
N_BEST = 20
_WORD = re.compile(r"[^ \t\r\n\u202f]+")


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """`length` tokens of a passage from token `first` on; in the model's input they start at `at`."""

    first: int
    length: int
    at: int


@dataclass(frozen=True, slots=True)
class PassageTokens:
    """The characters of each token of a passage and of its word between blanks; whether it continues a word.

    A span that starts inside a word is widened to whole words.
    """

    offsets: NDArray[np.int64]
    words: NDArray[np.int64]
    continues: NDArray[np.bool_]

    @classmethod
    def of(cls, text: str, offsets: NDArray[np.int64], continues: Sequence[bool]) -> PassageTokens:
        words = np.array([match.span() for match in _WORD.finditer(text)], np.int64).reshape(-1, 2)
        at = np.searchsorted(words[:, 0], offsets[:, 0], side="right") - 1
        return cls(offsets, words[np.maximum(at, 0)] if len(words) else offsets, np.array(continues, bool))

    def characters(self, first: int, last: int) -> tuple[int, int]:
        found = self.words if self.continues[first] else self.offsets
        return int(found[first, 0]), int(found[last, 1])


@dataclass(frozen=True, slots=True)
class Span:
    """A candidate: its characters in the passage, and its logits. The null candidate has no characters."""

    start: int
    stop: int
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def total(self) -> float:
        return self.start_logit + self.end_logit

    @property
    def is_null(self) -> bool:
        return self.start == self.stop


def cut_windows(tokens: int, room: int, at: int, step: int = STEP) -> list[ReadWindow]:
    """Windows of at most `room` tokens, each `step` tokens after the one before; the last one ends with the passage."""
    step = min(step, room)
    windows = []
    for first in range(0, tokens, step):
        windows.append(ReadWindow(first, min(room, tokens - first), at))
        if first + room >= tokens:
            break
    return windows


def best_spans(
    windows: Sequence[ReadWindow],
    logits: Sequence[NDArray[np.float32]],
    tokens: PassageTokens,
    text: str,
    most_tokens: int,
) -> list[Span]:
    """The n-best list of one passage, best first, with the null candidate in it.

    `logits` has the start and end logits of each window's input.
    """
    owners = _owners(windows, len(tokens.offsets))
    null = Span(0, 0, 0.0, 0.0)
    lowest = math.inf
    found: list[Span] = []
    for number, (window, both) in enumerate(zip(windows, logits, strict=True)):
        starts, ends = both.astype(np.float64)
        if starts[0] + ends[0] < lowest:
            lowest = float(starts[0] + ends[0])
            null = Span(0, 0, float(starts[0]), float(ends[0]))
        found += _candidates(window, number, starts, ends, owners, tokens, most_tokens)
    found.append(null)
    kept: dict[str, Span] = {}
    for span in sorted(found, key=lambda each: -each.total):
        if len(kept) == N_BEST:
            break
        kept.setdefault("" if span.is_null else text[span.start : span.stop], span)
    kept.setdefault("", null)
    return _with_probabilities([*kept.values()])


def _candidates(
    window: ReadWindow,
    number: int,
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    owners: NDArray[np.int64],
    tokens: PassageTokens,
    most_tokens: int,
) -> list[Span]:
    firsts, lasts = (np.argsort(-each, kind="stable")[:N_BEST] for each in (starts, ends))
    firsts = firsts[(firsts >= window.at) & (firsts < window.at + window.length)]
    firsts = firsts[owners[firsts - window.at + window.first] == number]
    lasts = lasts[(lasts >= window.at) & (lasts < window.at + window.length)]
    shift = window.first - window.at
    return [
        Span(*tokens.characters(a + shift, b + shift), float(starts[a]), float(ends[b]))
        for a in firsts
        for b in lasts
        if a <= b < a + most_tokens
    ]


def _owners(windows: Sequence[ReadWindow], tokens: int) -> NDArray[np.int64]:
    """The window in which each token has the most context on its poorer side."""
    owners, best = np.zeros(tokens, np.int64), np.full(tokens, -np.inf)
    for number, window in enumerate(windows):
        own = np.arange(window.length)
        score = np.minimum(own, own[::-1]) + 0.01 * window.length
        part = slice(window.first, window.first + window.length)
        better = score > best[part]
        owners[part][better] = number
        best[part][better] = score[better]
    return owners


def _with_probabilities(spans: Sequence[Span]) -> list[Span]:
    totals = np.array([span.total for span in spans])
    shares = np.exp(totals - totals.max())
    shares /= shares.sum()
    return [Span(s.start, s.stop, s.start_logit, s.end_logit, float(p)) for s, p in zip(spans, shares, strict=True)]
