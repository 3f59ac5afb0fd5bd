"""Runs of tasks that write, choose and answer, killed once at each step: nothing is lost, doubled or different."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.results import passages as building
from shardmill.run import Run
from shardmill.run.loading import load
from shardmill.run.planner import make_plan
from shardmill.testing import STEPS, TABLE_STEPS, InProcessEngine, crash_at
from shardmill.verbs.summarize.groups import start_groups
from tests.support.answers import embed_passages, passages, questions, write_embedder, write_reader
from tests.support.forker import Forker, forker
from tests.support.generative_models import write_generative
from tests.support.services import PostgresServer
from tests.support.summaries import NEWS
from tests.support.tables import place, spare_the_disk

TASKS = ["generate", "summarize", "answer"]
RUNTIME = "openvino"
SETTINGS = {
    "shard_bytes": 500,
    "lease_s": 5.0,
    "max_errors": "0",
    "max_restarts": 100,
    "precision": "float32",
    "batch_rows": 2,
    "index": "none",
}
# What a row is compared by.
COLUMNS = {"generate": ["id", "output"], "summarize": ["id", "summary", "starts"], "answer": ["id", "answer"]}


@pytest.fixture(scope="module")
def workers() -> Iterator[Forker]:
    """Each of fifty workers would compile its model with OpenVINO, for a second of work."""
    with forker(without=[RUNTIME]) as made, pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, RUNTIME, None)
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources, tiny models, and an embed run to search."""
    root = tmp_path_factory.mktemp("tasks")
    news = [{**row, "id": 10 * copy + row["id"]} for copy in range(2) for row in NEWS]
    for name, rows in (("news", news), ("passages", passages()), ("questions", questions(12))):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_embedder(root / "embedder")
    write_reader(root / "reader")
    write_generative(root / "llama")
    embed_passages(root / "passages.jsonl", root / "embedder", root / "embedded").index(graph=False)
    return root


def _spec(task: str, folder: Path, over: str = "", to: dict[str, str] | None = None) -> Spec:
    news = {"source": str(folder / "news.jsonl"), "text": "article"}
    work = {"source": str(folder / "questions.jsonl"), "text": "question"} if task == "answer" else news
    params: dict[str, Any] = {
        "generate": {"model": str(folder / "llama"), "max_tokens": 6},
        "summarize": {"model": str(folder / "embedder"), "sentences": 2},
        "answer": {"over": over or str(folder / "embedded"), "by": "words", "k": 3, "null_threshold": 1e9},
    }[task]
    if task == "answer":
        params["reader"] = str(folder / "reader")
    return make_spec({**work, "id": "id", "task": task, "params": params, **({"to": to} if to else {})}, SETTINGS)


def _place(spec: Spec, out: Path) -> str:
    ledger = Ledger(out)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.to_settings())
    return ledger.url


def _finish(run: str) -> Run:
    """Rows are compared with those of a run that nobody disturbed, so none is computed again."""
    InProcessEngine().start(run)
    opened = Run(run)
    report = opened.verify(sample=0)
    assert report.verified, report
    return opened


@pytest.fixture(scope="module")
def undisturbed(folder: Path, workers: Forker) -> dict[str, pa.Table]:
    made = {task: _finish(_place(_spec(task, folder), folder / f"undisturbed-{task}")) for task in TASKS}
    assert all(len(run.plan.shards) > 2 for run in made.values())
    return {task: run.table().select(COLUMNS[task]) for task, run in made.items()}


@pytest.mark.parametrize("task", TASKS)
def test_a_run_killed_once_at_each_step(
    task: str, folder: Path, undisturbed: dict[str, pa.Table], workers: Forker, tmp_path: Path
) -> None:
    run = _place(_spec(task, folder), tmp_path / "run")
    workers.kill_at_each(run, STEPS)
    assert _finish(run).table().select(COLUMNS[task]) == undisturbed[task]


@pytest.mark.services
@pytest.mark.parametrize("task", TASKS)
def test_a_load_of_a_table_killed_once_at_each_step(
    task: str,
    folder: Path,
    undisturbed: dict[str, pa.Table],
    workers: Forker,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    """The answers are over a table, too: the words of its full-text search find the same first passages."""
    spare_the_disk(postgres)
    url = postgres.url()
    over = _load_passages(folder, url, tmp_path) if task == "answer" else ""
    run = place(_spec(task, folder, over, {"url": url, "table": f"made_by_{task}"}), tmp_path / "run")
    workers.kill_at_each(run, TABLE_STEPS)
    _finish(run)
    found = postgres.execute(f"SELECT {', '.join(COLUMNS[task])} FROM made_by_{task}")
    wanted = [tuple(row.values()) for row in undisturbed[task].to_pylist()]
    if task == "answer":
        assert all(answer for _, answer in found)
        found, wanted = ([row[:1] for row in rows] for rows in (found, wanted))
    assert sorted(found) == sorted(wanted)


def _load_passages(folder: Path, url: str, tmp_path: Path) -> str:
    work = {"source": str(folder / "passages.jsonl"), "text": "text", "id": "id"}
    work = {**work, "params": {"model": str(folder / "embedder")}, "to": {"url": url, "table": "towns"}}
    load(work, {"precision": "float32", "index": "none"}, tmp_path / "load", engine=InProcessEngine())
    database, mark, query = url.partition("?")
    return f"{database}/towns{mark}{query}"


def test_a_kill_between_items_and_groups(folder: Path, workers: Forker, tmp_path: Path) -> None:
    """Whichever run it was in, the same call ends both."""
    work = {
        **_spec("summarize", folder).work.model_dump(mode="json", exclude={"to", "fields", "query"}),
        "group_by": "topic",
    }
    expected = start_groups(work, SETTINGS, tmp_path / "undisturbed", engine=InProcessEngine()).table()
    out = tmp_path / "run"
    for step, after in (("staged", 2), ("committing", 0)):
        ended = workers.call(f"{__name__}:summarize_groups_until", work, str(out), step, after)
        assert ended == -signal.SIGKILL
    run = start_groups(work, SETTINGS, out, engine=InProcessEngine())
    assert run.table() == expected
    assert Run(f"{out}-items").verify(sample=0).verified


def summarize_groups_until(work: dict[str, Any], out: str, step: str, after: int) -> None:
    start_groups(work, SETTINGS, out, engine=InProcessEngine(on_step=crash_at(step, after)))


def test_a_killed_index_build_costs_one_group(
    folder: Path, workers: Forker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "embedded", tmp_path / "run", ignore=shutil.ignore_patterns("final"))
    assert workers.call(f"{__name__}:index_until_the_third_group", str(tmp_path / "run")) == -signal.SIGKILL
    assert len(list((tmp_path / "run" / "final").glob("passages-*/*.arrow"))) == 2
    built: list[str] = []
    write = building.write_words

    def counted(texts: list[str], path: Path, *rules: Any) -> None:
        built.append(path.name)
        write(texts, path, *rules)

    monkeypatch.setattr(building, "write_words", counted)
    monkeypatch.setattr(building, "GROUP_ROWS", 12)
    record = Run(tmp_path / "run").index()
    assert 1 <= len(built) <= len(record.groups) - 2
    assert record.rows == len(passages())


def index_until_the_third_group(run: str) -> None:
    """Dies when that group is about to get its name."""
    rename, hook = building.os.replace, crash_at("group", 2)

    def replace(a: Any, b: Any) -> None:
        if str(b).endswith(".arrow"):
            hook("group", 0)
        rename(a, b)

    building.os.replace, building.GROUP_ROWS = replace, 12
    Run(run).index()
