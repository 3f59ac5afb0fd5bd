"""Studies as runs: each trial is a shard, and the study survives what its trials do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import StaleResume, UsageError
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.store import open_store
from shardmill.testing import InProcessEngine
from shardmill.verbs.tune.work import tune_study
from shardmill.worker import Worker
from tests.support.libraries import needed
from tests.support.objectives import quadratic
from tests.support.studies import outcomes, run_study, study_spec

needed("optuna")


def test_a_study_is_a_run_with_one_trial_per_shard(tmp_path: Path) -> None:
    run = run_study(tmp_path / "run")
    assert run.status().shards_done == 12
    study = run.study()
    assert [trial.number for trial in study.trials] == list(range(12))
    for trial in study.trials:
        assert trial.values == (quadratic(dict(trial.parameters), None),)
        assert run.ledger.trials.get(trial.number).parameters == trial.parameters
    assert study.best[0].values == min(trial.values for trial in study.trials)
    assert sum(study.importances.values()) == pytest.approx(1, abs=1e-3)
    assert run.verify().verified
    run.merge(tmp_path / "trials.parquet")
    assert pq.read_table(tmp_path / "trials.parquet").column_names == [
        *("row", "state", "value", "x", "n", "way", "reports", "seconds"),
    ]


def test_the_same_seed_gives_the_same_trials_and_another_seed_others(tmp_path: Path) -> None:
    first, again = (outcomes(run_study(tmp_path / name)) for name in ("a", "b"))
    assert first == again
    assert first != outcomes(run_study(tmp_path / "c", seed=6))


def test_a_trial_waits_for_all_trials_of_earlier_generations(tmp_path: Path) -> None:
    spec = study_spec()
    permission.allow(spec.work.code)
    ledger = Ledger(tmp_path / "run")
    plan = ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.to_settings())
    claims = [ledger.claim(f"w{i}", 12, lease_s=60.0, wave=plan.work.wave) for i in range(5)]
    assert sorted(claim.shard for claim in claims if claim is not None) == [0, 1, 2, 3]
    assert claims[4] is None
    assert not ledger.has_free(12, 4)
    for claim in claims[:3]:
        assert claim is not None
        ledger.leases.release(claim, f"w{claim.shard}")
    for claim in claims[3:4]:
        assert claim is not None
        ledger.leases.release(claim, "w3")
    assert ledger.has_free(12, 4)
    Worker(Ledger(tmp_path / "run"), device=Device("cpu", "cpu")).work()
    assert outcomes(Run(tmp_path / "run")) == outcomes(run_study(tmp_path / "other"))


def test_trials_that_fail_are_set_aside_and_the_study_goes_on(tmp_path: Path) -> None:
    study = run_study(tmp_path / "run", "sometimes_broken").study()
    states = [trial.state for trial in study.trials]
    assert states == ["complete", "failed", "failed", "complete"] * 3
    assert study.trials[1].reason == "ValueError: no such <b>model</b>"
    assert study.trials[2].reason == "The objective returned nan for value."
    assert set(study.trials[1].parameters) == {"x", "n", "way"}
    assert study.best[0].state == "complete"
    report = Run(tmp_path / "run").verify()
    assert report.verified, report


def test_pruning_knows_finished_generations_only_and_is_the_same_again(tmp_path: Path) -> None:
    pruner = {"name": "median", "n_startup_trials": 3}
    first, again = (run_study(tmp_path / n, "stepwise", pruner=pruner, trials=16) for n in "ab")
    assert outcomes(first) == outcomes(again)
    states = [trial.state for trial in first.study().trials]
    assert states[:4] == ["complete"] * 4
    assert "pruned" in states
    pruned = next(trial for trial in first.study().trials if trial.state == "pruned")
    assert pruned.values[0] == list(pruned.reports.values())[-1]


def test_several_metrics_have_several_best_trials(tmp_path: Path) -> None:
    study = run_study(tmp_path / "run", "two_metrics", metrics={"loss": "minimize", "speed": "maximize"}).study()
    assert len(study.best) > 1
    losses, speeds = zip(*(trial.values for trial in study.trials), strict=True)
    assert min(losses) in {trial.values[0] for trial in study.best}
    assert max(speeds) in {trial.values[1] for trial in study.best}


def test_more_trials_can_be_asked_for_later(tmp_path: Path) -> None:
    few = outcomes(run_study(tmp_path / "run", trials=6))
    more = outcomes(run_study(tmp_path / "run", trials=12))
    assert more[:6] == few
    assert more == outcomes(run_study(tmp_path / "at-once", trials=12))
    with pytest.raises(StaleResume, match="raised, not lowered"):
        run_study(tmp_path / "run", trials=8)


def test_a_study_may_be_in_an_object_store(s3_server: str, tmp_path: Path) -> None:
    run = run_study(f"{s3_server}/study", "stepwise", trials=6)
    assert outcomes(run) == outcomes(run_study(tmp_path / "here", "stepwise", trials=6))
    run.write_journal(f"{s3_server}/study.log")
    assert open_store(s3_server).get("study.log").count(b"\n") == 1 + 1 + 6


def test_a_study_with_another_space_does_not_resume(tmp_path: Path) -> None:
    run_study(tmp_path / "run", trials=2)
    with pytest.raises(StaleResume):
        run_study(tmp_path / "run", trials=2, seed=9)


def test_a_change_of_a_large_space_is_named_by_its_parameter(tmp_path: Path) -> None:
    space = {f"parameter_{n:02}": {"low": 0.0, "high": 1.0} for n in range(20)}
    more = {"parameter_19": {"low": 0.0, "high": 2.0}}
    study = {"work": {"call": "tests.support.objectives:always_far", "trials": 2, "generation": 4}, "space": space}

    def tune(tables: dict[str, Any]) -> Run:
        return tune_study(tables, {}, {"device": "cpu"}, tmp_path / "run", engine=InProcessEngine())

    tune(study)
    with pytest.raises(StaleResume) as caught:
        tune({**study, "space": space | more})
    assert "space.parameter_19 was {'low': 0.0, 'high': 1.0} and is {'low': 0.0, 'high': 2.0}." in caught.value.message
    assert "parameter_18" not in caught.value.message
    with pytest.raises(StaleResume) as caught:
        tune({**study, "work": {**study["work"], "generation": 8}})
    assert caught.value.message.endswith("holds a different run: generation was 4 and is None.")


def test_what_is_no_study_has_no_trials(tmp_path: Path) -> None:
    from tests.support.ledgers import a_plan

    Ledger(tmp_path).create(a_plan())
    with pytest.raises(UsageError, match="is a run of the task 'embed', not of tune"):
        Run(tmp_path).study()
