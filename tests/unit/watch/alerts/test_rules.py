"""The rules on a simulated clock: when each alert is raised, and when it is cleared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardmill.run.status.edition import EditionState
from shardmill.run.status.state import Status
from shardmill.watch.alerts.file import AlertRules
from shardmill.watch.alerts.rules import NEWS_S, STEADY_S, RunMemory, SeenRun, judge
from tests.support.statuses import NOW, a_status, a_worker


class Simulated:
    """A run that is looked at every few seconds; `open` are the conditions that hold."""

    def __init__(self, **rules: Any) -> None:
        self.rules, self.now = AlertRules(**rules), NOW
        self.memory: RunMemory | None = None
        self.texts: dict[str, str] = {}

    def look(self, after_s: float = 5.0, report: dict[str, Any] | None = None, **changes: Any) -> set[str]:
        self.now += after_s
        workers = changes.pop("workers", None) or [a_beat(i, self.now) for i in range(3)]
        status: Status = a_status(**{"wanted": True, "generation": "g", "workers": workers} | changes)
        seen = SeenRun(replace(status, at=self.now), report)
        conditions, self.memory = judge(self.rules, seen, self.memory)
        self.texts = {each.key: each.text for each in conditions}
        return set(self.texts)


def a_beat(number: int, now: float, **changes: Any) -> dict[str, Any]:
    return a_worker(number, id=f"w{number}", at=now - 1, progress_at=now - 1, **changes)


COMPLETE = {"state": "complete", "wanted": False, "shards_done": 100_000, "share": 1.0}


def test_a_run_without_a_new_row_is_stalled_until_the_next_one() -> None:
    run = Simulated(stalled="10min")
    assert run.look(rows=100) == set()
    assert run.look(598, rows=100) == set()
    assert run.look(2, rows=100) == {"stalled"}
    assert "10 min 01 s; 3 live workers" in run.texts["stalled"]
    assert run.look(rows=101) == set()
    assert run.look(700, rows=101) == {"stalled"}


def test_a_run_that_nobody_wants_is_not_stalled() -> None:
    run = Simulated(stalled="10min")
    run.look(rows=100)
    assert run.look(700, rows=100, wanted=False, state="stopped") == set()
    assert run.look(5, rows=100) == set()
    assert run.look(700, rows=100, **COMPLETE) == set()


def test_what_was_still_for_long_when_it_is_first_seen_is_stalled_at_once() -> None:
    silent = [a_beat(0, NOW - 3600, live=False)]
    assert Simulated(stalled="10min").look(workers=silent) == {"stalled"}
    assert Simulated(stalled="10min").look(workers=silent, decided_at=NOW - 60) == set()


def test_an_error_rate_needs_rows_to_be_one() -> None:
    run = Simulated(error_rate="1%")
    assert run.look(rows=10, errors=5) == set()
    assert run.look(rows=10_000, errors=99) == set()
    assert run.look(rows=10_000, errors=101) == {"error_rate"}
    assert "101 of 10,000 rows failed (1.0%)" in run.texts["error_rate"]
    assert run.look(rows=20_000, errors=101) == set()


def test_a_rate_that_drops_for_a_moment_is_no_alert() -> None:
    run = Simulated(rate_drop="50%")
    usual, slow = {"tokens_per_s": 100.0, "mean_tokens_per_s": 100.0}, {"tokens_per_s": 40.0, "mean_tokens_per_s": 99.0}
    assert run.look(**usual) == run.look(**slow) == set()
    assert run.look(STEADY_S / 2, **slow) == run.look(**usual) == set()
    assert run.look(**slow) == set()
    assert run.look(STEADY_S, **slow) == {"rate_drop"}
    assert "40.0 tokens/s, 99.0 on average" in run.texts["rate_drop"]
    assert run.look(**usual) == {"rate_drop"}
    assert run.look(STEADY_S, **usual) == set()


def test_a_task_without_tokens_has_a_rate_of_rows() -> None:
    run = Simulated(rate_drop="50%")
    slow = {"tokens_per_s": 0.0, "mean_tokens_per_s": 0.0, "rows_per_s": 1.0, "mean_rows_per_s": 10.0}
    run.look(**slow)
    assert run.look(STEADY_S, **slow) == {"rate_drop"}


def test_the_end_of_a_run_ends_its_drop_at_once() -> None:
    run = Simulated(rate_drop="50%")
    slow = {"tokens_per_s": 40.0, "mean_tokens_per_s": 99.0}
    run.look(**slow)
    assert run.look(STEADY_S, **slow) == {"rate_drop"}
    assert run.look(**slow, **COMPLETE) == set()


def test_an_expected_end_past_the_deadline() -> None:
    run = Simulated(deadline=True)
    late = {"deadline_at": NOW + 4000.0, "eta_s": 5000.0}
    assert run.look(**late) == set()
    assert run.look(STEADY_S, **late) == {"deadline"}
    assert "past the deadline" in run.texts["deadline"]
    assert run.look(deadline_at=NOW + 4000.0, eta_s=None) == {"deadline"}
    assert run.look(deadline_at=NOW + 9000.0, eta_s=5000.0) == {"deadline"}
    assert run.look(STEADY_S, deadline_at=NOW + 9000.0, eta_s=5000.0) == set()
    assert run.look(STEADY_S, deadline_at=NOW, eta_s=None) == set()
    assert run.look(STEADY_S, deadline_at=NOW, eta_s=None) == {"deadline"}
    assert "the deadline was" in run.texts["deadline"]


def test_spend_past_the_budget_stays_told_after_the_end() -> None:
    run = Simulated(budget=True)
    assert run.look(budget_usd=30.0) == set()
    assert run.look(STEADY_S, budget_usd=30.0) == {"budget"}
    assert "$31 are expected" in run.texts["budget"]
    assert run.look(budget_usd=30.0, usd=30.5, usd_at_end=30.5, **COMPLETE) == {"budget"}
    assert "$30.5 are spent" in run.texts["budget"]
    assert Simulated(budget=True).look(budget_usd=1.0, usd=None) == set()


def test_workers_that_are_lost_together_are_one_alert_that_others_clear() -> None:
    run = Simulated(worker_lost=True)
    three = lambda: [a_beat(i, run.now) for i in range(3)]  # noqa: E731
    run.look(workers=three())
    gone = [a_beat(1, run.now, live=False), a_beat(2, run.now, live=False)]
    assert run.look(workers=[a_beat(0, run.now), *gone]) == {"worker_lost:w1"}
    assert run.texts["worker_lost:w1"] == "2 workers lost: w1, w2"
    assert run.look(workers=[a_beat(0, run.now), *gone, a_beat(3, run.now)]) == {"worker_lost:w1"}
    assert run.look(workers=[a_beat(0, run.now), *gone, a_beat(3, run.now), a_beat(4, run.now)]) == set()
    again = [a_beat(0, run.now), *gone, a_beat(3, run.now), a_beat(4, run.now, live=False)]
    assert run.look(workers=again) == {"worker_lost:w4"}
    assert run.look(workers=again, **COMPLETE) == set()


def test_a_worker_that_comes_back_or_ends_well_is_not_lost() -> None:
    run = Simulated(worker_lost=True)
    run.look()
    lost = [a_beat(0, run.now), a_beat(1, run.now), a_beat(2, run.now, live=False)]
    assert run.look(workers=lost) == {"worker_lost:w2"}
    assert run.look() == set()
    ended = [a_beat(0, run.now), a_beat(1, run.now, live=False, state="done")]
    assert run.look(workers=ended) == set()
    told = [a_beat(0, run.now), a_beat(2, run.now, live=False, state="stopped")]
    assert run.look(workers=told) == set()


def test_a_worker_that_was_lost_long_before_is_no_news() -> None:
    run = Simulated(worker_lost=True)
    old = a_beat(1, NOW - 2 * NEWS_S, live=False)
    assert run.look(workers=[a_beat(0, NOW), old]) == set()
    assert run.look(workers=[a_beat(0, NOW), old]) == set()


def test_the_end_of_a_run_is_told_and_its_resume_clears_it() -> None:
    run = Simulated(finished=True, verified=True)
    assert run.look() == set()
    assert run.look(**COMPLETE) == {"finished:complete"}
    assert run.look(report={"verified": True}, **COMPLETE) == {"finished:complete", "verified:True"}
    assert run.look(report={"verified": False}, **COMPLETE) == {"finished:complete", "verified:False"}
    assert run.texts["verified:False"].startswith("NOT verified")
    assert run.look() == set()
    assert run.look(state="failed", cause="CUDA is gone", wanted=False) == {"finished:failed"}
    assert run.texts["finished:failed"] == "failed: CUDA is gone"


def test_a_run_that_ended_long_ago_is_no_news_but_its_next_end_is() -> None:
    run = Simulated(finished=True, verified=True)
    old = [a_beat(0, NOW - 2 * NEWS_S, live=False, state="done")]
    assert run.look(workers=old, report={"verified": True}, **COMPLETE) == set()
    assert run.look(workers=old, report={"verified": True}, **COMPLETE) == set()
    assert run.look() == set()
    assert run.look(report={"verified": True}, **COMPLETE) == {"finished:complete", "verified:True"}


def test_a_run_that_is_started_over_is_another_one() -> None:
    run = Simulated(stalled="10min")
    run.look(rows=100)
    assert run.look(700, rows=100) == {"stalled"}
    assert run.look(rows=100, generation="h") == set()


def test_refreshes_that_fail_or_fall_behind_are_told() -> None:
    fresh = EditionState(2, NOW, NOW)
    run = Simulated(edition_age="1d", edition_lag="2h", refresh_failures=3)
    assert run.look(**COMPLETE) == set(), "it was never refreshed"
    assert run.look(**COMPLETE, edition=fresh) == set()
    failing = replace(fresh, failures=2, error="items.jsonl is gone.")
    assert run.look(**COMPLETE, edition=failing) == set()
    assert run.look(**COMPLETE, edition=replace(failing, failures=3)) == {"refresh_failures"}
    assert run.texts["refresh_failures"] == "3 refreshes failed in a row: items.jsonl is gone."
    assert run.look(7100, **COMPLETE, edition=replace(fresh, behind_since=NOW)) == set()
    assert run.look(100, **COMPLETE, edition=replace(fresh, behind_since=NOW)) == {"edition_lag"}
    assert run.look(86400, **COMPLETE, edition=fresh) == {"edition_age"}
    assert run.look(**COMPLETE, edition=replace(fresh, fresh_at=run.now)) == set()
    assert run.look(**COMPLETE, edition=replace(fresh, fresh_at=run.now + 1e6, behind_since=run.now + 1e6)) == set(), (
        "a clock ran backwards"
    )
