"""Texts -> token ids word by word, for tokenizers that read the words of a text one by one.

The characters of a word have the same ids in every text, so the model's own tokenizer tokenizes each word once, and
later occurrences are looked up. NumPy splits, looks up and gathers a block of texts at a time. Which tokenizers are of
that kind, and where their words end, is said in `wordwise`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.models.ragged import Ragged, starts_of
from shardmill.models.word_table import WordKeys, WordTable
from shardmill.models.wordwise import CutTexts, Wordwise, cut_words

_MOST_WORDS = 1 << 18
_MOST_BYTES = 96 << 20
# Words of up to 16 bytes, of up to 32, and of up to 128. Longer ones are not kept.
_KEYS = (WordKeys(2), WordKeys(4), WordKeys(16))
# The empty word, and every word whose ids may depend on what is beside it.
_EMPTY, _ODD = 0, 1
_COUNT_BITS = 32
_WORDS_TOGETHER = 256


@dataclass(frozen=True, slots=True)
class Spelled:
    """Ids of texts, and the character span [start, stop) of each id in its text, in the order of `ids.flat`."""

    ids: Ragged
    starts: NDArray[np.int32]
    stops: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Known:
    """By word: its first id and its number of ids in one number, and where its ids begin in `flat` and `spans`."""

    heads: NDArray[np.int64]
    firsts: NDArray[np.int64]
    flat: NDArray[np.int32]
    spans: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Read:
    """Number of ids of each word; all ids, and their places in their words; which words have an unsafe token."""

    counts: NDArray[np.int64]
    flat: NDArray[np.int32]
    spans: NDArray[np.int32]
    unsafe: NDArray[np.bool_]


class Words:
    """A cache of the ids of every word seen so far, with their places in it; cleared when too large. Thread-safe."""

    def __init__(self, backend: Any, rule: Wordwise) -> None:
        self._backend, self._rule = backend, rule
        self._unsafe = np.array(sorted(rule.unsafe_ids), np.int32)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._tables = [WordTable(keys.lanes) for keys in _KEYS]
        for keys, table in zip(_KEYS, self._tables, strict=True):
            table.add([np.array([2**64 - 1], np.uint64)] * keys.lanes, np.array([_EMPTY], np.int64))
        self._words, self._used = 2, 0
        self._heads, self._firsts = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
        self._flat, self._spans = np.zeros(1024, np.int32), np.zeros((1024, 2), np.int32)

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        arrays = (self._heads, self._firsts, self._flat, self._spans)
        return sum(table.nbytes for table in self._tables) + sum(array.nbytes for array in arrays)

    def encode(self, texts: Sequence[str]) -> tuple[Ragged, list[int]]:
        """Ids of each text, without special ids, and the texts that must be tokenized whole, whose ids are not these.

        A text that is not valid Unicode raises UnicodeError.
        """
        cut = cut_words(texts, self._rule, _KEYS[-1].longest)
        rows, known = self._look_up(cut)
        heads = known.heads[rows]
        counts = heads & ((1 << _COUNT_BITS) - 1)
        starts = starts_of(counts)
        # A word without ids writes where the next one begins, which then writes over it.
        flat = np.empty(starts[-1] + 1, np.int32)
        flat[starts[:-1]] = heads >> _COUNT_BITS
        more = np.flatnonzero(counts > 1)
        if len(more):
            further = counts[more] - 1
            within = np.arange(int(further.sum())) - np.repeat(starts_of(further)[:-1], further)
            flat[np.repeat(starts[more] + 1, further) + within] = known.flat[
                np.repeat(known.firsts[rows[more]] + 1, further) + within
            ]
        return Ragged(flat[:-1], starts[cut.first_words]), _owners(cut, rows)

    def spell(self, texts: Sequence[str]) -> tuple[Spelled, list[int]]:
        """Like `encode`, with the position of each id in its text."""
        cut = cut_words(texts, self._rule, _KEYS[-1].longest)
        rows, known = self._look_up(cut)
        firsts, counts = known.firsts[rows], known.heads[rows] & ((1 << _COUNT_BITS) - 1)
        starts = starts_of(counts)
        at = np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], counts)
        spans = known.spans[at] + np.repeat(cut.count_characters(), counts).astype(np.int32)[:, None]
        return Spelled(Ragged(known.flat[at], starts[cut.first_words]), spans[:, 0], spans[:, 1]), _owners(cut, rows)

    def _look_up(self, cut: CutTexts) -> tuple[NDArray[np.int64], _Known]:
        with self._lock:
            rows, missing = self._find(cut)
            if len(missing):
                full = self._words + len(missing) > _MOST_WORDS or self.nbytes > _MOST_BYTES
                if full and self._words > 2:
                    self._forget()
                    rows, missing = self._find(cut)
                self._learn(cut, missing)
                rows, _ = self._find(cut)
            return rows, _Known(self._heads, self._firsts, self._flat, self._spans)

    def _find(self, cut: CutTexts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row of each word, and the words that are unknown."""
        longest = int(cut.lengths.max(initial=0))
        rows = self._tables[0].find(_KEYS[0].cut(cut.padded, cut.begins, cut.lengths))
        for shorter, keys, table in zip(_KEYS, _KEYS[1:], self._tables[1:], strict=False):
            if longest > shorter.longest:
                at = np.flatnonzero(cut.lengths > shorter.longest)
                rows[at] = table.find(keys.cut(cut.padded, cut.begins[at], cut.lengths[at]))
        if longest > _KEYS[-1].longest:
            rows[cut.lengths > _KEYS[-1].longest] = _ODD
        if cut.odd is not None:
            rows[cut.odd] = _ODD
        return rows, np.flatnonzero(rows < 0)

    def _learn(self, cut: CutTexts, missing: NDArray[np.int64]) -> None:
        every = cut.spellings(missing)
        distinct = dict(zip(reversed(every), reversed(missing.tolist()), strict=True))
        odd, joins = np.zeros(len(distinct), bool), np.ones(len(distinct), bool)
        if self._rule.is_odd is not None:
            odd = np.fromiter(map(self._rule.is_odd, distinct), bool, len(distinct))
        if not self._rule.blanks:
            joins = np.fromiter(map(self._rule.joins, distinct), bool, len(distinct))
        alone = odd | ~joins
        order, names = np.argsort(alone, kind="stable"), list(distinct)
        words, at = [names[i] for i in order.tolist()], np.fromiter(distinct.values(), np.int64, len(distinct))[order]
        read = self._tokenize(words, int((~alone).sum()))
        rows = self._words + np.arange(len(words))
        starts = self._used + starts_of(read.counts)
        used = slice(self._used, int(starts[-1]))
        self._heads, self._firsts = (_room(array, int(rows[-1]) + 1) for array in (self._heads, self._firsts))
        self._flat, self._spans = (_room(array, used.stop) for array in (self._flat, self._spans))
        self._flat[used], self._spans[used] = read.flat, read.spans
        leading = np.zeros(len(words), np.int64)
        leading[read.counts > 0] = self._flat[starts[:-1][read.counts > 0]]
        self._heads[rows], self._firsts[rows] = leading << _COUNT_BITS | read.counts, starts[:-1]
        self._words, self._used = int(rows[-1]) + 1, used.stop
        rows[odd[order] | read.unsafe] = _ODD
        lengths = cut.lengths[at]
        for k, (keys, table) in enumerate(zip(_KEYS, self._tables, strict=True)):
            own = np.flatnonzero((lengths <= keys.longest) & (lengths > (_KEYS[k - 1].longest if k else 0)))
            table.add(keys.cut(cut.padded, cut.begins[at[own]], lengths[own]), rows[own])

    def _tokenize(self, words: list[str], together: int) -> _Read:
        """Tokenize words; the first `together` of them many to a text, which costs less."""
        sizes = [min(_WORDS_TOGETHER, together - i) for i in range(0, together, _WORDS_TOGETHER)]
        sizes += [1] * (len(words) - together)
        joint = self._rule.joint
        firsts = starts_of(np.array(sizes, np.int64))
        texts = [joint.join(words[a:b]) for a, b in pairwise(firsts.tolist())]
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        flat = np.fromiter(chain.from_iterable(ids), np.int32)
        pairs = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        spans = np.fromiter(pairs, np.int64).reshape(-1, 2)
        # Where words begin, if all texts are read one after another, with gaps: an id may be said to be at the end
        # of its text; the joint before a word is a part of it.
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        begins = starts_of(lengths + len(joint))[:-1] + 2 * np.repeat(np.arange(len(sizes)), sizes)
        spans += np.repeat(begins[firsts[:-1]], [len(each) for each in ids])[:, None]
        owners = np.searchsorted(begins[1:] - len(joint), spans[:, 0], side="right")
        counts = np.bincount(owners, minlength=len(words))
        unsafe = np.zeros(len(words), bool)
        unsafe[owners[np.isin(flat, self._unsafe)]] = True
        if unsafe[:together].any():
            # Such a token may take blanks of its neighbours.
            return self._tokenize(words, 0)
        return _Read(counts, flat, (spans - begins[owners][:, None]).astype(np.int32), unsafe)


def _owners(cut: CutTexts, rows: NDArray[np.int64]) -> list[int]:
    """The texts with a word that is odd."""
    odd = np.flatnonzero(rows == _ODD)
    if not len(odd):
        return []
    owners: list[int] = np.unique(np.searchsorted(cut.first_words, odd, side="right") - 1).tolist()
    return owners


def _room(array: Any, size: int) -> Any:
    """The array, or a larger copy: what was handed out before stays as it was."""
    if size <= len(array):
        return array
    larger = np.zeros((2 * size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
