"""Hard negatives come from an embed run: near, wrong, and never a partner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.core.errors import SpecError
from shardmill.models.fingerprint import digest_folder
from shardmill.run.carrying import carry_out
from shardmill.run.searchable import make_searchable
from shardmill.tasks.context import TEXT
from shardmill.testing import FakeContext, InProcessEngine
from shardmill.verbs.train.task import TrainTask
from tests.support.libraries import needed
from tests.support.training import CPU, a_model, a_network, pairs_of, topic_pairs

needed("torch")
needed("bm25s")
ROWS = topic_pairs(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("model"))


def passages(folder: Path, out: Path, write_jsonl: Callable[..., Path]) -> str:
    texts = sorted({row["passage"] for row in ROWS})
    source = write_jsonl([{"text": text} for text in texts])
    work = {"source": str(source), "text": "text", "task": "embed", "params": {"model": str(folder)}}
    carry_out(work, {"precision": "float32"}, out, engine=InProcessEngine())
    return str(out)


def test_a_negative_is_near_and_no_partner(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    from shardmill.verbs.train.group import Alone
    from shardmill.verbs.train.negatives import mine_negatives

    place = passages(folder, tmp_path / "passages", write_jsonl)
    network, pairs = a_network(folder), pairs_of(ROWS, folder)
    made = mine_negatives(pairs, make_searchable(place), digest_folder(folder)["weights"], network, Alone())
    assert made.options.columns == ("question", "passage", "negative")
    rows = made.table.to_pylist()
    right: dict[str, set[str]] = {}
    for row in ROWS:
        right.setdefault(row["question"], set()).add(row["passage"])
    vectors = {text: network.embed([("", text)])[0] for text in {r["passage"] for r in ROWS} | set(right)}
    for row in rows:
        assert row["negative"] not in right[row["question"]]
        cosines = {
            text: float(vectors[text] @ vectors[row["question"]])
            for text in {r["passage"] for r in ROWS} - right[row["question"]]
        }
        ceiling = 0.95 * max(float(vectors[text] @ vectors[row["question"]]) for text in right[row["question"]])
        below = [cosine for cosine in cosines.values() if cosine < ceiling]
        best = max(below) if below else min(cosines.values())
        assert cosines[row["negative"]] == pytest.approx(best, abs=1e-4)


def test_a_run_trains_on_them(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    place = passages(folder, tmp_path / "passages", write_jsonl)
    params = {"model": str(folder), "columns": "question,passage", "batch": 8, "hard_negatives": place}
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    work = {"source": str(source), "task": "train", "params": params}
    run = carry_out(work, {}, tmp_path / "run", engine=InProcessEngine())
    assert run.table()["trained_on"].to_pylist()[0] > 20
    assert "negatives" in run.plan.fingerprint
    assert isinstance(run, shardmill.Run)


def test_mining_says_that_it_goes_on(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    place = make_searchable(passages(folder, tmp_path / "passages", write_jsonl))
    table = pa.table(
        {"row": range(len(ROWS))} | {name: [row[name] for row in ROWS] for name in ("question", "passage")}
    )
    pq.write_table(table.append_column("why", pa.nulls(len(ROWS), pa.string())), tmp_path / "rows.parquet")
    context = FakeContext()
    task = TrainTask(model=str(folder), columns="question,passage", batch=8, hard_negatives=place)
    task.open(CPU)
    task.work({TEXT: str(tmp_path / "rows.parquet")}, context)
    assert context.reports[0] == (0, {})


def test_a_run_of_another_model_is_refused(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    from shardmill.verbs.train.group import Alone
    from shardmill.verbs.train.negatives import mine_negatives

    place = passages(folder, tmp_path / "passages", write_jsonl)
    with pytest.raises(SpecError, match="embedded by another model"):
        mine_negatives(pairs_of(ROWS, folder), make_searchable(place), "another", a_network(folder), Alone())
