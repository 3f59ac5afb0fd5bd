"""Texts -> token ids word by word, for tokenizers to which a space is always the end of a word.

What is between two spaces gives the same ids in every text, so each such word is tokenized once, by the model's own
tokenizer, and looked up ever after. Splitting, looking up and gathering are done in Arrow and NumPy, a block of texts
at a time: once most words are known, about ten times what the tokenizer does on whole texts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.tasks.embed.ragged import Ragged, ragged

_MOST_WORDS = 1 << 18
_MOST_CHARS = 16 << 20
_WORDS_TOGETHER = 256
_CHARWISE_NORMALIZERS = {"BertNormalizer", "Lowercase"}


def is_wordwise(backend: Any) -> bool:
    """Whether a space always ends a word: BERT's way to normalize and split, WordPiece, no token with a space in it."""
    said = json.loads(backend.to_str())
    normalizer, splitter = said["normalizer"] or {}, said["pre_tokenizer"] or {}
    normalizers = normalizer.get("normalizers", [normalizer] if normalizer else [])
    return (
        said["model"]["type"] == "WordPiece"
        and splitter.get("type") == "BertPreTokenizer"
        and all(part["type"] in _CHARWISE_NORMALIZERS for part in normalizers)
        and not any(t["single_word"] or any(c.isspace() for c in t["content"]) for t in said["added_tokens"])
    )


class Words:
    """The ids of every word met so far; all are forgotten when there are too many. Threads may share it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._ids = ragged([])
        self._chars = 0

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Ids of each text, without special ones. A text that is no valid Unicode raises UnicodeError."""
        spaced = pc.replace_substring_regex(pa.array(texts, pa.large_string()), r"[\t\n\r]", " ")
        split = pc.split_pattern(spaced, " ")
        words = split.flatten().dictionary_encode()
        with self._lock:
            rows, ids = self._look_up(words.dictionary.to_pylist()), self._ids
        known = rows[words.indices.to_numpy(zero_copy_only=False)]
        by_word = ids.take(ids.starts[known], ids.lengths[known])
        return Ragged(by_word.flat, by_word.starts[split.offsets.to_numpy()])

    def _look_up(self, words: list[str]) -> NDArray[np.int64]:
        """Where in `_ids` each word is; the words differ from one another."""
        if len(self._rows) + len(words) > _MOST_WORDS or self._chars > _MOST_CHARS:
            self._rows, self._ids, self._chars = {}, ragged([]), 0
        new = [word for word in words if word not in self._rows]
        if new:
            self._learn(new)
        return np.fromiter(map(self._rows.__getitem__, words), np.int64, len(words))

    def _learn(self, words: list[str]) -> None:
        together = [words[i : i + _WORDS_TOGETHER] for i in range(0, len(words), _WORDS_TOGETHER)]
        encodings = self._backend.encode_batch([" ".join(part) for part in together], add_special_tokens=False)
        counts = [_tokens_by_word(part, encoding.offsets) for part, encoding in zip(together, encodings, strict=True)]
        learnt = ragged(encoding.ids for encoding in encodings)
        starts = np.concatenate([self._ids.starts, self._ids.starts[-1] + np.cumsum(np.concatenate(counts))])
        self._rows.update(zip(words, range(len(self._rows), len(self._rows) + len(words)), strict=True))
        self._ids = Ragged(np.concatenate([self._ids.flat, learnt.flat]), starts)
        self._chars += sum(map(len, words))


def _tokens_by_word(words: list[str], offsets: list[tuple[int, int]]) -> NDArray[np.int64]:
    """A token belongs to the word it ends in: there are some that take the blank before them."""
    ends = np.cumsum([len(word) + 1 for word in words])
    owners = np.searchsorted(ends, [max(0, end - 1) for _, end in offsets], side="right")
    return np.bincount(owners, minlength=len(words))
