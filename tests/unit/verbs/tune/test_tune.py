"""The task of a study, called with a context in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, TaskError, UsageError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import make_spec
from shardmill.testing import FakeCheckpoint, FakeContext
from shardmill.verbs.tune.history import read_row
from shardmill.verbs.tune.study_file import read_study_file
from shardmill.verbs.tune.task import TuneTask
from tests.support.ledgers import a_plan
from tests.support.libraries import needed
from tests.support.objectives import STUDY, quadratic

needed("optuna")


def a_task(folder: Path, call: str = "quadratic", **changes: Any) -> TuneTask:
    name = f"tests.support.objectives:{call}"
    permission.allow([name])
    task = TuneTask(**{"space": STUDY["space"], "seed": 5, "generation": 4, "call": name, **changes})
    ledger = Ledger(folder)
    task.join(ledger, ledger.create(a_plan()))
    task.open(Device("cpu", "cpu"))
    return task


def resumed_at(step: int, files: dict[str, bytes]) -> FakeContext:
    context = FakeContext()
    context.kept = FakeCheckpoint(step, files)
    return context


def test_a_trial_tries_what_was_settled_first(tmp_path: Path) -> None:
    row = a_task(tmp_path).work({}, FakeContext(2))
    again = a_task(tmp_path, seed=6).work({}, FakeContext(2))
    tried = {name: row[name] for name in STUDY["space"]}
    assert tried == {name: again[name] for name in STUDY["space"]}
    assert row["state"] == "complete"
    assert row["value"] == quadratic(tried, None)
    assert list(row) == a_task(tmp_path).output.names


def test_metrics_are_named_by_what_the_objective_returns(tmp_path: Path) -> None:
    task = a_task(tmp_path, "two_metrics", metrics={"loss": "minimize", "speed": "maximize"})
    row = task.work({}, FakeContext(0))
    assert row["speed"] == abs(row["x"])
    with pytest.raises(TaskError, match="returned None for cost"):
        a_task(tmp_path, "two_metrics", metrics={"cost": "minimize"}).work({}, FakeContext(0))


def test_an_objective_that_raises_or_returns_nan_fails_its_trial(tmp_path: Path) -> None:
    task = a_task(tmp_path, "sometimes_broken")
    with pytest.raises(ValueError, match="no such"):
        task.work({}, FakeContext(1))
    with pytest.raises(TaskError, match="returned nan for value"):
        task.work({}, FakeContext(2))


def test_a_resumed_trial_has_the_reports_before_its_checkpoint(tmp_path: Path) -> None:
    whole = FakeContext()
    row = a_task(tmp_path, "stepwise").work({}, whole)
    reports = json.loads(row["reports"])
    value = json.dumps(3 * row["value"]).encode()
    own = json.dumps({"reports": reports[:3], "seconds": 100.0}).encode()
    half = resumed_at(2, {"value.json": value, "trial.json": own})
    resumed = a_task(tmp_path, "stepwise").work({}, half)
    assert [step for step, _ in half.reports] == [3, 4, 5]
    assert [step for step, _ in json.loads(resumed["reports"])] == list(range(6))
    assert resumed["value"] == pytest.approx(row["value"])
    assert resumed["seconds"] >= 100


def a_trial(folder: Path, goal: str, context: FakeContext, **changes: Any) -> Mapping[str, Any]:
    """The row of a trial whose objective is this code."""
    code = f"import numpy as np\n\ndef goal(parameters, context):\n    {goal}\n    return 1.0\n"
    (folder / "goal.py").write_text(code)
    work, _ = read_study_file(STUDY, {"call": f"{folder}/goal.py:goal", **changes})
    permission.allow(make_spec(work).work.code)
    task = TuneTask(**work["params"])
    ledger = Ledger(folder / "run")
    task.join(ledger, ledger.create(a_plan()))
    task.open(Device("cpu", "cpu"))
    return task.work({}, context)


def test_steps_and_figures_may_be_of_numpy(tmp_path: Path) -> None:
    goal = "[context.report(step, {'value': np.float32(0.5)}) for step in np.arange(3)]; context.keep(np.int64(2), {})"
    context = FakeContext()
    assert json.loads(a_trial(tmp_path, goal, context, pruner="median")["reports"]) == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert context.kept is not None
    assert context.kept.step == 2


@pytest.mark.parametrize("pruner", ["none", "median"])
@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ("context.report(0.3, 1)", r"report\(0\.3, 1\): the step is not a whole number"),
        ("context.report(-1, {'value': 1.0})", "the step is not a whole number"),
        ("context.report(1, 0.3)", r"report\(1, 0\.3\): the figures are not a dict"),
        ("context.report(1, {'value': 'low'})", "value is 'low' at step 1"),
        ("context.report(1, {'value': 1.0, 'note': 'x'})", "note is 'x' at step 1"),
        ("context.report(1, {'value': float('nan')})", "value is nan at step 1"),
        ("context.keep(1, {'trial.json': b'mine'})", "'trial.json' is a file of the study"),
    ],
)
def test_what_a_trial_reports_and_keeps_is_checked(pruner: str, goal: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=said):
        a_trial(tmp_path, goal, FakeContext(), pruner=pruner)


def test_figures_besides_the_metric_may_be_nan(tmp_path: Path) -> None:
    context = FakeContext()
    a_trial(tmp_path, "context.report(1, {'value': 1.0, 'other': float('nan')})", context)
    assert len(context.reports) == 1


def test_a_trial_over_its_time_is_pruned_with_its_last_report(tmp_path: Path) -> None:
    task = a_task(tmp_path, "stepwise", trial_time_limit="1h")
    own = json.dumps({"reports": [[0, 7.0]], "seconds": 3601.0}).encode()
    context = resumed_at(0, {"value.json": b"7.0", "trial.json": own})
    row = task.work({}, context)
    assert row["state"] == "pruned"
    assert [step for step, _ in context.reports] == [1]
    assert read_row(task.settings, 0, row).values == (context.reports[0][1]["value"],)
    assert "time limit" in task.notes[0]


def test_trials_that_begin_after_the_time_of_the_study_are_skipped(tmp_path: Path) -> None:
    now = [1000.0]
    task = a_task(tmp_path, time_limit="1h")
    ledger = Ledger(tmp_path, lambda: now[0])
    task.join(ledger, ledger.plan())
    assert task.work({}, FakeContext(0))["state"] == "complete"
    now[0] += 3601
    assert task.work({}, FakeContext(1))["state"] == "skipped"
    assert task.work({}, FakeContext(0))["state"] == "complete"


def test_a_function_that_nobody_allowed_is_not_imported() -> None:
    task = TuneTask(space=STUDY["space"], call="tests.support.badline:anything")
    with pytest.raises(UsageError, match=r"names code, 'tests\.support\.badline:anything'"):
        task.fingerprint()
    with pytest.raises(UsageError, match=r"names code, 'tests\.support\.badline:anything'"):
        task.open(Device("cpu", "cpu"))


def test_an_objective_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be found"):
        a_task(tmp_path, "missing")


def test_an_objective_in_a_file_of_its_own_is_sent_along(tmp_path: Path) -> None:
    file = tmp_path / "goal.py"
    file.write_text("def goal(parameters, context):\n    return 7.5\n")
    work, _ = read_study_file(STUDY, {"call": f"{file}:goal"})
    permission.allow(make_spec(work).work.code)
    file.unlink()
    task = TuneTask(**work["params"])
    ledger = Ledger(tmp_path / "run")
    task.join(ledger, ledger.create(a_plan()))
    task.open(Device("cpu", "cpu"))
    assert task.work({}, FakeContext())["value"] == 7.5


def test_a_study_names_its_code(tmp_path: Path) -> None:
    work, _ = read_study_file(STUDY, {})
    made = make_spec(work)
    assert made.work.code == (STUDY["work"]["call"],)
    assert Plan.of(made.work, a_plan().stat, {}, ()).code == made.work.code


def test_options_replace_keys_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('[work]\ncall = "a:b"\ntrials = 3\n[space]\nx = [1, 2]\n[execution]\nworkers = 2\n')
    work, execution = read_study_file(file, {"trials": 9, "call": None})
    assert work["items"] == 9
    assert work["params"] == {"call": "a:b", "space": {"x": [1, 2]}}
    assert work["wave"] == 8
    assert execution == {"workers": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[work]\ncall = 'a:b'\n[space]\nx = [1]\n", "No number of trials was given"),
        ("[work]\ncall = 'a:b'\ntrials = 0\n[space]\nx = [1]\n", "trials is 0"),
        ("[work]\ntrials = 3\n[space]\nx = [1]\n", "needs a call or a task"),
        ("[work]\ncall = 'a:b'\ntrials = 3\n", "space of the study is empty"),
        ("[work]\ncall = 'a:b'\ntrials = 3\n[space]\nx = {low = 2, high = 1}\n", "range from 2 to 1 is empty"),
        ("[work]\ncall = 'a:b'\ntrials = 3\nsede = 1\n[space]\nx = [1]\n", "has no key 'sede'"),
        ("[work]\ncall = 'a:b'\ntrials = 3\n[space]\nvalue = [1]\n", "'value' is the name of another column"),
        ("[work]\ncall = 'a:b'\ntrials = 3\ntime_limit = 'soon'\n[space]\nx = [1]\n", "time_limit"),
        ("[work]\ncall = 'a:b'\ntrials = 3\nmetrics = {loss = 'up'}\n[space]\nx = [1]\n", "metrics.loss"),
        (
            "[work]\ncall = 'a:b'\ntrials = 3\ntime_limit = '2'\n[space]\nx = [1]\n",
            "^time_limit: '2' is not a duration",
        ),
        (
            "[work]\ncall = 'a:b'\ntrials = 3\nmetrics = {}\n[space]\nx = [1]\n",
            r"(?s)^metrics is \{\}.*Write metrics = ",
        ),
        (
            "[work]\ncall = 'a:b'\ntrials = 3\nmetrics = 'loss'\n[space]\nx = [1]\n",
            "(?s)^metrics is 'loss'.*Write metrics =",
        ),
        (
            "[work]\ncall = 'a:b'\ntrials = 3\nstart = {x = 1}\n[space]\nx = [1]\n",
            "(?s)^start is .*Write a list of points",
        ),
        ("[work]\ncall = 'a:b'\ntrials = 3\nparams = {a = 1}\n[space]\nx = [1]\n", "the study has a call"),
        ("[work]\ncall = 'a:b'\ntrials = 3\nstart = [{y = 1}]\n[space]\nx = [1]\n", "(?s)start y = 1 .*Available: x"),
        ("[work]\ncall = 'a:b'\ntrials = 3\nstart = [{x = 2}]\n[space]\nx = [1]\n", "(?s)start x = 2 .*x is one of 1"),
        (
            "[work]\ncall = 'a:b'\ntrials = 5\nsampler = 'grid'\n[space]\nx = {low = 0.0, high = 0.3, step = 0.1}\n",
            "trials is 5, and the grid of this space has 4",
        ),
        ("[wrok]\n", r"unknown table \[wrok\]"),
    ],
)
def test_a_file_that_makes_no_study_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_study_file(file, {})


def test_a_task_of_a_trial_must_run_for_hours() -> None:
    with pytest.raises(SpecError, match="'augment' cannot be a trial"):
        TuneTask(space={"seed": [1, 2]}, task="augment", metrics={"loss": "minimize"})
