"""A real optuna-dashboard lists what a study left."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.run import Run
from tests.support.guard import kill_tree
from tests.support.libraries import needed
from tests.support.services import free_port
from tests.support.studies import run_study
from tests.support.waiting import wait_for

pytestmark = pytest.mark.services
needed("optuna_dashboard")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve trials, of which six fail."""
    return run_study(tmp_path_factory.mktemp("study") / "run", "sometimes_broken", metrics={"loss": "minimize"})


@pytest.fixture
def dashboard(study: Run, tmp_path: Path) -> Iterator[str]:
    journal = tmp_path / "study.log"
    study.write_journal(journal)
    port = free_port()
    program = "from optuna_dashboard._cli import main; main()"
    command = [sys.executable, "-c", program, str(journal), "--port", str(port), "--host", "127.0.0.1"]
    with open(tmp_path / "dashboard.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_tree(process)


def _ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def _answers(url: str) -> bool:
    try:
        _ask(f"{url}/api/studies")
    except OSError:
        return False
    return True


def test_the_dashboard_shows_the_study_and_its_trials(study: Run, dashboard: str) -> None:
    wait_for(lambda: _answers(dashboard))
    (listed,) = _ask(f"{dashboard}/api/studies")["study_summaries"]
    assert listed["study_name"] == Path(study.ledger.url).name
    assert listed["directions"] == ["minimize"]
    detail = _ask(f"{dashboard}/api/studies/{listed['study_id']}")
    assert detail["objective_names"] == ["loss"]
    states = [trial["state"] for trial in detail["trials"]]
    assert states == ["Complete", "Fail", "Fail", "Complete"] * 3
    ours = study.study().trials
    assert [t["values"] for t in detail["trials"] if t["state"] == "Complete"] == [
        list(trial.values) for trial in ours if trial.state == "complete"
    ]
    assert {p["name"] for p in detail["trials"][0]["params"]} == {"x", "n", "way"}
    assert detail["trials"][1]["user_attrs"][0]["value"] == "ValueError: no such <b>model</b>"


def test_a_journal_is_read_by_optuna_itself(study: Run, tmp_path: Path) -> None:
    optuna = needed("optuna")
    study.write_journal(tmp_path / "study.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log")))
    loaded = optuna.load_study(study_name=Path(study.ledger.url).name, storage=storage)
    best = study.study().best[0]
    assert (loaded.best_trial.number, loaded.best_value) == (best.number, best.values[0])
    assert loaded.best_params == dict(best.parameters)
    commit = study.ledger.commits.read()[best.number]
    assert loaded.best_trial.datetime_complete.timestamp() == pytest.approx(commit.finished_at)
    assert loaded.best_trial.duration.total_seconds() == pytest.approx(best.seconds, abs=1e-5)
