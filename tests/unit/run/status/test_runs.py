"""Runs as they are: listed, watched until they are deleted, with what their workers leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger, overview
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.costs.outlook import Watched
from shardmill.run.status.runs import list_runs
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows

Write = Callable[..., Path]


def a_run(tmp_path: Path, write_jsonl: Write, name: str, **execution: object) -> Run:
    rows = fake_rows(60)
    rows[7]["text"] = rows[41]["text"] = None  # type: ignore[assignment]
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    spec = make_spec(work, {"shard_bytes": 500, "max_errors": "50%", **execution})
    return start(spec, tmp_path / "runs" / name, engine=InProcessEngine())


def test_a_run_keeps_its_history_and_its_errors_by_reason(tmp_path: Path, write_jsonl: Write) -> None:
    run = a_run(tmp_path, write_jsonl, "a", deadline="2h", budget_usd=5.0)
    status = run.status()
    assert status.reasons is not None
    (reason,) = status.reasons
    assert (reason["count"], reason["file"], reason["id"]) == (2, "items.jsonl", {"id": "k7"})
    assert status.shard_states == {"waiting": 0, "running": 0, "done": status.shards, "failed": 0}
    (worker,) = status.workers
    history = run.ledger.history.read(worker["id"])
    assert history is not None
    assert sum(point.rows for point in history.points) == 60
    assert history.points[-1].memory_bytes
    assert history.points[-1].use is not None
    assert set(worker["timings"]) == {"read_s", "prepare_s", "device_s", "write_s"}
    assert status.deadline_at == pytest.approx(worker["started"] + 7200)
    assert status.budget_usd == 5.0
    assert "states" not in status.to_json()
    assert json.loads(json.dumps(status.to_json()))["eta_high_s"] == 0


def test_a_large_run_ends_with_a_last_view(tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "LARGE_SHARDS", 4)
    run = a_run(tmp_path, write_jsonl, "large")
    view = run.ledger.overview.read()
    assert view is not None
    assert view.final
    status = Run(run.ledger.url).status()
    assert (status.state, status.rows, status.errors) == ("complete", 60, 2)
    assert status.view_age_s is not None


def test_an_earlier_run_has_nothing_recorded(tmp_path: Path, write_jsonl: Write) -> None:
    run = a_run(tmp_path, write_jsonl, "old")
    folder = Path(run.ledger.url)
    shutil.rmtree(folder / "history")
    for path in (folder / "workers").iterdir():
        said = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in said.items() if k not in ("reasons", "timings", "use", "bytes")}))
    status = Run(folder).status()
    assert status.reasons is None
    assert status.bound is None
    assert run.ledger.history.read(status.workers[0]["id"]) is None


def test_all_runs_of_a_folder_are_listed(tmp_path: Path, write_jsonl: Write, shardmill: Cli) -> None:
    a_run(tmp_path, write_jsonl, "good")
    (tmp_path / "runs" / "no run").mkdir()
    (tmp_path / "runs" / "a file").write_text("")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "plan.json").write_text("{")
    said = shardmill("runs", tmp_path / "runs")
    assert said.status == 0
    head, bad, good = said.out.splitlines()
    assert head.split() == ["run", "state", "done", "rows", "rows/s", "seen"]
    assert bad.startswith("bad")
    assert "cannot be read: plan.json is damaged" in bad
    assert good.split()[:4] == ["good", "complete", "100.0%", "60"]
    assert max(len(head), len(good)) <= 80
    listed = json.loads(shardmill("runs", tmp_path / "runs", "--json").out)
    assert [(line["state"], line["rows"]) for line in listed] == [("", 0), ("complete", 60)]
    assert [line.rows for line in list_runs(str(tmp_path / "runs" / "good"))] == [60]


def test_a_folder_without_runs_is_told_in_one_line(tmp_path: Path, shardmill: Cli) -> None:
    assert_told(shardmill("runs", tmp_path), 2, "no run found here")
    assert_told(shardmill("runs", tmp_path / "nowhere"), 2, "no such folder")
    (tmp_path / "file").write_text("")
    assert_told(shardmill("runs", tmp_path / "file"), 1, "Not a directory")


def test_a_run_that_is_deleted_while_it_is_watched(tmp_path: Path, write_jsonl: Write) -> None:
    run = a_run(tmp_path, write_jsonl, "gone")
    watched = Watched(run.ledger.url)
    assert watched.status().state == "complete"
    shutil.rmtree(run.ledger.url)
    with pytest.raises(UsageError, match="was deleted while it was watched"):
        watched.status()


def test_a_run_that_is_started_over_while_it_is_watched(tmp_path: Path, write_jsonl: Write) -> None:
    run = a_run(tmp_path, write_jsonl, "again")
    watched = Watched(run.ledger.url)
    assert watched.status().shards_done
    home = Ledger(run.ledger.url)
    home.start_over(home.plan())
    assert (watched.status().state, watched.status().shards_done) == ("planned", 0)
