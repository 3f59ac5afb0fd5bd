"""Names of clusters: the words that are frequent in a cluster and rare elsewhere (class-based TF-IDF)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

from shardmill.verbs.map.clusters import Clusters

_WORD = re.compile(r"[^\W\d_](?:[\w'-]*\w)?")
_NAME_WORDS = 4
_SHORTEST = 3
_FEWEST_TEXTS = 50
# Texts of one cell that are counted: enough to know its words.
_COUNTED = 2_000
_MOST_WORDS = 200_000
# A word names a cluster if it is this many times as frequent there as in all texts.
_MORE_FREQUENT = 1.5


class ClusterWords:
    """Counts the words of the texts of each cell, at most once per text."""

    def __init__(self) -> None:
        self._cells: dict[int, Counter[str]] = {}
        self._counted: Counter[int] = Counter()
        self._texts: Counter[str] = Counter()

    def add(self, cells: Iterable[int], texts: Iterable[str]) -> None:
        for cell, text in zip(cells, texts, strict=True):
            if self._counted[cell] >= _COUNTED:
                continue
            self._counted[cell] += 1
            words = {word for word in (w.lower() for w in _WORD.findall(text)) if len(word) >= _SHORTEST}
            self._cells.setdefault(cell, Counter()).update(words)
            self._texts.update(words)
            if len(self._texts) > _MOST_WORDS:
                self._drop_rare()

    def _drop_rare(self) -> None:
        """Forget words that were seen once: they name nothing, and there is no end of them."""
        kept = {word for word, number in self._texts.items() if number > 1}
        self._texts = Counter({word: self._texts[word] for word in kept})
        self._cells = {cell: Counter({w: n for w, n in c.items() if w in kept}) for cell, c in self._cells.items()}

    def name(self, clusters: Clusters) -> list[list[tuple[str, ...]]]:
        """The words of each cluster of each level, the most telling first."""
        return [self._name_level(level) for level in clusters.of_cell.tolist()]

    def _name_level(self, of_cell: list[int]) -> list[tuple[str, ...]]:
        count = max(of_cell, default=-1) + 1
        words: list[Counter[str]] = [Counter() for _ in range(count)]
        texts = [0] * count
        for cell, cluster in enumerate(of_cell):
            if cluster >= 0:
                words[cluster].update(self._cells.get(cell, Counter()))
                texts[cluster] += self._counted[cell]
        total = sum(self._counted.values())
        return [self._telling(own, number, total) for own, number in zip(words, texts, strict=True)]

    def _telling(self, own: Counter[str], texts: int, total: int) -> tuple[str, ...]:
        """The words with the highest weight: the share of the cluster's texts that have it, times the logarithm of how
        much rarer it is in all texts. A word that all clusters have weighs nothing, in any language."""
        scores = {
            word: number / texts * math.log(number / texts * total / self._texts[word])
            for word, number in own.items()
            if number > 1 or texts < _FEWEST_TEXTS
        }
        best = sorted(scores, key=lambda word: (-scores[word], word))
        best = [word for word in best if own[word] * total > _MORE_FREQUENT * self._texts[word] * texts]
        return tuple(_unlike(best)[:_NAME_WORDS])


def _unlike(words: list[str]) -> list[str]:
    """The words without those that are another form of an earlier one, such as a plural."""
    kept: list[str] = []
    for word in words[: 5 * _NAME_WORDS]:
        if not any(word.startswith(k[: max(_SHORTEST, len(k) - 2)]) and abs(len(word) - len(k)) < 4 for k in kept):
            kept.append(word)
    return kept
