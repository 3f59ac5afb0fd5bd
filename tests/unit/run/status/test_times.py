"""How long a run took: one definition, and the same figures wherever they are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Ledger, RunForecast, Step
from shardmill.run import Run
from shardmill.run.costs.cost import figures, read_cost
from shardmill.run.costs.outlook import look_at
from shardmill.run.reports.account import read_account
from shardmill.run.reports.sections import headline
from shardmill.run.status.times import compare_forecast, measure_times
from shardmill.watch.monitor.description import describe_run
from shardmill.watch.monitor.reading import RunReader
from tests.support.cli import Cli, write_spec
from tests.support.corpora import fake_rows

Write = Callable[..., Path]


def worker(started: float, began: float, at: float, rows: int = 1) -> dict[str, Any]:
    return {"started": started, "began": began, "at": at, "rows": rows, "open": {}}


def test_each_moment_counts_once_and_idle_time_never() -> None:
    # Asked at 100, placed at 103; two workers load until 150 and 155; one works until 170; the drawing takes 20 s.
    workers = [worker(104, 150, 170), worker(105, 155, 165)]
    step = Step("map", "done", began_at=171.0, ended_at=191.0)
    times = measure_times(workers, [(100, 103)], [step], 1000)
    assert times.by_part() == {"prepare": 3, "start": 47, "work": 20, "finish": 20}
    assert (times.began_at, times.elapsed_s, times.around_s) == (100, 90, 23)
    # Stopped, and resumed an hour later.
    again = measure_times([*workers, worker(3702, 3710, 3720)], [(100, 103), (3700, 3701)], [step], 9000)
    assert again.by_part() == {"prepare": 4, "start": 56, "work": 30, "finish": 20}


def test_a_command_that_finds_a_complete_run_adds_nothing() -> None:
    workers = [worker(104, 150, 170)]
    once = measure_times(workers, [(100, 103)], [], 200)
    assert measure_times(workers, [(100, 103), (500, 501)], [], 600) == once


def test_runs_of_earlier_versions_count_from_their_first_worker() -> None:
    times = measure_times([worker(104, 150, 170), worker(0, 160, 180)], (), [Step("sweep", "done")], 200)
    assert times.by_part() == {"prepare": 0, "start": 46, "work": 30, "finish": 0}
    assert measure_times([], (), (), 200).began_at is None


def test_a_forecast_is_compared_with_the_start_and_the_work() -> None:
    times = measure_times([worker(104, 150, 170)], [(0, 103)], [Step("map", "done", began_at=170, ended_at=900)], 999)
    forecast = RunForecast(103, 20, 33.5, 50, 1, "measured")
    assert compare_forecast(forecast, times, "complete") == pytest.approx(-0.5)
    assert compare_forecast(forecast, times, "running") is None


def test_all_tell_the_same_time_and_the_same_difference(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    place = tmp_path / "run"
    spec = write_spec(tmp_path, write_jsonl(fake_rows(60)), params="delay_s = 0.02")
    said = shardmill("run", "--spec", spec, "--out", place)
    assert said.status == 0, said.err
    ledger = Ledger(place)
    ledger.notes.put_forecast(RunForecast(0.0, 1.0, 2.0, 3.0, 1, "made up"))
    status, cost = look_at(str(place)), read_cost(ledger, ledger.plan())
    times = status.times
    assert min(times.start_s, times.work_s) > 0
    assert cost.times == times
    assert cost.seconds == times.elapsed_s == json.loads(shardmill("status", place, "--json").out)["elapsed_s"]
    told = times.describe()
    assert f", {told}." in said.err, "the command's last line"
    assert f"time     {told}" in shardmill("status", place).out
    assert dict(figures(cost))["time"] == told
    account = read_account(ledger, ledger.plan(), status)
    assert dict(headline(account))["time"] == told.partition(" (")[0]
    seen = RunReader("run", str(place)).read()
    outlook = describe_run(seen, 0.0).outlook
    assert (outlook.elapsed_s, outlook.parts_s) == (times.elapsed_s, times.by_part())
    assert outlook.forecast_off == cost.off == account.cost.off
    # The run has a forecast of its own if an earlier one on this machine was measured.
    forecast = ledger.notes.forecast()
    assert forecast is not None
    assert cost.off == pytest.approx(forecast.likely_s / (times.start_s + times.work_s) - 1)
    assert Run(place).cost().seconds == times.elapsed_s
