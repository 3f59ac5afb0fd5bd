"""Answer runs and index builds that are really killed, at each step: after a resume nothing is lost or doubled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardmill.devices import Device
from shardmill.ledger import Ledger
from shardmill.planner import make_plan
from shardmill.results import passages as building
from shardmill.run import Run
from shardmill.spec import make_spec
from shardmill.tables.load import load
from shardmill.testing import STEPS, TABLE_STEPS, InProcessEngine
from tests.support.answers import (
    answer_spec,
    embed_passages,
    kill_at_each,
    passages,
    questions,
    write_embedder,
    write_reader,
)
from tests.support.services import PostgresServer
from tests.support.tables import place, spare_the_disk

# Dies when the third group is about to get its name.
INDEX = """
import sys
from shardmill.results import passages
from shardmill.run import Run
from shardmill.testing import crash_at

rename, hook = passages.os.replace, crash_at("group", 2)


def replace(a, b):
    if str(b).endswith(".arrow"):
        hook("group", 0)
    rename(a, b)


passages.os.replace, passages.GROUP_ROWS = replace, 12
Run(sys.argv[1]).index()
"""


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
    kill_at_each(run, STEPS)
    assert _finish(run).select(["answer", "passages"]) == undisturbed.select(["answer", "passages"])


@pytest.mark.services
def test_a_run_over_a_table_and_into_a_table_killed_once_at_each_of_its_steps(
    folder: Path, embedder: Path, reader: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    spare_the_disk(postgres)
    url = postgres.url()
    work = {"source": str(folder / "passages.jsonl"), "text": "text", "id": "id", "params": {"model": str(embedder)}}
    to = {"url": url, "table": "towns"}
    load({**work, "to": to}, {"precision": "float32", "index": "none"}, tmp_path / "load", engine=InProcessEngine())
    database, mark, query = url.partition("?")
    how = {"by": "words", "k": 3, "reader": str(reader), "null_threshold": 1e9}
    spec = answer_spec(folder / "questions.jsonl", f"{database}/towns{mark}{query}", **how)
    spec = spec.model_copy(
        update={
            "work": make_spec({**spec.work.model_dump(), "to": {"url": url, "table": "answers"}}).work,
            "execution": spec.execution.model_copy(update={"batch_rows": 2, "index": "none"}),
        }
    )
    run = place(spec, tmp_path / "run")
    kill_at_each(run, TABLE_STEPS)
    InProcessEngine().start(run)
    report = Run(run).verify(sample=0)
    assert report.verified, report
    found = postgres.execute("SELECT id, passages::text, answer IS NOT NULL FROM answers")
    assert sorted(row[0] for row in found) == sorted(row["id"] for row in questions())
    right = {row["id"]: row["passage_id"] for row in questions()}
    assert all(right[id] in passages and answered for id, passages, answered in found)


def test_a_killed_index_build_costs_one_group(
    folder: Path, embedder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = embed_passages(folder / "passages.jsonl", embedder, tmp_path / "run")
    killed = subprocess.run([sys.executable, "-c", INDEX, run.ledger.url])
    assert killed.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "run" / "final").rglob("*.arrow"))) == 2
    built: list[str] = []
    write = building.write_words
    monkeypatch.setattr(building, "write_words", lambda texts, path: (built.append(path.name), write(texts, path)))
    monkeypatch.setattr(building, "GROUP_ROWS", 12)
    record = run.index()
    assert len(built) == len(record.groups) - 2
    assert record.rows == len(passages())
