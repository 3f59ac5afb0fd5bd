"""Runs in which each item names its adapter: rows are those of runs with that adapter alone, killed and finished."""

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
from tests.support.adapters import linear, same, write_adapter  # noqa: E402
from tests.support.classifiers import write_classifier  # noqa: E402
from tests.support.forking import Forking  # noqa: E402
from tests.support.generative_models import write_generative  # noqa: E402
from tests.support.tiny_models import bert, pooling, write_model  # noqa: E402
from tests.support.waiting import PATIENCE_S  # noqa: E402

processes = Forking()

TEXTS = ["The battery died after an hour.", "Anna went to Paris in May", "rain, rain and more rain", "Yes."]
TENANTS = ["acme", "moss"]


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    rows = [{"id": n, "text": f"{TEXTS[n % 4]} {n}", "tenant": TENANTS[n % 3 == 0]} for n in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_adapters(folder: Path, base: Path, *ends: str, **settings: Any) -> str:
    """An adapter for each tenant, and a folder that is none."""
    for seed, tenant in enumerate(TENANTS, 3):
        write_adapter(folder / tenant, base, same(*linear(base, *ends)), seed=seed, **settings)
    (folder / "notes").mkdir()
    return f"{folder}/{{tenant}}"


def spec_of(items: Path, task: str, model: Path, **params: Any) -> Any:
    where = params.pop("where", "")
    work = {"source": str(items), "text": "text", "id": "id", "task": task, "params": {"model": str(model), **params}}
    how = {"device": "cpu", "precision": "float32", "shard_bytes": 400, "lease_s": 5.0, "max_errors": "9"}
    return make_spec({**work, "where": where}, how)


def run(items: Path, out: Path, task: str, model: Path, **params: Any) -> Run:
    return start(spec_of(items, task, model, **params), out, engine=InProcessEngine())


def _embed_and_die(run: str) -> None:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(run)


def test_killed_finished_elsewhere_and_proved(items: Path, tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", bert(), [pooling("mean"), ("Normalize", {}, {})], scale=2)
    adapters = write_adapters(tmp_path / "adapters", base, "query", "value", "dense")
    killed = prepare(spec_of(items, "embed", base, adapter=adapters), tmp_path / "run")
    assert len(killed.plan.fingerprint["adapters"]) == 64
    child = processes.Process(target=_embed_and_die, args=(str(tmp_path / "run"),))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    assert 0 < len(killed.ledger.commits.shards()) < len(killed.plan.shards)
    made = resume(tmp_path / "run", {"engine": "local", "workers": 1})
    assert made.verify(sample="all").verified
    rows = {row["id"]: row["embedding"] for row in made.table().to_pylist()}
    assert sorted(rows) == list(range(24))
    for tenant in TENANTS:
        alone = run(
            items,
            tmp_path / tenant,
            "embed",
            base,
            adapter=str(tmp_path / "adapters" / tenant),
            where=f"tenant = '{tenant}'",
        ).table()
        assert 0 < len(alone) < 24
        for row in alone.to_pylist():
            np.testing.assert_allclose(rows[row["id"]], row["embedding"], atol=1e-5)
    with pytest.raises(ShardmillError, match="several adapters"):
        made.search("rain", k=1)
    with pytest.raises(ShardmillError, match="cannot be migrated: each of its items"):
        made.migrate(model=str(base))
    write_adapter(tmp_path / "adapters" / "third", base, same(*linear(base, "query")))
    with pytest.raises(ShardmillError, match="adapters"):
        run(items, tmp_path / "run", "embed", base, adapter=adapters)


@pytest.mark.parametrize("task", ["classify", "score", "generate"])
def test_rows_are_those_of_each_adapter(task: str, items: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "classify": {"all_labels": True},
        "score": {"query_text": "what about {text}?"},
        "generate": {"max_tokens": 8},
    }[task]
    if task == "generate":
        base, column = write_generative(tmp_path / "base", "Llama"), "output"
        adapters = write_adapters(tmp_path / "adapters", base, "_proj", task_type="CAUSAL_LM")
    else:
        base = write_classifier(tmp_path / "base", labels=("a",) if task == "score" else ("a", "b"))
        adapters = write_adapters(tmp_path / "adapters", base, "query", "value", task_type="SEQ_CLS")
        column = "score"
    made = run(items, tmp_path / "run", task, base, adapter=adapters, **given)
    assert made.verify(sample="all").verified
    rows = {row["id"]: row[column] for row in made.table().to_pylist()}
    for tenant in TENANTS:
        folder = str(tmp_path / "adapters" / tenant)
        alone = run(items, tmp_path / tenant, task, base, adapter=folder, where=f"tenant = '{tenant}'", **given)
        for row in alone.table().to_pylist():
            assert rows[row["id"]] == (row[column] if task == "generate" else pytest.approx(row[column], abs=1e-4))


def test_windows_are_put_back_in_order(items: Path, tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", bert(), [pooling("mean")], scale=2)
    adapters = write_adapters(tmp_path / "adapters", base, "query")
    made = run(items, tmp_path / "run", "embed", base, adapter=adapters, window_tokens=6, overlap=1)
    assert made.verify(sample="all").verified
    table = made.table()
    assert table.column("id").to_pylist() == sorted(table.column("id").to_pylist())
    assert len(table) > 24


def test_an_item_without_an_adapter_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", bert(), [pooling("mean")], scale=2)
    adapters = write_adapters(tmp_path / "adapters", base, "query")
    source = tmp_path / "items.jsonl"
    tenants = ["acme", "../adapters/acme", "other", None, "", "moss", "notes"]
    source.write_text("".join(json.dumps({"id": n, "text": "rain", "tenant": t}) + "\n" for n, t in enumerate(tenants)))
    made = run(source, tmp_path / "run", "embed", base, adapter=adapters)
    assert made.verify().verified
    assert [row["embedding"] is not None for row in made.table().to_pylist()] == [
        tenant in TENANTS for tenant in tenants
    ]
    reasons = [str(each) for each in made.errors()]
    assert len(reasons) == 5
    assert all("the adapter" in why for why in reasons)


def test_what_cannot_be_is_refused(items: Path, tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", bert(), [pooling("mean")], scale=2)
    adapters = write_adapters(tmp_path / "adapters", base, "query")
    with pytest.raises(ShardmillError, match="No adapter is in"):
        run(items, tmp_path / "a", "embed", base, adapter=f"{tmp_path}/nowhere/{{tenant}}")
    with pytest.raises(ShardmillError, match="settle ranges in another way"):
        run(items, tmp_path / "b", "embed", base, adapter=adapters, dtype="int8")
    with pytest.raises(ShardmillError, match="'of'"):
        run(items, tmp_path / "c", "embed", base, adapter=f"{tmp_path}/adapters/{{of}}")
    stored = linear(base, "query")[0]
    write_adapter(tmp_path / "others/moss", base, {"encoder.layer.9.attention.self.query": stored})
    with pytest.raises(ShardmillError, match=r"moss has encoder\.layer\.9"):
        run(items, tmp_path / "d", "embed", base, adapter=f"{tmp_path}/others/{{tenant}}")
