"""A deadline and a budget that act: what is refused before the start, and runs that stop, or follow, in their midst."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import UsageError, WorkerFailed
from shardmill.engines.local import LocalEngine
from shardmill.ledger import STOPPED, Ledger
from shardmill.plan.sizing.measured import Measured
from shardmill.plan.sizing.profile import remember_rate
from shardmill.plan.sizing.staff import Staff
from shardmill.run import resume, start
from shardmill.run.costs.rates import rated
from shardmill.run.planner import devices_for, make_plan
from tests.support.cli import Cli, assert_told, write_spec
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import wait_for

Write = Callable[..., Path]


def in_state(ledger: Ledger, state: str) -> list[str]:
    return [w["id"] for w in ledger.workers.read() if w["state"] == state]


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rates of other tests are no reason to refuse a run here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--deadline", "2020-01-01T00:00"), ("ago", "Give a later one")),
        (("--deadline", "soon"), ("not a duration",)),
        (("--budget", "5EUR"), ("not an amount of money",)),
        (("--budget", "0"), ("must be more than 0",)),
        (("--workers", "3:2", "--deadline", "6h"), ("more than",)),
        (("--workers", "1:2"), ("MIN:MAX goes with --deadline",)),
        (("--budget", "5USD", "--engine", "pool", "--device", "cuda"), ("nobody knows the price", "--price")),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    shardmill: Cli, write_jsonl: Write, tmp_path: Path, words: tuple[str, ...], told: tuple[str, ...]
) -> None:
    spec = write_spec(tmp_path, write_jsonl(fake_rows(20)))
    assert_told(shardmill("run", "--spec", spec, "--out", tmp_path / "run", *words), 2, *told)
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"deadline": "2s"}, r"at best .*"),
        ({"budget_usd": 50.0, "usd_per_hour": 3600.0}, r"what is left costs"),
        ({"budget_usd": 0.001, "usd_per_hour": 3600.0}, r"the first shard costs more"),
    ],
)
def test_what_was_measured_to_be_impossible_is_refused_with_what_would_do(
    write_jsonl: Write, tmp_path: Path, limits: dict[str, Any], told: str
) -> None:
    spec = fake_spec(write_jsonl(fake_rows(200)), device="cpu", workers=1, **limits)
    devices = devices_for(spec)
    plan = make_plan(spec, devices)
    slow = Measured(10.0, 10.0, plan.weight_bytes / 100, 1.0, 0.5, 10_000, 1, "2026-11-19")
    remember_rate(rated(plan, devices[0].name, spec.execution.precision), slow)
    with pytest.raises(UsageError, match=told) as refused:
        start(spec, tmp_path / "run")
    assert refused.value.hint
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_run_stops_before_its_budget_is_spent_and_is_resumed(write_jsonl: Write, tmp_path: Path) -> None:
    """Everything that was begun is committed; the same run without limits has the same plan."""
    params = {"delay_s": 0.3}
    source = write_jsonl(fake_rows(1500))
    spec = fake_spec(source, params=params, device="cpu", workers=1, budget_usd=5.0, usd_per_hour=3600.0)
    with pytest.raises(WorkerFailed, match=r"stopped by its budget: .* of \$5\.00 are spent") as stopped:
        start(spec, tmp_path / "run")
    assert "--budget 10USD" in stopped.value.hint
    ledger = Ledger(tmp_path / "run")
    plan = ledger.plan()
    assert ledger.state.look().state == STOPPED
    assert ledger.leases.read() == {}
    assert plan.id == make_plan(fake_spec(source, params=params, device="cpu"), devices_for(spec)).id
    assert isinstance(ledger.state.refusal(), WorkerFailed)
    done = resume(tmp_path / "run", {"budget_usd": 1e9})
    assert done.status().state == "complete"
    assert done.table().num_rows == 1500
    log = done.ledger.staff.look()
    assert log is not None
    assert any("are spent" in each["reason"] for each in log.past)
    assert done.status().staff == log


def test_local_workers_follow_the_number_that_is_wanted(write_jsonl: Write, tmp_path: Path) -> None:
    """A worker too many gives back what it holds, and its seat is filled again once more are wanted."""
    source = write_jsonl(fake_rows(20_000))
    spec = fake_spec(source, params={"delay_s": 0.3}, device="cpu", workers=2, deadline="6h")
    spec = spec.model_copy(update={"execution": spec.execution.model_copy(update={"acts": True})})
    ledger, devices = Ledger(tmp_path / "run"), devices_for(spec)
    ledger.create(make_plan(spec, devices))
    ledger.put_execution(spec.execution.to_settings())

    def want(number: int) -> None:
        # Somebody has the duty, so the workers decide nothing.
        ledger.staff.decide("test", 3600.0, lambda before: Staff(number, f"{number} will do", float(number)))

    want(2)
    placement = LocalEngine(devices).start(ledger.url)
    try:
        wait_for(lambda: placement.poll() and len(in_state(ledger, "working")) == 2)
        want(1)
        wait_for(lambda: placement.poll() and in_state(ledger, "stopped"))
        assert len(in_state(ledger, "working")) == 1
        want(2)
        wait_for(lambda: placement.poll() and len(in_state(ledger, "working")) == 2)
    finally:
        placement.stop()
    assert len(ledger.workers.read()) == 3
    assert ledger.leases.read() == {}
