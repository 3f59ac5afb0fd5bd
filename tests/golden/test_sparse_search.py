"""Searches of sparse runs give the items and scores that sentence-transformers' SparseEncoder gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardmill.core.errors import UsageError
from shardmill.core.fusion import RRF
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.libraries import needed
from tests.support.sparse_models import TEXTS, write_router, write_splade

SparseEncoder = needed("sentence_transformers").SparseEncoder
pytestmark = pytest.mark.model
QUERIES = ["the battery of the charger", "a train to Turin", "café"]


def embed(folder: Path, model: Path) -> Run:
    rows = [{"id": f"k{i}", "text": f"{TEXTS[i % len(TEXTS)]} {i}", "n": i} for i in range(30)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = {"source": str(folder / "items.jsonl"), "text": "text", "id": "id", "keep": ["n", "text"]}
    work |= {"task": "embed-sparse", "params": {"model": str(model)}}
    execution = {"device": "cpu", "shard_bytes": 900, "precision": "float32"}
    return start(make_spec(work, execution), folder / "run", engine=InProcessEngine())


def expect(model: Path, texts: list[str]) -> np.ndarray:
    encoder = SparseEncoder(str(model), device="cpu")
    asked, found = encoder.encode_query(QUERIES), encoder.encode_document(texts)
    scores: np.ndarray = encoder.similarity(asked, found).numpy()
    return scores


@pytest.mark.parametrize(("write", "limit"), [(write_splade, 20), (write_router, None)])
def test_search(write: Callable[..., Path], limit: int | None, tmp_path: Path) -> None:
    model = write(tmp_path / "m")
    if limit is not None:
        said = model / "config_sentence_transformers.json"
        said.write_text(json.dumps({**json.loads(said.read_text()), "max_active_dims": limit}))
    run = embed(tmp_path, model)
    table = run.table()
    expected = expect(model, table.column("text").to_pylist())
    for where, allowed in (("", lambda n: True), ("n >= 20", lambda n: n >= 20)):
        for scores, hits in zip(expected, run.search_many(QUERIES, 30, where=where), strict=True):
            there = {n: float(scores[n]) for n in range(30) if allowed(n) and scores[n] > 1e-4}
            seen = {hit.values["n"]: hit.score for hit in hits}
            assert {n for n in seen if seen[n] > 1e-4} == there.keys()
            assert [seen[n] for n in there] == pytest.approx([*there.values()], rel=1e-4, abs=1e-4)
            assert [hit.score for hit in hits] == sorted(seen.values(), reverse=True)
    (index,) = (tmp_path / "run/final").glob("sparse-*")
    before = [path.stat().st_mtime_ns for path in index.iterdir()]
    again = Run(tmp_path / "run").search(QUERIES[0], 3)
    assert [(hit.row, hit.score) for hit in again] == [(hit.row, hit.score) for hit in run.search(QUERIES[0], 3)]
    assert before == [path.stat().st_mtime_ns for path in index.iterdir()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    return embed(folder, write_splade(folder / "m"))


def test_with_words(run: Run) -> None:
    meant, worded = run.search(QUERIES[1], 30), run.search(QUERIES[1], 30, words=True)
    ranks = [{hit.row: rank for rank, hit in enumerate(each, 1)} for each in (meant, worded)]
    assert ranks[1]
    for hit in run.search(QUERIES[1], 5, hybrid=True):
        assert hit.score == pytest.approx(sum(1 / (RRF + each[hit.row]) for each in ranks if hit.row in each))


def test_what_needs_dense_vectors(run: Run) -> None:
    for ask in (run.index, run.vectors):
        with pytest.raises(UsageError, match="no vector"):
            ask()
    with pytest.raises(UsageError, match="empty"):
        run.search(" ")
