"""A study whose workers are killed: each trial once, with the parameters and the result it would have had anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.testing import crash_at
from shardmill.worker import Worker
from tests.support.cli import process
from tests.support.forking import LIGHT, Forking
from tests.support.libraries import needed
from tests.support.studies import outcomes, run_study, study_spec
from tests.support.waiting import PATIENCE_S

needed("optuna")
needed("cmaes")

processes = Forking((*LIGHT, "optuna", "cmaes", "tests.support.studies"))
# The time until a lease of a killed worker is free does not matter: its process is seen to be gone.
EXECUTION = {"lease_s": 5.0, "max_restarts": 1000}
# By results alone, and with notes that are made again from them.
PLAIN = {"pruner": {"name": "median", "n_startup_trials": 3}}
NOTED = {"pruner": {"name": "halving", "min_resource": 1, "reduction_factor": 2}, "sampler": "cmaes"}
# Each is reached in the first trial of a worker, at the latest as it ends.
DEATHS = [("staged", 0), ("checkpointed", 3), ("committed", 0), ("checkpointing", 2)]


def _work(run: str, call: str, death: tuple[str, int] | None) -> None:
    permission.allow([call])
    how: dict[str, Any] = {} if death is None else {"on_step": crash_at(*death)}
    Worker(Ledger(run), device=Device("cpu", "cpu"), **how).work()


@pytest.mark.parametrize(("workers", "search"), [(1, PLAIN), (3, NOTED)], ids=["plain", "noted"])
def test_a_killed_study_has_the_same_trials_whatever_the_number_of_workers(
    workers: int, search: dict[str, Any], tmp_path: Path
) -> None:
    expected = outcomes(run_study(tmp_path / "calm", "stepwise", **search))
    assert {state for _, state, *_ in expected} == {"complete", "pruned"}
    spec = study_spec("stepwise", EXECUTION, **search)
    permission.allow(spec.work.code)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.to_settings())
    killed, deaths = 0, iter([*DEATHS, *DEATHS[1:] * (workers - 1)])
    at_work: list[Any] = []
    while at_work or not ledger.is_over(12):
        while len(at_work) < workers and not ledger.is_over(12):
            process = processes.Process(target=_work, args=(ledger.url, spec.work.code[0], next(deaths, None)))
            process.start()
            at_work.append(process)
        first = at_work.pop(0)
        first.join(PATIENCE_S)
        assert first.exitcode is not None, "the worker hangs"
        killed += first.exitcode == -9
    # Nobody who lives is placed before all but those at work have died.
    assert killed >= 2 * workers
    assert outcomes(Run(ledger.url)) == expected
    assert Run(ledger.url).verify().verified


BAD = """
import os
from shardmill.core.errors import SourceError

def goal(parameters, context):
    if context.number == 1:
        {fault}
    return parameters["x"]
"""
STUDY = """
[work]
call = "{folder}/goals.py:goal"
trials = 4
generation = 2
[space]
x = {{ low = 0.0, high = 1.0 }}
[execution]
device = "cpu"
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('raise MemoryError("Unable to allocate 1 TiB")', "MemoryError: Unable to allocate 1 TiB"),
        ("os._exit(7)", "it crashed every worker that ran it"),
        ('raise SourceError("no such file")', "no such file"),
    ],
    ids=["memory", "exit", "refused"],
)
def test_a_trial_that_ends_its_worker_is_set_aside_and_the_study_goes_on(fault: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "goals.py").write_text(BAD.format(fault=fault))
    (tmp_path / "study.toml").write_text(STUDY.format(folder=tmp_path))
    told = process("tune", tmp_path / "study.toml", "--out", tmp_path / "run")
    assert told.status == 0, told.err
    assert "4 of 4 trials ended: 3 complete, 1 failed." in told.err
    assert f"Trial 1 failed: {said}" in told.err
