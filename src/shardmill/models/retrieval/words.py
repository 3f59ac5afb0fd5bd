"""BM25 over passages, by bm25s: built in memory for one group, saved as arrays, opened memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.core.errors import missing_extra
from shardmill.models.retrieval.vectors import Best


def write_words(texts: Sequence[str], folder: Path) -> None:
    """Index texts by their words, as Lucene scores them, into a new folder; without a word it stays empty."""
    tokens = _tokens(texts)
    folder.mkdir()
    if any(tokens):
        index = _library().BM25(method="lucene")
        index.index(tokens, show_progress=False)
        index.save(folder, show_progress=False)


class WordIndex:
    """The words of one group of passages."""

    def __init__(self, folder: Path) -> None:
        self._index = _library().BM25.load(folder, mmap=True, show_progress=False) if any(folder.iterdir()) else None

    def search(self, texts: Sequence[str], k: int) -> list[Best]:
        """Rows and scores of the k passages that share the most telling words with each text; none without a match."""
        if self._index is None:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(texts)
        rows, scores = self._index.retrieve(
            _tokens(texts),
            k=min(k, int(self._index.scores["num_docs"])),
            show_progress=False,
            backend_selection="numpy",
        )
        found = []
        for row, score in zip(np.asarray(rows, np.int64), np.asarray(scores, np.float32), strict=True):
            order = np.lexsort((row, -score))[: int((score > 0).sum())]
            found.append((row[order], score[order]))
        return found


def _tokens(texts: Sequence[str]) -> list[list[str]]:
    made: list[list[str]] = _library().tokenize(
        list(texts), stopwords="en", return_ids=False, show_progress=False, allow_empty=True
    )
    return made


def _library() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise missing_extra("bm25s", "answer") from error
    return bm25s
