"""A run that was begun without torch is finished with it, and the other way round; both prove it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.models import installed
from shardmill.plan.spec import make_spec
from shardmill.run import Run, prepare
from shardmill.worker import Worker
from tests.support.tiny_models import CORPUS, bert, pooling, write_model

CPU = Device("cpu", "the CPU", 1)


def _without(library: str) -> pytest.MonkeyPatch:
    """As if a library were not installed."""
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, library, None)
    if library == "torch":

        def find(name: str) -> Any:
            return None if name == "torch" else importlib.util.find_spec(name)

        patch.setattr(installed, "find_spec", find)
        patch.delitem(sys.modules, library)
    return patch


@pytest.mark.parametrize("first", ["openvino", "torch"])
def test_half_of_a_run_each(first: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny", bert(vocab_size=30522), [pooling("mean"), ("Normalize", {}, {})])
    source = tmp_path / "items.jsonl"
    source.write_text("".join(json.dumps({"id": i, "text": f"{i} {text}"}) + "\n" for i, text in enumerate(CORPUS * 4)))
    work = {"source": str(source), "text": "text", "id": "id", "task": "embed", "params": {"model": str(model)}}
    run = prepare(make_spec(work, {"device": "cpu", "shard_bytes": 600}), tmp_path / "run")

    def on(library: str, *, until_committed: bool) -> None:
        patch = _without("openvino" if library == "torch" else "torch")
        try:
            worker = Worker(Ledger(run.ledger.url), device=CPU)
            if until_committed:
                worker.on_step = lambda step, shard: worker.stop() if step == "committed" else None
            worker.work()
        finally:
            patch.undo()

    on(first, until_committed=True)
    assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)
    on("torch" if first == "openvino" else "openvino", until_committed=False)
    made_by = {commit.kernel.partition(" ")[0] for commit in run.ledger.commits.read().values()}
    assert made_by == {"openvino", "torch"}
    assert run.table(["id"]).column("id").to_pylist() == list(range(len(CORPUS) * 4))
    _prove(run, "torch")
    patch = _without("torch")
    try:
        _prove(run, "NumPy")
    finally:
        patch.undo()


def _prove(run: Run, library: str) -> None:
    report = Run(run.ledger.url).verify(sample="all")
    assert report.verified, report
    said = next(check.seen for check in report.checks if check.name == "sample")
    assert f"48 of 48 rows computed again in float32 by {library} on the CPU" in said
