"""Names of clusters: the words that are frequent in a cluster and rare elsewhere (class-based TF-IDF)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from shardmill.core.words import cut_pieces, find_words, has_signs, is_spaceless
from shardmill.verbs.map.clusters import Clusters

_WORD = re.compile(r"[^\W\d_](?:[\w'-]*\w)?")
# Pieces of scripts without spaces; a longer one that is nearly as frequent stands for those in it.
_PIECES = (2, 3, 4)
_AS_FREQUENT = 0.8
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
            words = set(_find_names(text.lower()))
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
        return tuple(_unlike(_join_pieces(best, own))[:_NAME_WORDS])


def _find_names(text: str) -> Iterator[str]:
    """The words of a text in lower case that may name its cluster."""
    if text.isascii():
        yield from (word for word in _WORD.findall(text) if len(word) >= _SHORTEST)
        return
    for word in _WORD.findall(text) if not has_signs(text) else find_words(text):
        if is_spaceless(word):
            yield from (piece for size in _PIECES for piece in cut_pieces(word, size) if len(piece) > 1)
        elif len(word) >= _SHORTEST and not word[0].isdigit():
            yield word


def _join_pieces(words: list[str], own: Counter[str]) -> list[str]:
    """The words without pieces that are parts of others, unless they are found much more often than these."""
    few = words[: 10 * _NAME_WORDS]
    return [
        word
        for word in few
        if not is_spaceless(word)
        or not any(word in other != word and own[other] >= _AS_FREQUENT * own[word] for other in few)
    ]


def _unlike(words: list[str]) -> list[str]:
    """The words without those that are another form of an earlier one, such as a plural, or share a piece with it."""
    kept: list[str] = []
    for word in words[: 5 * _NAME_WORDS]:
        if is_spaceless(word):
            alike = any(not {*cut_pieces(word)}.isdisjoint(cut_pieces(k)) for k in kept)
        else:
            alike = any(word.startswith(k[: max(_SHORTEST, len(k) - 2)]) and abs(len(word) - len(k)) < 4 for k in kept)
        if not alike:
            kept.append(word)
    return kept
