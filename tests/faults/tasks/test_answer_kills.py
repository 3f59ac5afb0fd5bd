"""Answer runs and index builds that are really killed, at each step: after a resume nothing is lost or doubled."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.devices import Device
from shardmill.ledger import Ledger
from shardmill.planner import make_plan
from shardmill.results import passages as building
from shardmill.run import Run
from shardmill.tables.load import load
from shardmill.testing import STEPS, InProcessEngine, crash_at
from shardmill.worker import Worker
from tests.support.answers import answer_spec, embed_passages, passages, questions, write_embedder, write_reader
from tests.support.services import PostgresServer
from tests.support.waiting import PATIENCE_S

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["shardmill.tasks.answer", "shardmill.models.pairs", "transformers.models.bert"])


def _work(run: str, step: str, after: int) -> None:
    Worker(Ledger(run), device=Device("cpu", "cpu", 1), on_step=crash_at(step, after)).work()


def _index(run: str, after: int) -> None:
    """Die while the group after the first `after` ones is renamed."""
    renamed, hook = building.os.replace, crash_at("group", after)

    def replace(a: Any, b: Any) -> None:
        if str(b).endswith(".arrow"):
            hook("group", 0)
        renamed(a, b)

    building.os.replace = replace  # type: ignore[assignment]
    building.GROUP_ROWS = 12
    Run(run).index()


def _killed(target: Callable[..., None], *args: Any) -> None:
    process = processes.Process(target=target, args=args)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reader(tmp_path_factory.mktemp("models") / "reader")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("models") / "embedder")


@pytest.fixture(scope="module")
def folder(embedder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over")
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages()))
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions()))
    embed_passages(folder / "passages.jsonl", embedder, folder / "run").index(graph=False)
    return folder


def _place(folder: Path, over: Path | str, out: Path, reader: Path) -> str:
    spec = answer_spec(folder / "questions.jsonl", over, by="words", k=3, reader=str(reader), null_threshold=1e9)
    ledger = Ledger(out)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger.url


def _finish(run: str) -> Any:
    InProcessEngine().start(run)
    opened = Run(run)
    report = opened.verify(sample=4)
    assert report.verified, report
    table = opened.table()
    assert table.column("id").to_pylist() == [row["id"] for row in questions()]
    assert table.column("passage").null_count == 0
    return table


@pytest.fixture(scope="module")
def undisturbed(folder: Path, reader: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _finish(_place(folder, folder / "run", tmp_path_factory.mktemp("undisturbed") / "run", reader))


def test_a_run_killed_once_at_each_step(folder: Path, reader: Path, undisturbed: Any, tmp_path: Path) -> None:
    run = _place(folder, folder / "run", tmp_path / "run", reader)
    for step in STEPS:
        _killed(_work, run, step, 0)
    assert _finish(run).select(["answer", "passages"]) == undisturbed.select(["answer", "passages"])


@pytest.mark.services
def test_a_worker_killed_over_a_table(
    folder: Path, embedder: Path, reader: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.url()
    work = {"source": str(folder / "passages.jsonl"), "text": "text", "id": "id", "params": {"model": str(embedder)}}
    to = {"url": url, "table": "towns"}
    settings = {"precision": "float32", "index": "none"}
    load({**work, "to": to}, settings, tmp_path / "load", engine=InProcessEngine())
    table, mark, query = url.partition("?")
    run = _place(folder, f"{table}/towns{mark}{query}", tmp_path / "run", reader)
    _killed(_work, run, "committing", 1)
    found = _finish(run)
    right = [row["passage_id"] for row in questions()]
    assert all(id in ids for id, ids in zip(right, found.column("passages").to_pylist(), strict=True))


def test_a_killed_index_build_costs_one_group(
    folder: Path, embedder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = embed_passages(folder / "passages.jsonl", embedder, tmp_path / "run")
    after = 2
    _killed(_index, run.ledger.url, after)
    assert len(list((tmp_path / "run" / "final").rglob("*.arrow"))) == after
    built: list[str] = []
    write = building.write_words
    monkeypatch.setattr(building, "write_words", lambda texts, path: (built.append(path.name), write(texts, path)))
    monkeypatch.setattr(building, "GROUP_ROWS", 12)
    record = run.index()
    assert len(built) == len(record.groups) - after
    assert record.rows == len(passages())
