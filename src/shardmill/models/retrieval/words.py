"""BM25 over passages, by bm25s: built in memory for one group, saved as arrays, opened memory-mapped."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import CorruptState
from shardmill.core.extras import missing_package
from shardmill.models.retrieval.vectors import NOTHING, Best, join_best
from shardmill.models.retrieval.wording import WordRules

_VOCABULARY = "vocabulary.arrow"
_ENGLISH = WordRules()


def write_words(texts: Sequence[str], folder: Path, rules: WordRules = _ENGLISH) -> None:
    """Index texts by their words, as Lucene scores them, into a new folder; without a word it stays empty."""
    tokens = rules.cut(texts, _cut_english)
    folder.mkdir()
    if any(tokens):
        index = _library().BM25(method="lucene")
        index.index(tokens, show_progress=False)
        index.save(folder, show_progress=False)
        _write_vocabulary(index.vocab_dict, folder / _VOCABULARY)


class WordIndex:
    """The words of one group of passages."""

    def __init__(self, folder: Path, rules: WordRules = _ENGLISH) -> None:
        self._rules = rules
        self._index: Any = None
        self._vocabulary: _Vocabulary | dict[str, int] | None = None
        if any(folder.iterdir()):
            # Indexes of earlier versions have their words in JSON alone, which takes time and memory.
            ordered = (folder / _VOCABULARY).exists()
            load = _library().BM25.load
            self._index = load(folder, mmap=True, load_vocab=not ordered, show_progress=False)
            self._vocabulary = _Vocabulary(folder / _VOCABULARY) if ordered else self._index.vocab_dict

    @property
    def passages(self) -> int | None:
        """How many there are; None if there is no word in any."""
        return None if self._index is None else int(self._index.scores["num_docs"])

    def search(
        self,
        texts: Sequence[str],
        k: int,
        items: NDArray[np.int64] | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> list[Best]:
        """Rows and scores of the k passages that share the most telling words with each text; none without a match.

        At most one per item is found, and only those that are `allowed`.
        """
        return [self.rank(tokens, k, items, allowed) for tokens in self._rules.cut(texts, _cut_english)]

    def rank(
        self,
        tokens: list[str],
        k: int,
        items: NDArray[np.int64] | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Best:
        """The same for one text, by its words."""
        if self._index is None or self._vocabulary is None:
            return NOTHING
        known = [number for token in tokens if (number := self._vocabulary.get(token)) is not None]
        if not known:
            return NOTHING
        scores = self._index.get_scores_from_ids(known, weight_mask=allowed)
        rows = np.flatnonzero(scores > 0)
        return join_best(NOTHING, (rows, scores[rows]), k, items)


class GroupedWords:
    """The words of all groups of a run, each opened when it is first searched. A passage has a number, from 0."""

    def __init__(self, folders: Sequence[Path], sizes: Sequence[int], rules: WordRules = _ENGLISH) -> None:
        self._folders, self._firsts, self.rules = folders, np.cumsum([0, *sizes]), rules
        self._opened: dict[Path, WordIndex] = {}

    def search(
        self,
        texts: Sequence[str],
        k: int,
        items: NDArray[np.int64] | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> list[Best]:
        """Numbers and BM25 scores of the k best passages for each text. Rare words are weighed per group."""
        asked = self.rules.cut(texts, _cut_english)
        best: list[Best] = [NOTHING] * len(asked)
        for folder, first, stop in zip(self._folders, self._firsts[:-1], self._firsts[1:], strict=True):
            among = None if items is None else items[first:stop]
            taken = None if allowed is None else allowed[first:stop]
            if taken is not None and not taken.any():
                continue
            index = self._open(folder, int(stop - first))
            for i, tokens in enumerate(asked):
                rows, scores = index.rank(tokens, k, among, taken)
                best[i] = join_best(best[i], (rows + first, scores), k)
        return best

    def _open(self, folder: Path, passages: int) -> WordIndex:
        if folder not in self._opened:
            index = WordIndex(folder, self.rules)
            if index.passages not in (None, passages):
                raise CorruptState(
                    f"{folder} is the index of {index.passages:,} passages, not of {passages:,}.",
                    hint="Delete this folder: it is written again.",
                )
            self._opened[folder] = index
        return self._opened[folder]


def _write_vocabulary(numbers: Mapping[str, int], path: Path) -> None:
    words = sorted(numbers)
    table = pa.table({"word": pa.array(words, pa.large_string()), "number": [numbers[word] for word in words]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


class _Vocabulary:
    """The words of a group in order, memory-mapped: a search needs a few of them, and there are many groups."""

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        self._words, self._numbers = table.column("word"), table.column("number")

    def get(self, word: str) -> int | None:
        """The number of a word."""
        at = bisect_left(range(len(self._words)), word, key=lambda i: self._words[i].as_py())
        found = at < len(self._words) and self._words[at].as_py() == word
        return int(self._numbers[at].as_py()) if found else None


def _cut_english(texts: Sequence[str]) -> list[list[str]]:
    made: list[list[str]] = _library().tokenize(
        list(texts), stopwords="en", return_ids=False, show_progress=False, allow_empty=True
    )
    return made


def _library() -> Any:
    """bm25s without jax: where that is installed, bm25s imports it, and it takes most of a GPU's memory."""
    is_hidden = not {"bm25s", "jax"} & sys.modules.keys()
    if is_hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        import bm25s
    except ImportError as error:
        raise missing_package("bm25s") from error
    finally:
        if is_hidden:
            del sys.modules["jax"]
    return bm25s
