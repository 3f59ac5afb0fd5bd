"""`--refresh`: one command begins a run and refreshes it ever after, as a line of cron does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from shardmill.core.errors import UsageError
from shardmill.ledger import Editions, Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, prepare
from shardmill.run.request import call_verb
from tests.contract.test_refresh import Rows, again, begin, is_proved, make_rows, spec_of, write
from tests.support.cli import Cli, Said, assert_told

TASK = ("--task", "shardmill.testing:FakeTask", "--text", "text", "--id", "id")


@pytest.fixture
def line(tmp_path: Path, shardmill: Cli) -> Any:
    """The line of a cron table, with more words behind it."""

    def call(*words: object) -> Said:
        return shardmill("run", tmp_path / "items.jsonl", *TASK, "--out", tmp_path / "run", "--device", "cpu", *words)

    return call


def put(tmp_path: Path, rows: Rows) -> Path:
    return write(tmp_path / "items.jsonl", rows)


def refreshed(tmp_path: Path, source: object) -> Run:
    """The same from Python."""
    given = {"source": source, "task": TASK[1], "text": "text", "id": "id", "out": tmp_path / "run", "device": "cpu"}
    return cast(Run, call_verb("run", {**given, "refresh": True}))


def test_it_begins_refreshes_and_leaves_alone(tmp_path: Path, line: Any) -> None:
    rows = make_rows(30)
    put(tmp_path, rows)
    assert line("--refresh").status == 0
    assert Editions(tmp_path / "run").current() == 1
    put(tmp_path, [*rows[2:], {"id": "a", "text": "a new text", "n": 0}])
    second = line("--refresh")
    assert second.status == 0, second
    assert "Edition 2 has 29 items, the one before has 30: 28 reused, 1 computed" in second.err
    third = line("--refresh", "--json")
    assert "Nothing has changed: edition 2 has 29 items." in third.err
    assert json.loads(third.out)["rows"] == 29
    assert Editions(tmp_path / "run").current() == 2
    assert len(is_proved(tmp_path / "run").table()) == 29


def test_a_run_that_was_killed_is_completed_first(tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    write(tmp_path / "items/a.jsonl", make_rows(20))
    given = {"task": TASK[1], "source": [str(tmp_path / "items")], "text": "text", "id": ["id"]}
    prepare(make_spec(given, {"device": "cpu"}), tmp_path / "run")
    write(tmp_path / "items/b.jsonl", [{"id": "b", "text": "b", "n": 0}])
    run = refreshed(tmp_path, tmp_path / "items")
    assert len(run) == 21
    assert Editions(tmp_path / "run").current() == 2


def test_a_command_that_is_not_the_runs_is_told_what_differs(tmp_path: Path, line: Any) -> None:
    put(tmp_path, make_rows(10))
    assert line().status == 0
    put(tmp_path, make_rows(12))
    told = line("--refresh", "--keep", "n", "--param", "delay_s=0.5")
    assert_told(told, 2, "run was made by another command: keep was [] and is ['n']; delay_s was ")
    (tmp_path / "items.jsonl").rename(tmp_path / "others.jsonl")
    with pytest.raises(UsageError, match=r"the source was .*items\.jsonl and is .*others\.jsonl"):
        refreshed(tmp_path, tmp_path / "others.jsonl")
    assert Editions(tmp_path / "run").current() == 1


def test_what_planning_adds_is_no_difference(tmp_path: Path, shardmill: Cli) -> None:
    """The columns of a source and of a result, the format and the id are settled when a run is planned."""
    code = tmp_path / "words.py"
    code.write_text("def count(rows):\n    return [{'words': len(row['text'].split())} for row in rows]\n")
    put(tmp_path, make_rows(10))
    words = ("apply", tmp_path / "items.jsonl", "--call", f"{code}:count", "--id", "auto", "--out", tmp_path / "run")
    assert shardmill(*words, "--refresh").status == 0
    assert "Nothing has changed: edition 1 has 10 items." in shardmill(*words, "--refresh").err
    put(tmp_path, make_rows(12))
    assert "10 reused, 2 computed" in shardmill(*words, "--refresh").err
    code.write_text(code.read_text().replace("len(", "1 + len("))
    assert_told(shardmill(*words, "--refresh"), 2, "made by another command: the function words.py:count changed")
    assert Editions(tmp_path / "run").current() == 2


def test_what_could_not_be_refreshed_is_not_begun(tmp_path: Path, line: Any, shardmill: Cli) -> None:
    put(tmp_path, make_rows(10))
    assert_told(line("--refresh", "--limit", 3), 2, "could not be refreshed: --limit takes the first items")
    assert_told(line("--refresh", "--detach"), 2, "--refresh waits until the edition is complete")
    assert_told(line("--refresh", "--fresh"), 2, "Both --fresh and --refresh are given")
    assert_told(line("--refresh", "--to", "embedded:db", "--table", "t"), 2, "--to loads a table")
    groups = ("summarize", tmp_path / "items.jsonl", "--text", "text", "--group-by", "n", "--out", tmp_path / "run")
    assert_told(shardmill(*groups, "--refresh"), 2, "--refresh cannot be used with --group-by")
    assert_told(shardmill("load", tmp_path / "items.jsonl", "--refresh"), 2, "load has no option --refresh")
    assert Ledger(tmp_path / "run").find_plan() is None


def test_data_in_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a source that can be read again"):
        refreshed(tmp_path, make_rows(3))
    assert not (tmp_path / "run").exists()


def test_a_refresh_deletes_old_editions_if_it_is_told_to(
    tmp_path: Path, shardmill: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(20)
    begin(spec_of(put(tmp_path, rows)), tmp_path / "run")
    put(tmp_path, rows[1:])
    again(tmp_path / "run")
    put(tmp_path, rows[2:])
    words = ("refresh", tmp_path / "run", "--device", "cpu", "--keep-editions", 1)
    assert shardmill(*words).status == 0
    editions = Editions(tmp_path / "run")
    assert [edition.pruned for edition in editions.all()] == [False] * 3, "they were replaced within the hour"
    monkeypatch.setattr("shardmill.ledger.editions.GRACE_S", 0.0)
    assert "Nothing has changed" in shardmill(*words).err
    assert [edition.pruned for edition in editions.all()] == [True, True, False]
    assert len(is_proved(tmp_path / "run").table()) == 18
    assert_told(shardmill(*words[:-1], 0), 2, "--keep-editions")
