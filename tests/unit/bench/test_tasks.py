"""`bench tasks`: when a GPU pays, what is said and drawn, and one real run of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from shardmill.bench.machine import describe_machine
from shardmill.bench.tasks import TASKS, GpuPays, TaskSpeed, TasksResult, compare, print_tasks, save_tasks
from tests.support.answers import write_embedder
from tests.support.cli import Cli
from tests.support.services import unavailable


def measured(task: str, kind: str, start_s: float, items_per_s: float, usd_per_hour: float | None) -> TaskSpeed:
    return TaskSpeed(task, kind, f"a {kind}", 1_000, start_s, 1_000 / items_per_s, usd_per_hour, True)


@pytest.fixture
def result() -> TasksResult:
    """Embedding is sooner done by a GPU from some size on, and cheaper later; summaries never; of answers no price."""
    speeds = (
        *(measured("embed", "cpu", 10, 100, 0.36), measured("embed", "cuda", 20, 10_000, 3.6)),
        *(measured("summarize", "cpu", 10, 100, 0.36), measured("summarize", "cuda", 20, 50, 3.6)),
        *(measured("answer", "cpu", 10, 100, None), measured("answer", "cuda", 5, 200, 3.6)),
    )
    return TasksResult(describe_machine(), "a model", 1_000, speeds, compare(speeds))


def test_when_a_gpu_pays(result: TasksResult) -> None:
    """Embedding: 10 + n / 100 = 20 + n / 10,000 at 1,010 items; ten times the price an hour at 21,111."""
    assert result.pays == (
        GpuPays("embed", 1_011, 21_112),
        GpuPays("summarize", None, None),
        GpuPays("answer", 0, None),
    )
    assert compare(result.speeds[::2]) == ()


def test_the_table_says_what_it_costs_and_from_when_on_a_gpu_pays(
    result: TasksResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_tasks(result)
    said = capsys.readouterr().out
    assert "embed: a GPU is sooner done from 1,011 items on, and cheaper from 21,112 items on." in said
    assert "summarize: a GPU is sooner done never, and cheaper never." in said
    assert "$1.00" in said
    assert "unknown" in said


def test_figures_and_a_picture_are_written(result: TasksResult, tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        unavailable("matplotlib is not installed")
    figures, *pictures = save_tasks(result, tmp_path)
    assert json.loads(figures.read_text())["pays"][0] == {"task": "embed", "sooner_from": 1_011, "cheaper_from": 21_112}
    assert [path.suffix for path in pictures if path.stat().st_size] == [".png", ".svg"]


@pytest.mark.model
def test_every_task_is_run_and_verified(shardmill: Cli, tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "model")
    done = shardmill("bench", "tasks", "--items", 6, "--model", model, "--json")
    assert done.status == 0, done
    speeds = json.loads(done.out)["speeds"]
    assert [speed["task"] for speed in speeds if speed["kind"] == "cpu"] == list(TASKS)
    assert all(speed["verified"] and speed["items"] == 6 and speed["work_s"] > 0 for speed in speeds)
