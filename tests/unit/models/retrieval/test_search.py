"""Exact and approximate search by meaning, search by words, and both fused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.core.fusion import RRF, fuse
from shardmill.models.retrieval.graph import VectorGraph, measure_recall, write_graph
from shardmill.models.retrieval.vectors import join_best, nearest
from shardmill.models.retrieval.words import WordIndex, write_words
from tests.support.libraries import needed

for name in ("bm25s", "usearch"):
    needed(name)

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


def test_passages_without_any_word_can_be_searched(tmp_path: Path) -> None:
    write_words(["", "the"], tmp_path / "words")
    assert [len(rows) for rows, _ in WordIndex(tmp_path / "words").search(["mill", ""], 3)] == [0, 0]
