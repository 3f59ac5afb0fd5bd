"""A run of each task that writes or reads texts: begun here, killed after its first commit, finished by Ray."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.api import embed
from shardmill.devices import Device
from shardmill.ledger import Ledger
from shardmill.run import prepare, resume
from shardmill.spec import make_spec
from shardmill.tables.asking import make_searchable
from shardmill.testing import crash_at
from shardmill.worker import Worker
from tests.support.generative_models import write_generative

pytestmark = [pytest.mark.services, pytest.mark.model]
processes = multiprocessing.get_context("forkserver")

ROWS = [
    {"id": f"k{i}", "text": f"Tower {i} was built by mason {i} in {1800 + i}. It is {i + 20} metres high."}
    for i in range(6)
]


def _work(run: str) -> None:
    Worker(Ledger(run), device=Device("cpu", "cpu"), on_step=crash_at("committed")).work()


def _params(task: str, source: Path, folder: Path) -> dict[str, Any]:
    if task == "generate":
        return {"model": str(write_generative(folder / "llama")), "max_tokens": 6}
    if task == "summarize":
        return {"sentences": 1}
    embed(str(source), text="text", id="id", keep="text", device="cpu", out=folder / "passages")
    return {"over": make_searchable(str(folder / "passages"))}


@pytest.mark.parametrize("task", ["generate", "summarize", "answer"])
def test_a_run_is_finished_by_ray(task: str, ray_nodes: Any, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl(ROWS)
    work = {"source": str(source), "text": "text", "id": "id", "task": task}
    settings = {"device": "cpu", "shard_bytes": 200, "max_errors": "0"}
    run = prepare(make_spec({**work, "params": _params(task, source, tmp_path)}, settings), tmp_path / "run")
    begun = processes.Process(target=_work, args=(run.ledger.url,))
    begun.start()
    begun.join(180)
    assert begun.exitcode == -9
    assert 0 < run.status().shards_done < run.status().shards
    ray = {"engine": "ray", "device": "cpu", "workers": 1}
    options = {"address": ray_nodes.address, "num_cpus": "1"}
    done = resume(run.ledger.url, {**ray, "engine_options": options})
    assert done.table().column("id").to_pylist() == [row["id"] for row in ROWS]
    assert len({commit.worker for commit in done.ledger.commits.read().values()}) > 1
    report = done.verify(sample=4)
    assert report.verified, report
