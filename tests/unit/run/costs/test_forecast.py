"""Forecasts of runs, what runs leave on record, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger, RunForecast
from shardmill.models.sparse.folder import read_sparse_folder
from shardmill.plan.sizing import profile
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.profile import Measured, Rated, recall_rate, recall_rates, remember_rate, work_digest
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.costs import rates
from shardmill.run.costs.cost import read_cost
from shardmill.run.costs.forecast import make_forecast, parse_duration, parse_gpus, parse_money, rows_of
from shardmill.run.planner import make_plan
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec
from tests.support.sparse_models import write_masked
from tests.support.tiny_models import bert, write_model

Write = Callable[..., Path]
KEY = Rated("cpu", "embed abc", "auto")
RATE = Measured(1000.0, 10.0, 4000.0, 100.0, 5.0, 10_000, 1, "2026-11-15")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shardmill" / "profile.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", bert())


@pytest.fixture
def source(write_jsonl: Write) -> Path:
    return write_jsonl([{"text": "a phone that works " * (1 + i % 9)} for i in range(3000)])


def test_a_rate_is_kept_and_a_much_shorter_run_does_not_replace_it(cache: Path) -> None:
    assert recall_rate(KEY) is None
    remember_rate(KEY, RATE)
    remember_rate(KEY, replace(RATE, tokens=500, tokens_per_s=1.0))
    assert recall_rate(KEY) == RATE
    remember_rate(KEY, replace(RATE, tokens=5000, tokens_per_s=2.0))
    assert recall_rates("embed abc", "auto") == {"cpu": replace(RATE, tokens=5000, tokens_per_s=2.0)}
    assert recall_rates("embed abc", "float32") == {}


def test_a_few_slow_rows_of_an_earlier_run_cut_no_shards(write_jsonl: Write, cache: Path) -> None:
    """Ten rows that took long, as written by a version that took their rate, made thousands of shards."""
    source = write_jsonl(fake_rows(2000))
    spec = make_spec({"source": str(source), "text": "text", "task": "shardmill.testing:FakeTask"})
    devices = [Device("cpu", "cpu")]
    usual = make_plan(spec, devices)
    few = Measured(1.0, 0.1, 2.0, 10.0, 5.0, 100, 1, "2026-11-15")
    rated = rates.rated(usual, "cpu", "auto")
    remember_rate(rated, few)
    assert not cache.exists()
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"version": 1, "rates": {rated.name: asdict(few)}}))
    assert len(make_plan(spec, devices).shards) == len(usual.shards)
    remember_rate(rated, replace(few, tokens=1000))
    assert len(make_plan(spec, devices).shards) > len(usual.shards)


def test_a_rate_of_one_function_is_not_taken_for_anothers() -> None:
    slow, quick = ({"function": name} for name in ("slow", "quick"))
    assert work_digest("apply", slow, {}) != work_digest("apply", quick, {})


@pytest.mark.parametrize("broken", [{}, {"tokens_per_s": -1}, None, [1]])
def test_a_broken_record_is_none(cache: Path, broken: object) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"version": 1, "rates": {KEY.name: broken, "not json": 1}}))
    assert recall_rate(KEY) is None
    assert recall_rates("embed abc", "auto") == {}


def test_a_forecast_counts_items_and_tokens_by_a_sample(source: Path, model: Path) -> None:
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": str(model)}})
    forecast = make_forecast(spec, gpus="8xT4")
    assert forecast.work.items == pytest.approx(3000, rel=0.05)
    assert forecast.sampled_places > 8
    assert forecast.work.longest == 38
    assert forecast.asked.basis == "estimated from the data sheet"
    assert (forecast.asked.gpus, forecast.asked.device) == (8, "T4")
    found = [(o.gpus, o.device) for o in rows_of(forecast)]
    assert [n for n, device in found if device == "T4"] == [1, 2, 4, 8, 16, 24]
    assert {(8, "L4"), (8, "H200"), (1, "CPU")} <= set(found)
    assert forecast.best is None
    assert json.loads(json.dumps(forecast.to_json()))["mean_tokens"] == forecast.work.mean_tokens


def test_the_words_of_a_sparse_model_are_work(source: Path, tmp_path: Path) -> None:
    folder = write_masked(tmp_path / "masked")
    made = {
        task: make_forecast(
            make_spec({"source": str(source), "text": "text", "task": task, "params": {"model": str(folder)}}),
            gpus="CPU",
        ).asked
        for task in ("embed", "embed-sparse")
    }
    read = read_sparse_folder(folder)
    hidden = read.config["hidden_size"]
    assert read.token_weights == hidden * hidden + hidden * read.width
    assert made["embed-sparse"].items_per_s < made["embed"].items_per_s / 2
    assert made["embed-sparse"].memory_gb > made["embed"].memory_gb


def test_limits_mark_the_cheapest_or_say_what_would_do(source: Path, model: Path) -> None:
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": str(model)}})
    kept = make_forecast(spec, gpus="T4", deadline="2h", budget="5USD")
    assert kept.best is not None
    assert kept.advice == ""
    assert make_forecast(spec, gpus="T4", deadline="1s").advice == "No number of these devices is within the limits."
    dear = make_forecast(spec, gpus="T4", budget="0.00001")
    assert dear.best is None
    assert "raise the budget" in dear.advice


def test_what_was_measured_here_is_used_and_said(source: Path, model: Path) -> None:
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": str(model)}})
    plan = make_plan(spec, [Device("cpu", "cpu")])
    remember_rate(rates.rated(plan, "cpu", "auto"), RATE)
    remember_rate(rates.rated(plan, "Tesla T4", "auto"), RATE)
    forecast = make_forecast(spec, gpus="2xT4")
    assert forecast.asked.basis == "measured here on 2026-11-15"
    assert {o.device for o in forecast.options if o.basis.startswith("measured")} == {"T4", "CPU"}


def test_a_rate_of_another_cpu_is_not_taken_for_this_ones(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder may be shared, or copied, and a container may be given other cores."""
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": str(model)}})
    plan = make_plan(spec, [Device("cpu", "cpu")])
    remember_rate(rates.rated(plan, "cpu", "auto"), RATE)
    remember_rate(rates.rated(plan, "Tesla T4", "auto"), RATE)
    for name, other in (("cpu_model", "Another T4 CPU @ 3.00GHz"), ("cores", 999)):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(profile, name, lambda other=other: other)
            assert rates.known_rates(plan, "auto") == {"Tesla T4": RATE}
            assert make_forecast(spec, gpus="CPU").asked.basis == "estimated from the data sheet"
            remember_rate(rates.rated(plan, "cpu", "auto"), replace(RATE, tokens_per_s=3.0))
            assert rates.known_rates(plan, "auto")["cpu"].tokens_per_s == 3.0
        assert rates.known_rates(plan, "auto") == {"cpu": RATE, "Tesla T4": RATE}


