"""Unattended: a run that is refreshed again and again, and what people and machines see of that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SourceError, StoreError, UsageError
from shardmill.ledger import Editions, Ledger
from shardmill.run import Run
from shardmill.run.recurring import refresh_every
from shardmill.run.refreshed import Refreshed
from shardmill.watch.monitor.description import describe_run
from shardmill.watch.monitor.metrics import write_metrics
from shardmill.watch.monitor.reading import RunReader
from tests.contract.test_refresh import Rows, again, begin, is_proved, make_rows, spec_of, write
from tests.support.cli import Cli, assert_told, command
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

MADE = Refreshed("run", 2, True, 10, 12, 10, 2)
SAME = Refreshed("run", 2, False, 12, 12, 12, 0)


class Turns:
    """Refreshes on a simulated clock: each takes `took_s`, and gives or raises the next of the `outcomes`."""

    def __init__(self, *outcomes: Refreshed | Exception, took_s: float = 0.0) -> None:
        self.outcomes, self.took_s, self.now = list(outcomes), took_s, 100.0
        self.began: list[float] = []
        self.told: list[Refreshed] = []

    def refresh(self) -> Refreshed:
        self.began.append(self.now - 100)
        self.now += self.took_s
        outcome = self.outcomes.pop(0) if self.outcomes else KeyboardInterrupt()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def run(self, every_s: float) -> None:
        with pytest.raises(KeyboardInterrupt):
            refresh_every(every_s, self.refresh, self.told.append, clock=lambda: self.now, wait=self.wait)


def test_turns_are_from_beginning_to_beginning() -> None:
    turns = Turns(SAME, MADE, took_s=20)
    turns.run(60)
    assert turns.began == [0, 60, 120]


def test_a_refresh_that_takes_longer_than_its_turn_is_followed_by_one_other() -> None:
    turns = Turns(MADE, MADE, took_s=150)
    turns.run(60)
    assert turns.began == [0, 151, 302]


def test_that_nothing_changed_is_told_once() -> None:
    turns = Turns(SAME, SAME, MADE, SAME, SAME, MADE, MADE)
    turns.run(60)
    assert turns.told == [SAME, MADE, SAME, MADE, MADE]


def test_failures_are_told_and_counted_and_end_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    away = SourceError("items.jsonl is gone.", hint="Put it back.")
    turns = Turns(away, StoreError("No answer."), UsageError("Another edition was chosen."), SAME, away)
    turns.run(60)
    assert turns.began == [0, 60, 120, 180, 240, 300]
    assert turns.told == [SAME]
    said = capsys.readouterr().err
    assert "The refresh failed: items.jsonl is gone." in said
    assert "The refresh failed, 3 times in a row: Another edition was chosen." in said
    assert said.count("The next one begins in 1 min 00 s.") == 4
    assert said.count("The refresh failed: ") == 2, "it is counted from the last success"


def test_a_run_that_can_never_be_refreshed_ends_it_at_once() -> None:
    turns = Turns(UsageError("It cannot be refreshed."))
    with pytest.raises(UsageError, match="It cannot be refreshed"):
        refresh_every(60, turns.refresh, turns.told.append, clock=lambda: turns.now, wait=turns.wait)


def test_a_clock_that_runs_backwards_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(20)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, rows[1:])
    again(tmp_path / "run")
    noted = json.loads((tmp_path / "run/refreshes.json").read_text())
    future = {**noted, "made_at": noted["made_at"] + 1e6, "fresh_at": noted["fresh_at"] + 1e6}
    (tmp_path / "run/refreshes.json").write_text(json.dumps({**future, "behind_since": noted["made_at"] + 1e6}))
    write(source, rows)
    assert again(tmp_path / "run").edition == 3
    state = Ledger(Editions(tmp_path / "run").open(1)).notes.refreshes()
    assert state is not None
    assert state.behind_since is None


@contextmanager
def refreshing(run: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """`shardmill refresh RUN --every 1s` in a process of its own."""
    words = ("refresh", run, "--every", "1s", "--device", "cpu", "--workers", 1, *options)
    process = subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def put(path: Path, rows: Rows) -> None:
    """Replace a source at once: it is read at any time."""
    os.replace(write(path.with_suffix(".new"), rows), path)


def noted(run: Path) -> dict[str, Any]:
    file = run / "refreshes.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def current(run: Path) -> int:
    return Editions(run).current()


def ended(process: subprocess.Popen[str], by: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(by)
    out, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, said


def test_it_follows_a_source_until_a_signal_ends_it(tmp_path: Path) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    run = tmp_path / "run"
    begin(spec_of(source), run)
    with refreshing(run, "--json") as process:
        wait_for(lambda: noted(run).get("fresh_at"))
        first = noted(run)["fresh_at"]
        wait_for(lambda: noted(run)["fresh_at"] > first)
        assert not (run / "editions").exists(), "nothing changed, so nothing was made"
        with open(source, "a") as file:
            file.write(json.dumps({"id": "a", "text": "a", "n": 0}) + "\n")
        wait_for(lambda: current(run) == 2)
        source.rename(tmp_path / "away")
        wait_for(lambda: noted(run)["failures"] >= 2)
        assert "items.jsonl" in noted(run)["error"]
        put(source, rows[1:])
        wait_for(lambda: current(run) == 3)
        wait_for(lambda: noted(run)["edition"] == 3)
        assert (noted(run)["failures"], noted(run)["error"]) == (0, "")
        # What a refresh did is told after it was noted, and before the next one.
        third = noted(run)["fresh_at"]
        wait_for(lambda: noted(run)["fresh_at"] > third)
        status, out, said = ended(process, signal.SIGTERM)
    assert status == 75, said
    made = [json.loads(line) for line in out.splitlines()]
    assert [(line["edition"], line["items"], line["computed"]) for line in made if line["changed"]] == [
        (2, 31, 1),
        (3, 29, 0),
    ]
    assert "The refresh failed, 2 times in a row: " in said
    assert "Traceback" not in said
    assert len(is_proved(run).table()) == 29


def test_rows_that_come_while_an_edition_is_made_serve_the_next(tmp_path: Path) -> None:
    folder, run = tmp_path / "source", tmp_path / "run"
    write(folder / "a.jsonl", make_rows(30))
    spec = spec_of(folder, params={"delay_s": 0.3})
    begin(spec, run)
    put(folder / "b.jsonl", [{"id": f"b{n}", "text": f"b{n}" * 30, "n": n} for n in range(40)])
    with refreshing(run) as process:
        wait_for(lambda: (run / "editions/000002/commits").exists())
        put(folder / "c.jsonl", [{"id": f"c{n}", "text": f"c{n}", "n": n} for n in range(5)])
        wait_for(lambda: current(run) == 2)
        assert len(Run(run).table()) == 70
        wait_for(lambda: current(run) == 3)
        # A file that changes is read whole by the next edition that can.
        put(folder / "b.jsonl", [{"id": f"d{n}", "text": f"d{n}" * 30, "n": n} for n in range(40)])
        wait_for(lambda: (run / "editions/000004/commits").exists())
        put(folder / "b.jsonl", [{"id": f"e{n}", "text": f"e{n}" * 30, "n": n} for n in range(41)])
        wait_for(lambda: current(run) >= 4 and len(Run(run).table()) == 76)
        wait_for(lambda: not noted(run)["failures"])
        status, _, said = ended(process, signal.SIGTERM)
    assert status == 75
    print(said)
    is_proved(run)


def test_people_and_machines_see_editions(tmp_path: Path, shardmill: Cli) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    run = tmp_path / "runs/one"
    begin(spec_of(source), run)
    reader = RunReader("one", str(run))
    seen = reader.read()
    assert seen.status is not None
    assert seen.status.edition is None, "it was never refreshed"
    assert [line.to_json()["state"] for line in Run(run).editions()] == ["current"]
    put(source, [*rows[3:], {"id": "a", "text": "a", "n": 0}, {"id": "b", "text": "b", "n": 0}])
    again(run)
    # The third is begun, and killed before it is read.
    put(source, [*rows[5:], {"id": "a", "text": "a", "n": 0}])
    begin_next(run)

    first, second, third = json.loads(shardmill("show", run, "--editions", "--json").out)
    assert (first["edition"], first["state"], first["items"], first["computed"], first["dropped"]) == (
        *(1, "kept", 30),
        *(30, 0),
    )
    assert (second["edition"], second["state"], second["items"]) == (2, "current", 29)
    assert (second["reused"], second["computed"], second["dropped"]) == (27, 2, 3)
    assert second["base"] == 1
    assert second["kind"] == "refresh"
    assert second["seconds"] > 0
    assert second["seconds_saved"] is not None
    assert (third["edition"], third["items"]) == (3, None)
    table = shardmill("show", run, "--editions").out.splitlines()
    assert len(table) == 4
    assert table[2].split()[:2] == ["2", "current"]
    assert table[2].split()[4:8] == ["29", "27", "2", "3"]

    said = shardmill("status", run).out
    assert "edition  2, made 0 s ago, as the source was" in said or "edition  2, made " in said
    assert "next     edition 3 was begun and is planned, 0.0 % done" in said
    assert "behind   the source has been newer for" in said
    state = json.loads(shardmill("status", run, "--json").out)["edition"]
    assert (state["edition"], state["next"], state["failures"]) == (2, 3, 0)
    assert "edition 2, " in shardmill("runs", tmp_path / "runs").out
    assert "27 reused, 2 computed, 3 dropped" in shardmill("runs", tmp_path / "runs").out
    (listed,) = json.loads(shardmill("runs", tmp_path / "runs", "--json").out)
    assert (listed["edition"], listed["refreshed"]["computed"]) == (2, 2)
    shardmill("report", run, "--out", tmp_path / "report.md")
    assert "## Editions" in (tmp_path / "report.md").read_text()
    shardmill("report", run, "--out", tmp_path / "report.json")
    assert len(json.loads((tmp_path / "report.json").read_text())["editions"]) == 3

    seen = reader.read()
    assert seen.url.endswith("editions/000002"), "the monitor follows the run to its newest edition"
    assert seen.status is not None
    assert seen.status.edition is not None
    assert (seen.status.edition.edition, seen.status.edition.next) == (2, 3)
    text = write_metrics([seen], None, None, "")[0].decode()
    assert 'shardmill_run_edition{run="one"} 2.0' in text
    assert 'shardmill_run_refresh_failures{run="one"} 0.0' in text
    assert re.search(r'shardmill_run_edition_lag_seconds\{run="one"\} \d', text)
    assert describe_run(seen, seen.status.at).edition is not None

    assert again(run).edition == 3
    (run / "editions/000003/summary.json").unlink()
    line = Run(run).editions()[-1]
    assert (line.state, line.items, line.reused, line.computed, line.dropped) == ("current", 26, 26, 0, 3), (
        "without the record of a refresh its commits are added up"
    )


def begin_next(run: Path) -> None:
    """A refresh that is killed before its workers begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmill.run.refreshing.finish_run", kill)
        with pytest.raises(KeyboardInterrupt):
            again(run)


