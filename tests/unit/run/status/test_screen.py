"""The state of a run on a terminal of eighty columns."""

from __future__ import annotations

import pytest
from rich.console import Console

from shardmill.ledger import StaffLog
from shardmill.plan.sizing.staff import Staff
from shardmill.run.status.screen import follow, render
from shardmill.run.status.state import Status
from tests.support.statuses import NOW, a_status, a_worker


def shown(status: Status, workers: int = 40) -> list[str]:
    console = Console(width=80, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(render(status, workers))
    return captured.get().splitlines()


def test_one_screen_of_eighty_columns_says_it_all() -> None:
    lines = shown(a_status(view_age_s=70.0))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    text = "\n".join(lines)
    for part in (
        "running  40.0%",
        "40,000,000 of about 100,000,000",
        "8.0 G read, 3.0 M made",
        "58,999 waiting · 1,000 running · 40,000 done · 1 failed",
        "in 1 h 23 min (1 h 15 min to 1 h 33 min)",
        "$12.50 so far · $31.00 at the end",
        "bounded by the device",
        "1 min 10 s ago, by the workers",
        "12  'text' is null",
        "a.jsonl, shard 3, line 8",
        "61,440M  97% 100000 ",
    ):
        assert part in text, (part, text)


def test_a_deadline_and_a_budget_are_compared_with_the_end() -> None:
    late = "\n".join(shown(a_status(deadline_at=NOW + 4400, budget_usd=30.0)))
    assert " · past the deadline by 10 min 00 s" in late
    assert "budget $30.00, over by $1.00" in late
    early = "\n".join(shown(a_status(deadline_at=NOW + 8600, budget_usd=40.0)))
    assert "1 h 00 min to spare" in early
    assert "over by" not in early


def test_the_wanted_number_of_workers_is_told_with_its_reason() -> None:
    now = Staff(11, "8 would end 5 min 00 s past the deadline; 11 workers end 9 min 00 s before the deadline", NOW)
    lines = shown(a_status(deadline_at=NOW + 8600, staff=StaffLog("g", now=now)))
    at = lines.index("wanted   11 workers")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == now.reason.split("; ")


def test_a_run_that_its_budget_stopped_says_how_to_go_on() -> None:
    status = a_status(state="stopped", by="its budget", cause="$5.00 of $5.00 are spent", hint="Go on with: this")
    assert "stopped by its budget: $5.00 of $5.00 are spent" in shown(status)
    assert "Go on with: this" in shown(status)


def test_of_a_thousand_workers_the_worst_come_first() -> None:
    workers = [a_worker(i) for i in range(1000)]
    workers[700] |= {"live": False, "beat_age_s": 500.0, "rows_per_s": 77.0}
    workers[800] |= {"rows_per_s": 0.0, "open": {}}
    lines = shown(a_status(workers=workers), 5)
    at = next(i for i, line in enumerate(lines) if line.startswith("workers"))
    assert lines[at] == "workers  999 live · 1 failed or lost · the worst 5 of 1,000"
    named = [line.split()[0] for line in lines[at + 2 :]]
    assert [name.partition("-0123456789ab")[0].rpartition("-")[2] for name in named] == ["700", "800", "0", "1", "2"]
    assert " lost " in lines[at + 2]
    assert " 77 " not in lines[at + 2], "a lost worker does nothing now"


def test_hostile_texts_are_shown_as_text() -> None:
    bad = "\x1b[2Jred\x07 \u202eesrever\u202c \x00" + "x" * 1_000_000
    reasons = [{"reason": bad, "count": 1, "file": bad, "shard": 1, "line_in_shard": 2, "id": {"id": bad}}]
    lines = shown(a_status(reasons=reasons, workers=[a_worker(0, device=bad, id=bad)], placement="\x1b[31mhm"))
    assert max(map(len, lines)) <= 80
    assert all(character.isprintable() for line in lines for character in line)


def test_what_was_not_recorded_is_said_so() -> None:
    assert "reasons not recorded" in "\n".join(shown(a_status(reasons=None)))
    text = "\n".join(shown(a_status(eta_s=None, eta_low_s=None, eta_high_s=None, usd=None, bound=None)))
    assert "unknown: no worker has a pace yet" in text


def test_a_task_that_reads_no_tokens_has_no_line_of_them() -> None:
    assert any(line.startswith("tokens") for line in shown(a_status()))
    silent = a_status(tokens=0, tokens_out=0, tokens_per_s=0.0, mean_tokens_per_s=0.0)
    assert not any(line.startswith("tokens") for line in shown(silent))


def test_what_is_watched_ends_with_a_whole_line_also_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    follow(lambda: a_status(state="complete"))
    assert capsys.readouterr().out.endswith("\n")
    states = iter([a_status()])
    with pytest.raises(StopIteration):
        follow(lambda: next(states))
    assert capsys.readouterr().out.endswith("\n")


def test_a_bar_says_how_far_a_single_long_item_is() -> None:
    at = {"0": {"rows": 0, "bytes": 0, "step": 12, "figures": {"loss": 0.5, "epoch": 0.25}}}
    assert a_status(rows=0, workers=[a_worker(0, open=at)]).describe() == "step 12 · loss 0.5 · epoch 0.25"
    assert "12,000/s" in a_status(workers=[a_worker(0, open=at)]).describe()


def test_the_bar_says_what_start_up_does() -> None:
    """With its seconds; of a worker that does not say it, or nonsense, only that it loads."""
    loading = a_worker(0, state="loading")
    status = a_status(rows=0, workers=[loading])
    assert status.describe() == "loading the model"
    for doing, said in (
        (["compiling the model", status.at - 7], "compiling the model, 7 s"),
        (["trying kernels", status.at + 3], "trying kernels, 0 s"),
        (["", 0.0], "loading the model"),
        ([1, 2], "loading the model"),
        ("importing", "loading the model"),
    ):
        assert a_status(rows=0, workers=[{**loading, "doing": doing}]).describe() == said
