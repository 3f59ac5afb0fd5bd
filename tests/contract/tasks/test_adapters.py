"""Runs with an adapter: killed, resumed, proved, and equal to runs of the model that it was merged into by hand."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.libraries import needed

for _library in ("torch", "tokenizers"):
    needed(_library)

from shardmill.core.errors import ShardmillError  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import Run, prepare, resume, start  # noqa: E402
from shardmill.testing import InProcessEngine, crash_at  # noqa: E402
from tests.support.adapters import linear, same, write_adapter, write_merged  # noqa: E402
from tests.support.classifiers import write_classifier  # noqa: E402
from tests.support.forking import Forking  # noqa: E402
from tests.support.generative_models import write_generative  # noqa: E402
from tests.support.tiny_models import bert, pooling, write_model  # noqa: E402
from tests.support.waiting import PATIENCE_S  # noqa: E402

processes = Forking()

TEXTS = ["The battery died after an hour.", "Anna went to Paris in May", "rain, rain and more rain", "Yes."]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    rows = [{"id": n, "text": f"{TEXTS[n % 4]} {n}"} for n in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def spec_of(items: Path, task: str, model: Path, **params: Any) -> Any:
    work = {"source": str(items), "text": "text", "id": "id", "task": task, "params": {"model": str(model), **params}}
    return make_spec(work, {"device": "cpu", "precision": "float32", "shard_bytes": 300, "lease_s": 5.0})


def run(items: Path, out: Path, task: str, model: Path, **params: Any) -> Run:
    return start(spec_of(items, task, model, **params), out, engine=InProcessEngine())


def _embed_and_die(run: str) -> None:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(run)


def test_killed_resumed_and_proved(items: Path, tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", bert(), [pooling("mean"), ("Normalize", {}, {})], scale=2)
    modules = same(*linear(base, "query", "value", "dense"))
    adapter = write_adapter(tmp_path / "adapter", base, modules)
    out = tmp_path / "run"
    killed = prepare(spec_of(items, "embed", base, adapter=str(adapter)), out)
    child = processes.Process(target=_embed_and_die, args=(str(out),))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    assert 0 < len(killed.ledger.commits.shards()) < len(killed.plan.shards)
    write_adapter(adapter, base, modules, seed=4)
    with pytest.raises(ShardmillError, match="adapter"):
        run(items, out, "embed", base, adapter=str(adapter))
    write_adapter(adapter, base, modules)
    made = resume(out, {"engine": "local", "workers": 1})
    assert made.verify(sample="all").verified
    merged = write_merged(tmp_path / "merged", base, adapter, modules)
    vectors = [
        np.array(each.table().column("embedding").to_pylist())
        for each in (made, *(run(items, tmp_path / f"of-{m.name}", "embed", m) for m in (merged, adapter, base)))
    ]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)
    assert np.abs(vectors[0] - vectors[3]).max() > 0.01
    assert made.search(f"{TEXTS[3]} 3", k=1)[0].row == 3


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_answers_are_those_of_the_merged_model(kind: str, items: Path, tmp_path: Path) -> None:
    base = write_generative(tmp_path / "base", kind)
    modules = same(*linear(base, "_proj"))
    adapter = write_adapter(tmp_path / "adapter", base, modules, task_type="CAUSAL_LM", target_modules="all-linear")
    merged = write_merged(tmp_path / "merged", base, adapter, modules)
    given = {"max_tokens": 8}
    made = run(items, tmp_path / "run", "generate", base, adapter=str(adapter), **given)
    assert made.verify(sample=4).verified
    answers = [
        each.table().column("output").to_pylist()
        for each in (made, *(run(items, tmp_path / f"of-{m.name}", "generate", m, **given) for m in (merged, base)))
    ]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_labels_are_those_of_the_merged_model(items: Path, tmp_path: Path) -> None:
    base = write_classifier(tmp_path / "base")
    modules = same(*linear(base, "query", "value"))
    adapter = write_adapter(tmp_path / "adapter", base, modules, task_type="SEQ_CLS")
    merged = write_merged(tmp_path / "merged", base, adapter, modules)
    made = run(items, tmp_path / "run", "classify", base, adapter=str(adapter), all_labels=True)
    other = run(items, tmp_path / "of-merged", "classify", merged, all_labels=True)
    assert made.verify(sample="all").verified
    assert made.table().column("label").to_pylist() == other.table().column("label").to_pylist()
    scores = [each.table().column("score").to_numpy() for each in (made, other)]
    np.testing.assert_allclose(*scores, atol=1e-4)


def test_scores_are_those_of_the_merged_model(items: Path, tmp_path: Path) -> None:
    base = write_classifier(tmp_path / "base", labels=("relevant",))
    modules = same(*linear(base, "query", "value"))
    adapter = write_adapter(tmp_path / "adapter", base, modules, task_type="SEQ_CLS")
    merged = write_merged(tmp_path / "merged", base, adapter, modules)
    made = run(items, tmp_path / "run", "score", base, adapter=str(adapter), query_text="what about {text}?")
    other = run(items, tmp_path / "of-merged", "score", merged, query_text="what about {text}?")
    assert made.verify(sample="all").verified
    np.testing.assert_allclose(*[each.table().column("score").to_numpy() for each in (made, other)], atol=1e-4)
