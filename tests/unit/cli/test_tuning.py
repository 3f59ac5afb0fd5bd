"""`shardmill tune` and `shardmill study`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Cli, assert_told, process
from tests.support.libraries import needed
from tests.support.studies import run_study

needed("optuna")
STUDY = """
[work]
call = "tests.support.objectives:{call}"
trials = 3
time_limit = "10h"
[space]
x = {{ low = {low}, high = 5.0 }}
n = {{ low = 1, high = 8 }}
way = ["a", "b"]
[execution]
device = "cpu"
"""


def test_a_study_runs_to_its_best_trial(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY.format(call="quadratic", low=-5.0))
    said = process("tune", tmp_path / "study.toml", "--out", tmp_path / "run")
    assert said.status == 0, said.err
    assert "3 of 3 trials ended: 3 complete." in said.err
    assert "has a time limit" in said.err
    assert said.out.startswith("best     trial ")


def test_a_study_without_any_result_fails(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY.format(call="always_broken", low=-5.0))
    said = process("tune", tmp_path / "study.toml", "--out", tmp_path / "run")
    assert said.status == 2
    assert "3 of 3 trials ended: 3 failed." in said.err
    assert "error: No trial has a result.\nSee why: shardmill show" in said.err


def test_a_study_says_why_its_last_failed_trial_failed(shardmill: Cli, tmp_path: Path) -> None:
    run_study(tmp_path / "run", "sometimes_broken", trials=6)
    said = shardmill("study", tmp_path / "run")
    assert said.status == 0
    assert "6 of 6 trials ended: 3 complete, 3 failed.\nTrial 5 failed: ValueError: no such <b>model</b>" in said.err


def test_a_study_whose_trials_were_all_pruned_says_so(tmp_path: Path) -> None:
    text = STUDY.format(call="always_far", low=-5.0)
    pruned = text.replace("[space]", "pruner = { name = 'threshold', upper = 1.0 }\n[space]")
    (tmp_path / "study.toml").write_text(pruned)
    said = process("tune", tmp_path / "study.toml", "--out", tmp_path / "run")
    assert said.status == 2
    assert "error: No trial has a result.\nAll were pruned: with another --out, loosen the pruner" in said.err


def test_failed_trials_are_listed_by_their_number_and_in_one_line_each(shardmill: Cli, tmp_path: Path) -> None:
    run_study(tmp_path / "run", "noisily_broken", trials=3)
    assert shardmill("show", tmp_path / "run", "--errors").out == "trial 1: ValueError: two\ufffdlines \ufffd[31mred\n"
    run_study(tmp_path / "other", trials=2)
    assert shardmill("show", tmp_path / "other", "--errors").err == "No trial has failed.\n"


def test_names_in_a_study_do_not_control_the_terminal(shardmill: Cli, tmp_path: Path) -> None:
    run_study(tmp_path / "run", "noisily_broken", trials=3, metrics={"a\x1b[31m\nb": "minimize"})
    said = shardmill("study", tmp_path / "run")
    assert "a\ufffd[31m\ufffdb 1" in said.out
    assert "\x1b" not in said.out


def test_an_empty_range_is_one_line(shardmill: Cli, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY.format(call="quadratic", low=6.0))
    assert_told(
        shardmill("tune", tmp_path / "study.toml", "--out", tmp_path / "run"),
        2,
        "space.x: the range from 6.0 to 5.0 is empty",
    )
    assert not (tmp_path / "run").exists()


def test_an_objective_that_is_not_there_is_one_line(shardmill: Cli, tmp_path: Path) -> None:
    (tmp_path / "goals.py").write_text("def goal(parameters, context):\n    return 1\n")
    study = tmp_path / "study.toml"
    study.write_text(f'[work]\ncall = "{tmp_path}/goals.py:other"\ntrials = 2\n[space]\nx = [1, 2]\n')
    assert_told(shardmill("tune", study, "--out", tmp_path / "run"), 2, "'goals.py:other'", "goals.py has no 'other'")
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize("file", ["missing.toml", "memory://nowhere/missing.toml"])
def test_a_study_that_is_not_there(shardmill: Cli, file: str) -> None:
    assert_told(shardmill("tune", file, "--out", "run"), 2, f"{file}: no such file")


def test_a_study_is_shown_and_exported(shardmill: Cli, tmp_path: Path) -> None:
    study = run_study(tmp_path / "run", trials=6).study()
    said = shardmill("study", tmp_path / "run", "--journal", tmp_path / "study.log")
    assert said.status == 0, said.err
    assert f"best     trial {study.best[0].number}  value {study.best[0].values[0]:.6g}" in said.out
    assert "6 trials to" in said.err
    assert len((tmp_path / "study.log").read_text().splitlines()) == 1 + 1 + 6
    whole = json.loads(shardmill("study", tmp_path / "run", "--json").out)
    assert [trial["trial"] for trial in whole["trials"]] == list(range(6))
    assert whole["best"][0]["parameters"] == dict(study.best[0].parameters)
