"""Our own tasks run through the suite that a plug-in's tests call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core import permission
from shardmill.ledger import Ledger
from shardmill.plugins import find
from shardmill.plugins.builtin import BUILTIN
from shardmill.tasks import open_task
from shardmill.tasks.base import Task
from shardmill.testing import FakeLong, FakeStream, FakeTask, check_task
from tests.support.ledgers import a_plan
from tests.support.libraries import needed
from tests.support.objectives import STUDY
from tests.support.summaries import NEWS, write_encoder
from tests.support.training import topic_pairs

needed("torch")
needed("optuna")

from tests.support.answers import questions, searchable, write_models, write_reranker  # noqa: E402
from tests.support.classifiers import write_classifier  # noqa: E402
from tests.support.colbert_models import write_pylate  # noqa: E402
from tests.support.generative_models import write_generative  # noqa: E402
from tests.support.sparse_models import write_splade  # noqa: E402
from tests.support.training import a_model  # noqa: E402

TEXTS = [str(row["article"]) for row in NEWS]
# What a task is made from, its texts, and its columns, made in a folder.
Case = tuple[dict[str, Any], list[str], dict[str, Any]]


def answer(folder: Path) -> Case:
    models = write_models(folder)
    run = searchable(folder, models / "embedder")
    params = {"over": run.ledger.url, "reader": str(models / "reader"), "k": 3}
    return params, [row["question"] for row in questions(4)], {}


def apply(folder: Path) -> Case:
    call = "tests.contract.tasks.test_conformance:words_of"
    permission.allow([call])
    params = {"call": call, "fields": ["body"], "columns": {"word": "string"}}
    return params, ["", "", ""], {"body": ["one two three", "", "four"]}


def words_of(rows: list[dict[str, Any]]) -> list[list[dict[str, str]]]:
    return [[{"word": word} for word in (row["body"] or "").split()] for row in rows]


def score(folder: Path) -> Case:
    params = {"model": str(write_reranker(folder)), "query_text": "question"}
    return params, TEXTS, {"question": ["Who said so?"] * len(TEXTS)}


def placed(folder: Path) -> Case:
    from shardmill.verbs.map.layout.anchors import Anchors, search_axes
    from shardmill.verbs.map.layout.fitting import fit_plane
    from shardmill.verbs.map.layout.saved import save_fit
    from shardmill.verbs.map.layout.whole import to_whole

    vectors = np.random.default_rng(0).normal(size=(200, 24)).astype(np.float32)
    whole = to_whole(vectors)[0]
    save_fit(
        str(folder / "fit"), Anchors(whole, fit_plane(whole), search_axes(whole), 1.577, 0.895, 7), "umap", 500, 200, {}
    )
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[:8].reshape(-1)), 24)
    return {"fit": str(folder / "fit"), "vector": "embedding"}, [""] * 8, {"embedding": column}


def train(folder: Path) -> Case:
    rows = [{"row": i, **row} for i, row in enumerate(topic_pairs(40))]
    table = pa.Table.from_pylist(rows).append_column("why", pa.nulls(40, pa.string()))
    pq.write_table(table, folder / "rows.parquet")
    params = {"model": str(a_model(folder / "model")), "columns": ["question", "passage"], "batch": 8, "held_out": 0.2}
    return params, [str(folder / "rows.parquet")], {}


def tune(folder: Path) -> Case:
    permission.allow([STUDY["work"]["call"]])
    return {"space": STUDY["space"], **{k: v for k, v in STUDY["work"].items() if k != "trials"}}, ["", ""], {}


CASES: dict[str, Callable[[Path], Case]] = {
    "answer": answer,
    "apply": apply,
    "augment": lambda folder: ({"seed": 3}, ["0", "1", str(2**63)], {}),
    "classify": lambda folder: ({"model": str(write_classifier(folder)), "top_k": 2}, TEXTS, {}),
    "embed": lambda folder: ({"model": str(write_encoder(folder))}, TEXTS, {}),
    "embed-sparse": lambda folder: ({"model": str(write_splade(folder / "m")), "max_active_dims": 20}, TEXTS, {}),
    "embed-tokens": lambda folder: ({"model": str(write_pylate(folder / "m"))}, TEXTS, {}),
    "generate": lambda folder: ({"model": str(write_generative(folder)), "max_tokens": 8}, TEXTS, {}),
    "map": placed,
    "score": score,
    "summarize": lambda folder: ({"model": str(write_encoder(folder))}, TEXTS, {}),
    "train": train,
    "tune": tune,
}


def test_every_task_of_ours_is_here() -> None:
    assert {name for name in BUILTIN["verbs"] if find("verbs", name).task} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_task_of_ours_keeps_the_contract(name: str, tmp_path: Path) -> None:
    params, texts, columns = CASES[name](tmp_path)
    ledger = Ledger(tmp_path / "run")
    plan = ledger.create(a_plan())

    def make() -> Task:
        task = open_task(name, params)
        task.join(ledger, plan)
        return task

    assert check_task(make, texts, pa.record_batch(columns) if columns else None) >= 9


def test_fakes_keep_the_contract() -> None:
    assert check_task(FakeTask, TEXTS) >= 10
    assert check_task(lambda: FakeTask(window=10), TEXTS) >= 9
    assert check_task(lambda: FakeTask(window=10, mean=True), TEXTS) >= 10
    assert check_task(FakeStream, TEXTS) >= 10
    assert check_task(lambda: FakeLong(steps=5, keep_every=2), ["1", "2"]) >= 12
