"""A file that grows all the time: a refresh reads the whole lines that were added, and nothing before them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SourceError, SpecError, StaleResume
from shardmill.run import Run
from shardmill.run.refreshing import refresh
from shardmill.sources import files, open_source
from shardmill.sources.base import Fields, Shard
from shardmill.sources.lines import LineSource
from shardmill.testing import InProcessEngine
from tests.contract.test_refresh import again, begin, is_as_fresh, make_rows, rows_stay, spec_of, write
from tests.support.cli import Cli

__all__ = ["rows_stay"]


def add(path: Path, rows: list[dict[str, Any]], rest: str = "") -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows) + rest)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    add(tmp_path / "log.jsonl", make_rows(60))
    return tmp_path / "log.jsonl"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pieces of the file that were read."""
    pieces: list[tuple[int, int]] = []
    read_piece = LineSource.read_piece

    def noted(self: LineSource, shard: Shard) -> Any:
        pieces.append((shard.start, shard.stop))
        return read_piece(self, shard)

    monkeypatch.setattr(LineSource, "read_piece", noted)
    return pieces


def test_what_was_added_is_read(log: Path, read: list[tuple[int, int]], tmp_path: Path) -> None:
    rows = make_rows(90)
    add(log, [], json.dumps(rows[60])[:20])
    run = begin(spec_of(log, follow=True), tmp_path / "run")
    assert len(run.table()) == 60, "half a line is read once it is whole"
    assert not again(tmp_path / "run").changed
    add(log, [], json.dumps(rows[60])[20:] + "\n")
    before = len(run.plan.shards)
    for first, last in ((61, 75), (75, 90)):
        add(log, rows[first:last], '{"id":')
        read.clear()
        done = again(tmp_path / "run")
        assert done.items == last
        assert done.computed == last - (60 if first == 61 else 75)
        begun = sum(len(json.dumps(row)) + 1 for row in rows[:60])
        # Of what was there, no more than the last shards, which are small together.
        assert min(start for start, _ in read) > begun - 1200, read
        log.write_bytes(log.read_bytes().removesuffix(b'{"id":'))
    assert len(Run(tmp_path / "run").plan.shards) > before
    is_as_fresh(tmp_path / "run", spec_of(log), tmp_path / "fresh")


def test_it_may_grow_while_it_is_read(log: Path, tmp_path: Path) -> None:
    """And it is verified up to where it was read."""
    seen = []

    def grow(step: str, shard: int) -> None:
        if step == "committed" and not seen:
            seen.append(shard)
            add(log, make_rows(70)[60:])

    begin(spec_of(log, follow=True), tmp_path / "run")
    add(log, [{"id": "new", "text": "a new text", "n": 0}])
    done = refresh(tmp_path / "run", engine=InProcessEngine(on_step=grow))
    assert (seen != [], done.items) == (True, 61)
    assert Run(tmp_path / "run").verify(report=False).verified
    assert again(tmp_path / "run").items == 71


@pytest.mark.parametrize("how", ["edited", "shorter", "another"])
def test_one_that_did_not_only_grow_is_read_again(how: str, log: Path, tmp_path: Path) -> None:
    plan = begin(spec_of(log, follow=True), tmp_path / "run").plan
    rows = make_rows(61)
    if how == "edited":
        rows[0]["text"] = "another text"
    elif how == "shorter":
        del rows[40:]
    else:
        log.rename(tmp_path / "log.jsonl.1")
        rows = [{**row, "id": f"new {row['id']}"} for row in rows]
    write(log, rows)
    with pytest.raises(StaleResume):
        list(open_source(plan.stat, Fields.of(plan.work)).read(plan.shards[0]))
    again(tmp_path / "run")
    is_as_fresh(tmp_path / "run", spec_of(log), tmp_path / "fresh")


def test_a_run_that_did_not_follow_can_begin_to(log: Path, tmp_path: Path) -> None:
    begin(spec_of(log), tmp_path / "run")
    for count in (61, 62):
        add(log, make_rows(count)[-1:], "{")
        done = again(tmp_path / "run", telling={"follow": True})
        assert (done.items, done.computed) == (count, 1)
        log.write_bytes(log.read_bytes().removesuffix(b"{"))
    assert Run(tmp_path / "run").plan.stat.files[0].tag == files.GROWS


def test_from_the_command_line(log: Path, tmp_path: Path, shardmill: Cli) -> None:
    begin(spec_of(log), tmp_path / "run")
    add(log, make_rows(62)[60:], '{"id"')
    said = shardmill("refresh", tmp_path / "run", "--follow", "--device", "cpu", "--allow-code")
    assert "Edition 2 has 62 items, the one before has 60: 60 reused, 2 computed" in said.err, said


def test_what_cannot_be_followed(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,text,n\nk1,a text,1\n")
    with pytest.raises(SourceError, match="for lines"):
        begin(spec_of(tmp_path / "rows.csv", follow=True), tmp_path / "run")
    with pytest.raises(SpecError, match="follow is for files"):
        spec_of("rows.db", follow=True, query="SELECT * FROM r")
