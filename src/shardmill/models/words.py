"""Texts -> token ids word by word, for tokenizers that always end a word at a space.

The characters between two spaces have the same ids in every text, so the model's own tokenizer tokenizes each such
word once, and later occurrences are looked up. Arrow and NumPy split, look up and gather a block of texts at a time.
Once most words are known, this is about ten times as fast as the tokenizer on whole texts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.models.ragged import Ragged, ragged, starts_of

_MOST_WORDS = 1 << 18
_MOST_CHARS = 16 << 20
_WORDS_TOGETHER = 256
_CHARWISE_NORMALIZERS = {"BertNormalizer", "Lowercase"}


def is_wordwise(backend: Any) -> bool:
    """Whether a space always ends a word: BERT's normalizer and splitter, WordPiece, no token that contains a space."""
    normalizer, splitter = _describe(backend.normalizer), _describe(backend.pre_tokenizer)
    normalizers = normalizer.get("normalizers", [normalizer] if normalizer else [])
    return (
        type(backend.model).__name__ == "WordPiece"
        and splitter.get("type") == "BertPreTokenizer"
        and all(part["type"] in _CHARWISE_NORMALIZERS for part in normalizers)
        and not any(
            token.single_word or any(c.isspace() for c in token.content)
            for token in backend.get_added_tokens_decoder().values()
        )
    )


def _describe(part: Any) -> dict[str, Any]:
    return json.loads(part.__getstate__()) if part is not None else {}


@dataclass(frozen=True, slots=True)
class Spelled:
    """Ids of texts, and the character span [start, stop) of each id in its text, in the order of `ids.flat`."""

    ids: Ragged
    starts: NDArray[np.int32]
    stops: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Ids per text; all words and the first of each text; the position of each word in the known ids and `spans`."""

    ids: Ragged
    words: pa.LargeStringArray
    first_words: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    spans: NDArray[np.int32]


class Words:
    """A cache of the ids of every word seen so far; it is cleared when too large. Thread-safe."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[str, int] = {}
        self._ids, self._chars = ragged([]), 0
        # The character span of each id in its word.
        self._spans = np.zeros((0, 2), np.int32)

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Ids of each text, without special ids. A text that is not valid Unicode raises UnicodeError."""
        return self._encode(texts).ids

    def spell(self, texts: Sequence[str]) -> Spelled:
        """Like `encode`, with the position of each id in its text."""
        found = self._encode(texts)
        # Except for the first word of a text, a word begins one space after the end of the previous word.
        begins = starts_of(pc.utf8_length(found.words).to_numpy(zero_copy_only=False).astype(np.int64) + 1)
        begins = begins[:-1] - np.repeat(begins[found.first_words[:-1]], np.diff(found.first_words))
        at = np.arange(len(found.ids.flat)) + np.repeat(found.firsts - starts_of(found.lengths)[:-1], found.lengths)
        spans = np.maximum(0, found.spans[at] + np.repeat(begins, found.lengths)[:, None]).astype(np.int32)
        return Spelled(found.ids, spans[:, 0], spans[:, 1])

    def _encode(self, texts: Sequence[str]) -> _Encoded:
        spaced = pc.replace_substring_regex(pa.array(texts, pa.large_string()), r"[\t\n\r]", " ")
        split = pc.split_pattern(spaced, " ")
        every = split.flatten()
        words = every.dictionary_encode()
        with self._lock:
            rows, ids, spans = self._look_up(words.dictionary.to_pylist()), self._ids, self._spans
        known, first_words = rows[words.indices.to_numpy(zero_copy_only=False)], split.offsets.to_numpy()
        firsts, lengths = ids.starts[known], ids.lengths[known]
        by_word = ids.take(firsts, lengths)
        return _Encoded(Ragged(by_word.flat, by_word.starts[first_words]), every, first_words, firsts, lengths, spans)

    def _look_up(self, words: list[str]) -> NDArray[np.int64]:
        """The row of each word in `_ids`; the words must be distinct."""
        if len(self._rows) + len(words) > _MOST_WORDS or self._chars > _MOST_CHARS:
            self._forget()
        new = [word for word in words if word not in self._rows]
        if new:
            self._learn(new)
        return np.fromiter(map(self._rows.__getitem__, words), np.int64, len(words))

    def _learn(self, words: list[str]) -> None:
        together = [words[i : i + _WORDS_TOGETHER] for i in range(0, len(words), _WORDS_TOGETHER)]
        encodings = self._backend.encode_batch([" ".join(part) for part in together], add_special_tokens=False)
        found = [_find_words(part, encoding.offsets) for part, encoding in zip(together, encodings, strict=True)]
        counts, spans = [counts for counts, _ in found], [spans for _, spans in found]
        learnt = ragged(encoding.ids for encoding in encodings)
        starts = np.concatenate([self._ids.starts, self._ids.starts[-1] + np.cumsum(np.concatenate(counts))])
        self._rows.update(zip(words, range(len(self._rows), len(self._rows) + len(words)), strict=True))
        self._ids = Ragged(np.concatenate([self._ids.flat, learnt.flat]), starts)
        self._spans = np.concatenate([self._spans, *spans])
        self._chars += sum(map(len, words))


def _find_words(words: list[str], offsets: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The number of tokens of each word, and the position of each token in its word.

    Some added tokens include the blanks before or after them, and so reach into other words. A token belongs to the
    word of its first character that is not blank.
    """
    spans = np.array(offsets, np.int32).reshape(-1, 2)
    begins = starts_of(np.array([len(word) + 1 for word in words], np.int64))
    firsts, lasts = (
        np.searchsorted(begins[1:], at, side="right") for at in (spans[:, 0], np.maximum(0, spans[:, 1] - 1))
    )
    text = " ".join(words) if (firsts != lasts).any() else ""
    for token in np.flatnonzero(firsts != lasts):
        start, stop = spans[token]
        blank = len(text[start:stop]) - len(text[start:stop].lstrip())
        firsts[token] = np.searchsorted(begins[1:], start + blank, side="right")
    return np.bincount(firsts, minlength=len(words)), (spans - begins[firsts, None]).astype(np.int32)
