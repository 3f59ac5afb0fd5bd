"""A run is searched with others over the same items: fused by rank, or ranked anew, as plain Python does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.errors import UsageError
from shardmill.core.fusion import RRF
from shardmill.results import together
from shardmill.run import Run
from shardmill.testing import fake_vector
from tests.unit.results.test_run_search import QUERY, Row, make_run, rows, source

__all__ = ["source"]

OWN, OTHER = {"dims": 8}, {"dims": 16}


@pytest.fixture(scope="module")
def make(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    def make(params: Row, work: Row | None = None) -> Run:
        return make_run(source, tmp_path_factory.mktemp("run") / "run", work, params)

    return make


def ranked(run: Run, dims: int, holds: Callable[[Row], bool], among: list[int] | None = None) -> list[int]:
    """The items, nearest first."""
    table, query, every = run.table(), fake_vector(QUERY, dims), rows()
    best: dict[int, float] = {}
    for item, vector in zip(table.column("row").to_pylist(), table.column("embedding").to_pylist(), strict=True):
        if vector is not None and holds(every[item]) and (among is None or item in among):
            best[item] = max(best.get(item, -2.0), round(float(np.dot(vector, query) / np.linalg.norm(vector)), 6))
    return sorted(best, key=lambda item: (-best[item], item))


WHERES: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "overall <= 2": lambda row: row["overall"] is not None and row["overall"] <= 2,
    "n > 1000": lambda row: False,
}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "windows": ({}, {"window": 17}, {}),
    "both in windows": ({}, {"window": 17}, {"window": 30}),
    "taken": ({"take": 0.4}, {}, {"window": 30}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_fused_by_rank_and_the_best_are_ranked_anew(
    kind: str, make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, own_params, other_params = KINDS[kind]
    own, other = make(OWN | own_params, work), make(OTHER | other_params, work)
    monkeypatch.setattr(together, "_RANKED_ANEW", 70)
    for where, holds in WHERES.items():
        first, second = ranked(own, 8, holds), ranked(other, 16, holds)
        scores: dict[int, float] = {}
        for each in (first[:RRF], second[:RRF]):
            for rank, item in enumerate(each, 1):
                scores[item] = scores.get(item, 0.0) + 1 / (RRF + rank)
        hits = own.search(QUERY, 9, where=where, beside=other.ledger.url)
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True)[:9])
        assert all(scores[hit.row] == pytest.approx(hit.score) for hit in hits)
        assert [hit.values["id"] for hit in hits] == [f"k{hit.row}" for hit in hits]

        hits = own.search(QUERY, 9, where=where, rerank=other.ledger.url)
        assert [hit.row for hit in hits] == ranked(other, 16, holds, first[:70])[:9]
    by_words = own.search(QUERY, 5, words=True, rerank=other.ledger.url)
    assert len(by_words) == 5
    assert [hit.row for hit in by_words] == ranked(other, 16, WHERES[""], [hit.row for hit in by_words])


def test_runs_of_other_items_are_refused(make: Callable[..., Run]) -> None:
    own, other = make(OWN), make(OTHER, {"where": "n >= 90"})
    for how in ("beside", "rerank"):
        with pytest.raises(UsageError, match="was not made from the same items"):
            own.search(QUERY, **{how: other.ledger.url})  # type: ignore[arg-type]
