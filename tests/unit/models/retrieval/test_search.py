"""Exact and approximate search by meaning, search by words, and both fused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.errors import CorruptState
from shardmill.core.fusion import RRF, fuse
from shardmill.models.retrieval.graph import VectorGraph, measure_recall, write_graph
from shardmill.models.retrieval.vectors import join_best, nearest
from shardmill.models.retrieval.words import GroupedWords, WordIndex, write_words
from tests.support.libraries import needed

bm25s = needed("bm25s")
needed("usearch")

RANDOM = np.random.default_rng(5)
MATRIX = RANDOM.normal(size=(3_000, 16)).astype(np.float32)
QUERIES = RANDOM.normal(size=(7, 16)).astype(np.float32)


def brute(query: np.ndarray, k: int) -> list[int]:
    scores = MATRIX @ query / np.linalg.norm(MATRIX, axis=1)
    return np.argsort(-scores, kind="stable")[:k].tolist()


@pytest.mark.parametrize("block_bytes", [1 << 26, 7_000])
def test_the_nearest_of_many_queries_are_those_of_each(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr("shardmill.models.retrieval.vectors._BLOCK_BYTES", block_bytes)
    found = nearest(MATRIX, QUERIES, 10)
    assert [rows.tolist() for rows, _ in found] == [brute(query, 10) for query in QUERIES]
    assert all((np.diff(scores) <= 0).all() for _, scores in found)


def test_rows_without_a_vector_are_left_out_and_items_are_found_once() -> None:
    matrix = MATRIX[:50].copy()
    matrix[::2] = np.nan
    items = np.arange(50) // 10
    for rows, _ in nearest(matrix, QUERIES, 100):
        assert sorted(rows) == list(range(1, 50, 2))
    for rows, _ in nearest(matrix, QUERIES, 100, items):
        assert sorted(items[rows]) == [0, 1, 2, 3, 4]
    assert [len(rows) for rows, _ in nearest(np.full((3, 16), np.nan), QUERIES, 2)] == [0] * 7


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("block_bytes", [1 << 26, 7_000])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.3, 0.5, 0.7, 1.0])
def test_only_rows_that_are_allowed_are_found(
    monkeypatch: pytest.MonkeyPatch, share: float, block_bytes: int, dtype: type[np.floating[Any]]
) -> None:
    monkeypatch.setattr("shardmill.models.retrieval.vectors._BLOCK_BYTES", block_bytes)
    matrix = MATRIX.astype(dtype)
    matrix[::7] = np.nan
    allowed = np.random.default_rng(3).random(len(matrix)) < share
    if block_bytes < 1 << 20:
        allowed[1_000:1_500] = False
    items = np.arange(len(matrix)) // 3
    wide = matrix.astype(np.float64)
    there = allowed & np.isfinite(wide[:, 0])
    for k in (1, 10, 5_000):
        for query, (rows, scores), (firsts, _) in zip(
            QUERIES,
            nearest(matrix, QUERIES, k, None, allowed),
            nearest(matrix, QUERIES, k, items, allowed),
            strict=True,
        ):
            cosines = wide @ query / np.linalg.norm(wide, axis=1) / np.linalg.norm(query)
            due = np.array(sorted(np.flatnonzero(there), key=lambda row: -cosines[row]), np.int64)
            of_items = due[np.sort(np.unique(items[due], return_index=True)[1])]
            # Rows whose cosines differ by less than a rounding may have changed places.
            assert cosines[rows] == pytest.approx(cosines[due[:k]], abs=1e-6)
            assert cosines[firsts] == pytest.approx(cosines[of_items[:k]], abs=1e-6)
            assert scores == pytest.approx(cosines[rows], abs=1e-5)
            assert there[rows].all()
            assert there[firsts].all()
            assert len({*rows}) == len(rows)
            assert len({*items[firsts]}) == len(firsts)


def test_of_many_equal_scores_the_lowest_rows_are_found() -> None:
    matrix = np.ones((1_000, 16), np.float32)
    assert nearest(matrix, QUERIES[:1], 3)[0][0].tolist() == [0, 1, 2]
    assert nearest(matrix, QUERIES[:1], 3, None, np.arange(1_000) % 10 == 7)[0][0].tolist() == [7, 17, 27]


def test_of_equal_scores_the_lower_row_comes_first() -> None:
    a = np.array([9, 4]), np.array([1.0, 0.5], np.float32)
    b = np.array([3, 7]), np.array([0.5, 1.0], np.float32)
    assert join_best(a, b, 3)[0].tolist() == [7, 9, 3]


def test_fusion_adds_reciprocal_ranks() -> None:
    assert fuse([[1, 2], [2, 3]], 9) == [(2, 1 / (RRF + 2) + 1 / (RRF + 1)), (1, 1 / (RRF + 1)), (3, 1 / (RRF + 2))]
    assert fuse([[], []], 3) == []


def test_a_graph_finds_what_exact_search_finds(tmp_path: Path) -> None:
    matrix = MATRIX.copy()
    matrix[5] = np.nan
    write_graph(matrix, tmp_path / "graph")
    graph = VectorGraph(tmp_path / "graph", matrix)
    assert measure_recall(matrix, graph) > 0.95
    for (due, due_scores), (seen, scores) in zip(nearest(matrix, QUERIES, 5), graph.search(QUERIES, 5), strict=True):
        assert len(np.intersect1d(due, seen)) >= 4
        assert scores[0] == pytest.approx(due_scores[0], abs=1e-5)
        assert 5 not in seen


def test_words_find_passages_that_share_them(tmp_path: Path) -> None:
    write_words(["the red mill", "", "a blue mill by the sea", "Zürich 1995", "the and of"], tmp_path / "words")
    found = WordIndex(tmp_path / "words").search(["red mill?", "zürich", "the", "nothing here", ""], 3)
    assert [rows.tolist() for rows, _ in found] == [[0, 2], [3], [], [], []]


def test_words_are_scored_as_the_library_does_it(tmp_path: Path) -> None:
    choose = np.random.default_rng(2)
    texts = [" ".join(f"word{i}" for i in choose.zipf(1.5, 8) % 50) for _ in range(400)]
    write_words(texts, tmp_path / "words")
    scores = library_scores(texts, "word1 word3 word7")
    (best,) = WordIndex(tmp_path / "words").search(["word1 word3 word7"], 400)
    due = sorted(np.flatnonzero(scores), key=lambda row: (-scores[row], row))
    assert best[0].tolist() == due
    assert best[1] == pytest.approx(scores[due])
    items, allowed = np.arange(400) // 4, choose.random(400) < 0.3
    (few,) = WordIndex(tmp_path / "words").search(["word1 word3 word7"], 5, items, allowed)
    found: dict[int, int] = {}
    for row in due:
        if allowed[row]:
            found.setdefault(items[row], row)
    assert few[0].tolist() == [*found.values()][:5]


def test_an_index_of_an_earlier_version_is_searched_the_same(tmp_path: Path) -> None:
    texts, asked = ["the red mill", "", "a blue mill by the sea", "Zürich 1995"], ["red mill", "zürich aaa zzz", "the"]
    write_words(texts, tmp_path / "words")
    found = WordIndex(tmp_path / "words").search(asked, 3)
    (tmp_path / "words/vocabulary.arrow").unlink()
    before = WordIndex(tmp_path / "words").search(asked, 3)
    assert [(a.tolist(), b.tolist()) for a, b in found] == [(a.tolist(), b.tolist()) for a, b in before]


def library_scores(texts: list[str], query: str) -> np.ndarray:
    index = bm25s.BM25(method="lucene")
    index.index(bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False), show_progress=False)
    scores: np.ndarray = index.get_scores(query.split())
    return scores


def test_the_words_of_groups_are_searched_as_one(tmp_path: Path) -> None:
    groups = [["red mill", "blue mill", "sea"], ["the", ""], ["mill", "red red mill", "red sea"]]
    for i, texts in enumerate(groups):
        write_words(texts, tmp_path / f"{i}")
    words = GroupedWords([tmp_path / f"{i}" for i in range(3)], [3, 2, 3])
    (found,) = words.search(["mill"], 9)
    assert sorted(found[0].tolist()) == [0, 1, 5, 6]
    assert (np.diff(found[1]) <= 0).all()
    allowed = np.array([0, 1, 0, 1, 1, 0, 1, 0], bool)
    assert sorted(words.search(["mill"], 9, None, allowed)[0][0].tolist()) == [1, 6]
    assert len(words.search(["mill"], 9, None, np.zeros(8, bool))[0][0]) == 0
    with pytest.raises(CorruptState, match="of 3 passages, not of 4"):
        GroupedWords([tmp_path / "0"], [4]).search(["mill"], 1)


def test_passages_without_any_word_can_be_searched(tmp_path: Path) -> None:
    write_words(["", "the"], tmp_path / "words")
    assert [len(rows) for rows, _ in WordIndex(tmp_path / "words").search(["mill", ""], 3)] == [0, 0]