def test_a_task_of_unknown_size_needs_a_measure_first(write_jsonl: Write) -> None:
    with pytest.raises(UsageError, match="cannot be estimated"):
        make_forecast(fake_spec(write_jsonl(fake_rows(50))), gpus="T4")


@pytest.fixture
def slow_run(write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Two runs of the same work, the second forecast by the first."""
    monkeypatch.setattr(rates, "_SHORTEST_S", 0.0)
    spec = fake_spec(write_jsonl(fake_rows(60)), params={"delay_s": 0.05})
    start(spec, tmp_path / "first", engine=InProcessEngine())
    assert Run(tmp_path / "first").cost().forecast is None
    return start(spec, tmp_path / "second", engine=InProcessEngine())


def test_a_finished_run_teaches_the_next(slow_run: Run) -> None:
    measured = recall_rate(rates.rated(slow_run.plan, "cpu", "auto"))
    assert measured is not None
    assert measured.tokens == slow_run.status().tokens
    cost = slow_run.cost(usd_per_hour=3600)
    assert cost.forecast is not None
    assert cost.off is not None
    assert cost.forecast.low_s < cost.forecast.likely_s < cost.forecast.high_s
    assert cost.usd_around == pytest.approx(cost.times.around_s)
    assert cost.usd == pytest.approx(cost.device_s + cost.usd_around)
    assert cost.usd_per_million == pytest.approx(cost.usd / 60 * 1e6)
    assert sum(w.rows for w in cost.workers) == cost.rows == 60
    parts = sum(w.start_s + w.work_s + w.idle_s + w.retried_s for w in cost.workers)
    assert parts == pytest.approx(cost.device_s)
    assert cost.retried_s == 0


def test_a_short_run_teaches_nothing(write_jsonl: Write, tmp_path: Path, cache: Path) -> None:
    start(fake_spec(write_jsonl(fake_rows(10))), tmp_path / "run", engine=InProcessEngine())
    assert not cache.exists()


def test_work_that_was_lost_is_counted_as_retried(slow_run: Run) -> None:
    ledger = slow_run.ledger
    (living, *_) = ledger.workers.read()
    dead = {**living, "id": "dead", "rows": 40, "started": 0.0, "began": 2.0, "idle_s": 3.0, "sink_wait_s": 0.0}
    dead["share"] = 0.5
    del dead["at"]
    Ledger(ledger.url, lambda: 10.0).workers.beat("dead", dead)
    (found,) = [w for w in read_cost(ledger, slow_run.plan).workers if w.worker == "dead"]
    assert (found.device_s, found.start_s, found.idle_s, found.retried_s, found.rows) == (5.0, 1.0, 1.5, 2.5, 0)


def test_the_forecast_of_a_run_goes_when_it_is_begun_anew(slow_run: Run) -> None:
    slow_run.ledger.notes.put_forecast(RunForecast(0.0, 1.0, 2.0, 3.0, 1, "another"))
    kept = slow_run.ledger.notes.forecast()
    assert kept is not None
    assert kept.basis.startswith("measured")
    slow_run.ledger.start_over(slow_run.plan)
    assert slow_run.ledger.notes.forecast() is None


def test_mixed_devices_teach_nothing_about_either(slow_run: Run) -> None:
    mixed = [Device("cuda", "NVIDIA H200"), Device("cpu", "cpu")]
    assert rates.learn(slow_run.ledger, slow_run.plan, mixed[1:], "auto", 0.0) is not None
    assert rates.learn(slow_run.ledger, slow_run.plan, mixed, "auto", 0.0) is None
    assert rates.expect(slow_run.plan, mixed[::-1], "auto", 0.0) is None


def test_devices_that_workers_share_are_counted_once() -> None:
    shared = [Device("cuda", "NVIDIA H200", visible=v, sharing=2) for v in ("0", "0", "1", "1")]
    assert rates.count_devices(shared) == 2
    assert shared[0].share == 0.5


def test_numbers_with_units() -> None:
    known = load_catalogue()
    assert parse_gpus("8xT4", known) == (8, known.named("T4"))
    assert parse_gpus("a100-80", known) == (1, known.named("A100-80"))
    assert (parse_duration("2h"), parse_duration("1h30m"), parse_duration("90 min")) == (7200, 5400, 5400)
    assert (parse_money("5USD"), parse_money("$5"), parse_money("0.5")) == (5, 5, 0.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "0xT4"), "not a number of GPUs"),
        (("--gpus", "8xT5"), "is not in the catalogue of devices"),
        (("--deadline", "soon"), "not a duration"),
        (("--deadline", "2h soon"), "not a duration"),
        (("--budget", "5EUR"), "not an amount of money"),
    ],
)
def test_wrong_limits_are_said_so(shardmill: Cli, source: Path, words: tuple[str, str], said: str) -> None:
    assert_told(shardmill("plan", source, "--text", "text", *words), 2, said)


def test_the_command_line_plans_and_counts(shardmill: Cli, slow_run: Run, source: Path, model: Path) -> None:
    asked = ("plan", source, "--text", "text", "--model", model, "--gpus", "8xT4", "--deadline", "2h")
    said = shardmill(*asked)
    assert said.status == 0, said.err
    for words in ("batch budget", "memory per GPU", "on demand", "8 x T4", "the cheapest option within the limits"):
        assert words in said.out
    assert json.loads(shardmill(*asked, "--json").out)["asked"]["gpus"] == 8
    cost = shardmill("cost", slow_run.ledger.url, "--price", 1)
    assert "device-seconds" in cost.out
    assert "the forecast was" in cost.out
    assert json.loads(shardmill("cost", slow_run.ledger.url, "--json").out)["rows"] == 60
