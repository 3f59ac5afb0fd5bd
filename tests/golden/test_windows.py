"""Vectors of windows are those of a plain loop: transformers cuts, sentence-transformers encodes one at a time."""

from __future__ import annotations

import argparse
import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from shardmill.verbs.embed.task import EmbedTask
from tests.support.tiny_models import MINILM, bert, needed, pooling, torch, transformers, write_model

pytestmark = pytest.mark.model

SentenceTransformer = needed("sentence_transformers").SentenceTransformer
SIZE, OVERLAP = 48, 12
DOCS = [
    inspect.getsource(argparse)[:1800],
    "A short text about cats.",
    "Das Wetter ist schön, и это тоже текст, 漢字も, مرحبا 🙂 e\u0301 \x00 " * 6,
    "Cats sleep most of the day. " * 20,
    "word",
]


@cache
def peer() -> Any:
    return SentenceTransformer(str(MINILM), device="cpu", model_kwargs={"dtype": torch.float32})


@cache
def reference(text: str, size: int = SIZE, overlap: int = OVERLAP) -> tuple[list[NDArray[np.float32]], list[int]]:
    """The vector and the number of own tokens of each window."""
    made, model = transformers.AutoTokenizer.from_pretrained(MINILM), peer()
    rows = made(text, truncation=True, max_length=size, stride=overlap, return_overflowing_tokens=True)["input_ids"]
    vectors = []
    for ids in rows:
        features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
        with torch.inference_mode():
            vectors.append(model(features)["sentence_embedding"][0].numpy())
    return vectors, [len(ids) - 2 for ids in rows]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The same texts without windows, with a row for each, and with the mean of them."""
    root = tmp_path_factory.mktemp("windows")
    source = root / "docs.jsonl"
    source.write_text("".join(json.dumps({"id": f"d{i}", "body": text}) + "\n" for i, text in enumerate(DOCS)))
    windows = {"window_tokens": SIZE, "overlap": OVERLAP}
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "each": windows, "mean": {**windows, "windows": "mean"}}
    made = {}
    for name, params in kinds.items():
        work = {"source": str(source), "text": "body", "id": "id", "params": {"model": str(MINILM), **params}}
        spec = make_spec(work, {"precision": "float32", "batch_tokens": 1000, "device": "cpu", "shard_bytes": 1500})
        made[name] = start(spec, root / name, engine=InProcessEngine())
    return made


def vectors_of(run: Run) -> NDArray[np.float32]:
    return np.stack(run.table(["embedding"]).column("embedding").to_numpy(zero_copy_only=False))


def test_each_window_has_the_vector_of_a_plain_loop(runs: dict[str, Run]) -> None:
    table = runs["each"].table()
    due = [(i, vector) for i, text in enumerate(DOCS) for vector in reference(text)[0]]
    assert table.column("row").to_pylist() == [i for i, _ in due]
    assert table.column("id").to_pylist() == [f"d{i}" for i, _ in due]
    np.testing.assert_allclose(vectors_of(runs["each"]), np.stack([v for _, v in due]), atol=2e-6)


def test_the_mean_is_weighted_by_tokens_and_has_length_one(runs: dict[str, Run]) -> None:
    due = []
    for text in DOCS:
        vectors, tokens = reference(text)
        mean = np.average(np.stack(vectors).astype(np.float64), axis=0, weights=tokens)
        due.append(mean / np.linalg.norm(mean))
    np.testing.assert_allclose(vectors_of(runs["mean"]), np.stack(due), atol=2e-6)


def test_an_item_of_one_window_has_the_vector_it_has_without(runs: dict[str, Run]) -> None:
    plain, each, mean = (vectors_of(runs[name]) for name in ("plain", "each", "mean"))
    first = {row: i for i, row in reversed(list(enumerate(runs["each"].table().column("row").to_pylist())))}
    for i in (1, 4):
        np.testing.assert_allclose(each[first[i]], plain[i], atol=1e-6)
        np.testing.assert_allclose(mean[i], plain[i], atol=1e-6)
    assert abs(float(mean[0] @ plain[0])) < 0.99


def test_runs_with_windows_are_proved_and_searched(runs: dict[str, Run]) -> None:
    for run in runs.values():
        report = run.verify(sample=24)
        assert report.verified, report
    best, second = runs["each"].search("cats", k=2)
    assert {best.row, second.row} == {1, 3}
    found = runs["each"].search("command line arguments", k=1)[0]
    assert found.row == 0
    assert found.start is not None
    assert "arg" in DOCS[0][found.start : found.stop]


def test_the_options_are_part_of_the_plan(runs: dict[str, Run]) -> None:
    assert len({run.plan.id for run in runs.values()}) == 3


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_window_to_the_bit_prompts_dims_and_half_precision(tmp_path: Path, normalize: bool, dtype: str) -> None:
    """What is stored for an item of one window is what is stored without windows, also for the mean."""
    steps = [pooling("mean", include_prompt=False), *([("Normalize", {}, {})] if normalize else [])]
    folder = write_model(tmp_path / "tiny", bert(), steps, whole={"prompts": {"p": "passage: "}})
    common = {"model": str(folder), "dims": 8, "dtype": dtype, "prompt": "p"}
    vectors = []
    for params in ({}, {"window_tokens": 40}, {"window_tokens": 40, "windows": "mean"}):
        task = EmbedTask(**common, **params)
        task.open(Device("cpu", "cpu", threads=2, precise=True))
        prepared = task.prepare(["A short text.", "word " * 80])
        output = task.run([prepared.inputs[0]]).rows
        if (combined := task.combine(1)) is not None:
            combined.add(np.zeros(1, np.int64), output)
            output = combined.finish().rows
        vectors.append(output.column("embedding").flatten())
    assert vectors[0].equals(vectors[1])
    assert vectors[0].equals(vectors[2])