def kill(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_failing_refresh_is_seen(tmp_path: Path, shardmill: Cli) -> None:
    source = write(tmp_path / "items.jsonl", make_rows(10))
    run = tmp_path / "run"
    begin(spec_of(source), run)
    source.unlink()
    for _ in range(2):
        with pytest.raises(SourceError):
            again(run)
    with pytest.raises(SourceError):
        again(run, dry_run=True)
    said = shardmill("status", run).out
    assert "refresh  2 failures in a row, the last" in said
    assert "items.jsonl" in said


def test_two_of_them_make_one_edition(tmp_path: Path) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    run = tmp_path / "run"
    begin(spec_of(source), run)
    with refreshing(run) as one, refreshing(run) as other:
        for number in (2, 3):
            wait_for(lambda: noted(run).get("fresh_at"))
            put(source, rows[number:])
            wait_for(lambda: current(run) >= number)  # noqa: B023
        wait_for(lambda: noted(run)["edition"] == 3 and noted(run)["behind_since"] is None)
        for status, _, said in (ended(one, signal.SIGTERM), ended(other, signal.SIGINT)):
            assert status in (75, 130), said
            assert "failed" not in said
            assert "Traceback" not in said
    assert current(run) == 3
    assert len(is_proved(run).table()) == 27


def test_what_it_refuses(tmp_path: Path, shardmill: Cli, write_jsonl: Callable[..., Path]) -> None:
    run = tmp_path / "run"
    begin(spec_of(write_jsonl(make_rows(5)), limit=3), run)
    assert_told(shardmill("refresh", run, "--every", "0s"), 2, "--every: '0s' is less than a second")
    assert_told(shardmill("refresh", run, "--every", "soon"), 2, "--every: 'soon' is not a duration")
    assert_told(shardmill("refresh", run, "--every", "1s", "--dry-run"), 2, "--dry-run counts once")
    assert_told(shardmill("refresh", run, "--every", "1s"), 2, "--limit takes the first items")
    assert_told(shardmill("refresh", tmp_path / "none", "--every", "1s"), 2, "none")
    assert not (tmp_path / "none").exists()
    assert noted(run) == {}
