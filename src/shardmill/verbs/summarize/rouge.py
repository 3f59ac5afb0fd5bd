"""ROUGE of summaries against references, with the `rouge-score` package: per row, and as means with their intervals."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.extras import missing_package
from shardmill.core.languages import is_english
from shardmill.core.sentences import split_sentences
from shardmill.core.words import cut_characters, find_words

NAMES = ("rouge1", "rouge2", "rougeL")
# With the fourth, words are of any script. Runs of earlier versions, which had three, keep them.
ALL_NAMES = (*NAMES, "rougeLsum")
CURRENT = 2

_RESAMPLES = 1_000
_SEED = 20_240
# More rows than this are added up in groups, which are then drawn instead of rows: memory does not grow.
_MOST_GROUPS = 4_096


class Rouge:
    """F-measures of ROUGE-1, 2, L and Lsum: of English texts those of `rouge-score`, with stemming.

    It knows letters from a to z alone. Of other texts, it is given a word of these for each of theirs: a character of
    a script without spaces is one, and there are no stems. For Lsum, the lines of a text are its sentences; one of a
    single line is split. The `version` 1 is that of earlier runs: without Lsum, all texts as if they were English.
    """

    def __init__(self, version: int = CURRENT) -> None:
        self._version, self.names = version, NAMES if version == 1 else ALL_NAMES
        self.columns = pa.schema([pa.field(name, pa.float64()) for name in self.names])

    @cached_property
    def _scorer(self) -> Any:
        return self._open(use_stemmer=True)

    @cached_property
    def _scorer_of_words(self) -> Any:
        return self._open(use_stemmer=False)

    def _open(self, *, use_stemmer: bool) -> Any:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise missing_package(error.name or "rouge_score", "summarize") from error
        return RougeScorer(list(self.names), use_stemmer=use_stemmer)

    def check(self) -> None:
        """Refuse now, not after the first rows, if the package is missing."""
        _ = self._scorer

    def __call__(self, summaries: Sequence[str | None], references: Sequence[str | None]) -> pa.RecordBatch:
        """One row per summary; null without a summary or reference."""
        found = [
            None if reference is None or summary is None else self._score(reference, summary)
            for summary, reference in zip(summaries, references, strict=True)
        ]
        columns = [[None if each is None else float(each[name].fmeasure) for each in found] for name in self.names]
        return pa.RecordBatch.from_arrays([pa.array(c, pa.float64()) for c in columns], schema=self.columns)

    def _score(self, reference: str, summary: str) -> Any:
        if self._version == 1:
            return self._scorer.score(reference, summary)
        lines = [_to_lines(text) for text in (reference, summary)]
        if is_english(reference, summary):
            return self._scorer.score(*lines)
        known: dict[str, str] = {}
        return self._scorer_of_words.score(*(_spell(text, known) for text in lines))


def _to_lines(text: str) -> str:
    """The text with a line for each sentence, unless it has lines."""
    return text if "\n" in text.strip() else "\n".join(text[a:b] for a, b in split_sentences(text))


def _spell(text: str, known: dict[str, str]) -> str:
    """The text with a word of ASCII, the same for the same, in place of each of its words."""
    lines = [cut_characters(find_words(line)) for line in unicodedata.normalize("NFKC", text).casefold().split("\n")]
    return "\n".join(" ".join(known.setdefault(word, f"w{len(known)}") for word in line) for line in lines)


class Means:
    """Means of columns of numbers over any number of rows, with 95 % intervals by a seeded bootstrap."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._sums = np.zeros((_MOST_GROUPS, len(names)))
        self._counts = np.zeros(_MOST_GROUPS)
        self._rows = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add rows, one column per name."""
        groups = (self._rows + np.arange(len(values))) % _MOST_GROUPS
        np.add.at(self._sums, groups, values)
        np.add.at(self._counts, groups, 1)
        self._rows += len(values)

    def report(self) -> dict[str, Any]:
        """For each name its mean and the interval; {} without rows."""
        if not self._rows:
            return {}
        used = min(self._rows, _MOST_GROUPS)
        sums, counts = self._sums[:used], self._counts[:used]
        draws = np.random.Generator(np.random.Philox(_SEED)).integers(0, used, (_RESAMPLES, used))
        weights = np.stack([np.bincount(draw, minlength=used) for draw in draws])
        resampled = (weights @ sums) / (weights @ counts)[:, None]
        low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
        means = sums.sum(axis=0) / counts.sum()
        return {
            name: {"mean": round(float(m), 4), "low": round(float(a), 4), "high": round(float(b), 4)}
            for name, m, a, b in zip(self._names, means, low, high, strict=True)
        } | {"rows": self._rows}


def measure_rouge(batches: Iterator[pa.RecordBatch], names: Sequence[str] = ALL_NAMES) -> dict[str, Any]:
    """Means of the ROUGE columns of a result; rows without a reference do not count."""
    means = Means(names)
    for batch in batches:
        rows = batch.select(list(names))
        columns = [rows.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in names]
        values = np.stack(columns, axis=1)
        means.add(values[~np.isnan(values).any(axis=1)])
    return means.report()
