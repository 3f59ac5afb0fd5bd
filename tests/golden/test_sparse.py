"""Sparse vectors equal those of sentence-transformers' SparseEncoder, in float32: the same words, the same weights."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.plain import read_network
from shardmill.models.sparse.folder import read_sparse_folder
from shardmill.verbs.embed_sparse.task import EmbedSparseTask
from tests.support.families import KINDS
from tests.support.libraries import needed
from tests.support.sparse_models import TEXTS, write_masked, write_router, write_splade

SparseEncoder = needed("sentence_transformers").SparseEncoder
SPARSE = KINDS["sparse vectors"]
pytestmark = pytest.mark.model
Rows = list[dict[int, float]]


def compute(folder: Path, *, reference: bool = False, **params: Any) -> Rows:
    task = EmbedSparseTask(model=str(folder), **params)
    task.open(Device("cpu", "cpu", threads=2, precise=True, reference=reference))
    inputs = list(task.prepare(TEXTS).inputs)
    column = task.run(inputs).rows.column(0)
    assert all(np.all(np.diff([each["index"] for each in row]) > 0) for row in column.to_pylist())
    return [{each["index"]: each["weight"] for each in row} for row in column.to_pylist()]


def due(folder: Path, **how: Any) -> Rows:
    dense = SparseEncoder(str(folder), device="cpu").encode(TEXTS, convert_to_sparse_tensor=False, **how).numpy()
    return [{int(i): float(row[i]) for i in np.flatnonzero(row)} for row in dense]


def assert_equal(seen: Rows, expected: Rows) -> None:
    """Only a word whose weight is within rounding of 0 may be in one row and not in the other."""
    for a, b in zip(seen, expected, strict=True):
        assert max((abs(a.get(i, 0.0) - b.get(i, 0.0)) for i in a.keys() | b.keys()), default=0.0) < 1e-4
        assert all(max(a.get(i, 0.0), b.get(i, 0.0)) < 1e-4 for i in a.keys() ^ b.keys())


@pytest.mark.parametrize("family", SPARSE.families)
def test_families(family: str, tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "m", family)
    with nullcontext() if family in SPARSE.light else pytest.raises(NotDescribed):
        read_network(read_sparse_folder(folder))
    expected = due(folder)
    assert min(map(len, expected)) > 0
    assert_equal(compute(folder), expected)
    assert_equal(compute(folder, reference=True), expected)


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_poolings(pooling: str, activation: str, tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "m", "distilbert", pooling, activation)
    assert_equal(compute(folder), due(folder))
    assert_equal(compute(folder, reference=True), due(folder))


def test_a_plain_masked_language_model(tmp_path: Path) -> None:
    folder = write_masked(tmp_path / "m")
    assert_equal(compute(folder), due(folder))


def test_a_folder_that_version_6_saves(tmp_path: Path) -> None:
    SparseEncoder(str(write_splade(tmp_path / "old")), device="cpu").save_pretrained(str(tmp_path / "new"))
    listed = json.loads((tmp_path / "new/modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in listed][-1] == "SpladePooling"
    assert_equal(compute(tmp_path / "new"), due(tmp_path / "old"))


def test_the_heaviest_words(tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "m")
    assert_equal(compute(folder, max_active_dims=17), due(folder, max_active_dims=17))
    said = folder / "config_sentence_transformers.json"
    said.write_text(json.dumps({**json.loads(said.read_text()), "max_active_dims": 9}))
    seen = compute(folder)
    assert_equal(seen, due(folder))
    assert {len(row) for row in seen} == {9}
    assert {len(row) for row in compute(folder, max_active_dims=3)} == {3}


def test_prompts(tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "m", whole={"prompts": {"document": "a page: "}})
    assert_equal(compute(folder, prompt="document"), due(folder, prompt_name="document"))


def test_queries_without_a_network(tmp_path: Path) -> None:
    folder = write_router(tmp_path / "m")
    model = SparseEncoder(str(folder), device="cpu")
    expected = model.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    assert_equal(compute(folder), [{int(i): float(row[i]) for i in np.flatnonzero(row)} for row in expected])
    task = EmbedSparseTask(model=str(folder))
    task.open(Device("cpu", "cpu", threads=2, precise=True))
    query = "the battery of the charger"
    words, weights = task.encoder.sparse_query(query)
    asked = model.encode_query([query], convert_to_sparse_tensor=False).numpy()[0]
    assert_equal(
        [dict(zip(words.tolist(), weights.tolist(), strict=True))],
        [{int(i): float(asked[i]) for i in np.flatnonzero(asked)}],
    )
