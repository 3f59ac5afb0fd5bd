"""Token vectors equal those of sentence-transformers' MultiVectorEncoder, which reads all three kinds of folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.models.colbert.folder import read_token_folder
from shardmill.models.plain import read_network
from shardmill.verbs.embed_tokens.task import EmbedTokensTask
from tests.support.colbert_models import LONGEST, QUERIES, TEXTS, write_pylate, write_stanford
from tests.support.families import KINDS
from tests.support.libraries import needed

MultiVectorEncoder = needed("sentence_transformers").MultiVectorEncoder
pytestmark = pytest.mark.model
Vectors = list[NDArray[np.float32]]


def open_task(folder: Path, *, reference: bool = False, **params: Any) -> EmbedTokensTask:
    task = EmbedTokensTask(model=str(folder), dtype="float32", **params)
    task.open(Device("cpu", "cpu", threads=2, precise=True, reference=reference))
    return task


def compute(task: EmbedTokensTask) -> Vectors:
    rows = task.run(list(task.prepare(TEXTS).inputs)).rows
    found = [task.column.read_items(each.values) for each in rows.column("vectors")]
    assert rows.column("tokens").to_pylist() == [len(each) for each in found]
    return found


def assert_equal(seen: Vectors, expected: Vectors) -> None:
    assert [each.shape for each in seen] == [each.shape for each in expected]
    for a, b in zip(seen, expected, strict=True):
        assert np.abs(a - b).max(initial=0) < 1e-4


def check(folder: Path, *, queries: bool = True) -> MultiVectorEncoder:
    model = MultiVectorEncoder(str(folder), device="cpu")
    due = model.encode_document(TEXTS, convert_to_numpy=True)
    for reference in (False, True):
        task = open_task(folder, reference=reference)
        assert_equal(compute(task), due)
        if queries:
            assert_equal(
                [task.embed_query(text) for text in QUERIES], model.encode_query(QUERIES, convert_to_numpy=True)
            )
        task.close()
    return model


@pytest.mark.parametrize("family", KINDS["token vectors"].families)
def test_families_as_pylate_saves_them(family: str, tmp_path: Path) -> None:
    check(write_pylate(tmp_path / "m", family))
    assert not KINDS["token vectors"].heavy
    read_network(read_token_folder(tmp_path / "m"))
    task = open_task(tmp_path / "m")
    assert max(map(len, compute(task))) <= LONGEST


@pytest.mark.parametrize("attends", [False, True])
def test_a_model_of_colbert_ai(attends: bool, tmp_path: Path) -> None:
    check(write_stanford(tmp_path / "m", attend_to_mask_tokens=attends, mask_punctuation=attends))


@pytest.mark.parametrize(
    "said",
    [
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"skiplist_words": ["the", "rain"]},
        {"query_length": None, "document_length": None},
        {"prompts": {"query": "ask: ", "document": "page: "}},
    ],
)
def test_what_pylate_says(said: dict[str, Any], tmp_path: Path) -> None:
    check(write_pylate(tmp_path / "m", **said))


@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_a_folder_that_version_6_saves(strategy: str, tmp_path: Path) -> None:
    model = MultiVectorEncoder(str(write_pylate(tmp_path / "old")), device="cpu")
    model[0].query_expansion = {"strategy": strategy, "attend": False, "length": 14}
    model.save_pretrained(str(tmp_path / "new"))
    check(tmp_path / "new")


def test_half_precision_is_stored(tmp_path: Path) -> None:
    folder = write_pylate(tmp_path / "m")
    task = EmbedTokensTask(model=str(folder))
    task.open(Device("cpu", "cpu", threads=2, precise=True))
    rows = task.run(list(task.prepare(TEXTS).inputs)).rows
    exact = compute(open_task(folder))
    for stored, vectors in zip(rows.column("vectors"), exact, strict=True):
        assert np.array_equal(task.column.read_items(stored.values), vectors.astype(np.float16))
