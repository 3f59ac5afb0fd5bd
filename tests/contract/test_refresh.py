"""A refreshed run is what a fresh one would be, whatever happened to its source, and computes only what it must."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardmill
from shardmill.core.errors import (
    EditionPruned,
    NotComplete,
    Preempted,
    ShardmillError,
    SourceError,
    StaleResume,
    UsageError,
)
from shardmill.ledger import Editions, Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, refreshing, resume, start
from shardmill.run.pruning import prune
from shardmill.run.refreshed import Refreshed
from shardmill.run.refreshing import refresh
from shardmill.sinks.parquet import read_borrowed
from shardmill.store import LocalStore, open_store
from shardmill.store.recipes import PartName
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told
from tests.support.corpora import SHOUTING, Precise, fake_rows, fake_spec

Rows = list[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_rows(count: int) -> Rows:
    return [{**row, "n": n} for n, row in enumerate(fake_rows(count))]


def spec_of(source: Path | str, *, params: dict[str, Any] | None = None, **work: Any) -> Spec:
    base = fake_spec(source, params=params).work.model_dump(exclude_unset=True)
    return make_spec({**base, "keep": "n", **work}, {"shard_bytes": 600, "max_errors": "100%", "lease_s": 2.0})


def begin(spec: Spec, out: Path | str) -> Run:
    return start(spec, out, engine=InProcessEngine())


def again(out: Path | str, **how: Any) -> Refreshed:
    return refresh(out, engine=InProcessEngine(), **how)


def is_proved(out: Path | str) -> Run:
    run = Run(out)
    report = run.verify(report=False)
    assert report.verified, [check for check in report.checks if not check.ok]
    return run


@pytest.fixture(autouse=True)
def rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also few rows stay where they are, as those of large shards do."""
    monkeypatch.setattr("shardmill.sinks.earlier._FEWEST_BYTES", 0)


def borrowed_by(editions: Editions, number: int) -> list[PartName]:
    ledger = Ledger(editions.open(number))
    return [part for commit in ledger.commits.read().values() for part in read_borrowed(ledger.store, commit)]


def is_as_fresh(out: Path, spec: Spec, folder: Path) -> Run:
    run = is_proved(out)
    assert run.table().equals(begin(spec, folder).table())
    return run


def test_only_what_is_new_or_changed_is_computed(tmp_path: Path) -> None:
    rows = make_rows(100)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    rows[40]["text"] = "another text"
    rows[50]["n"] = -1
    del rows[60:70]
    rows.insert(3, {"id": "new", "text": "a new text", "n": 3})
    write(source, rows)

    would = again(tmp_path / "run", dry_run=True)
    assert (would.items_before, would.items, would.reused, would.computed) == (100, 91, 89, 2)
    assert Editions(tmp_path / "run").current() == 1
    assert not (tmp_path / "run/editions").exists()
    done = again(tmp_path / "run")
    assert (done.edition, done.items_before, done.items, done.reused, done.computed) == (2, 100, 91, 89, 2)
    run = is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")
    assert run.table(["n"]).column("n").to_pylist()[51] == -1, "a kept column changes without computing"
    assert not again(tmp_path / "run").changed, "nothing has changed since"
    assert sum(commit.reused for commit in run.ledger.commits.read_complete(run.plan)) == 89


EDITS = ("append", "insert", "edit", "delete", "keep", "reorder", "rename", "split", "join")


@given(
    edits=st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 10**6)), min_size=1, max_size=8),
    reads_all=st.booleans(),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_edits_it_is_as_a_fresh_run(
    edits: list[tuple[str, int]],
    reads_all: bool,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", 10**18 if reads_all else 0)
    folder = tmp_path_factory.mktemp("edits")
    files: dict[str, Rows] = {"a.jsonl": make_rows(40), "b.jsonl": [{**r, "id": f"b{r['id']}"} for r in make_rows(9)]}
    write_all(folder / "source", files)
    spec = spec_of(folder / "source")
    begin(spec, folder / "run")
    for number, (edit, at) in enumerate(edits):
        change(files, edit, at, number)
        write_all(folder / "source", files)
        if number % 3 == 0:
            again(folder / "run", allow_shrink=True)
    again(folder / "run", allow_shrink=True)
    is_as_fresh(folder / "run", spec, folder / "fresh")


def write_all(folder: Path, files: dict[str, Rows]) -> None:
    """A file that stays as it is is not touched, and one that has another name alone is renamed."""
    there = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*")}
    for name, rows in there.items():
        if files.get(name) != rows:
            other = next((new for new in files if files[new] == rows and not (folder / new).exists()), "")
            (folder / name).rename(folder / other) if other else (folder / name).unlink()
    for name, rows in files.items():
        if not (folder / name).exists():
            write(folder / name, rows)


def change(files: dict[str, Rows], edit: str, at: int, number: int) -> None:
    """One edit of the files of a source."""
    name = sorted(files)[at % len(files)]
    rows = files[name]
    place = at % max(1, len(rows))
    new = {"id": f"new {number}", "text": f"new text {at % 5}", "n": number}
    if edit == "append":
        rows.append(new)
    elif edit == "insert" or len(rows) < 3:
        rows.insert(place, new)
    elif edit == "edit":
        rows[place] = {**rows[place], "text": f"edited {at % 7}"}
    elif edit == "keep":
        rows[place] = {**rows[place], "n": at}
    elif edit == "delete":
        del rows[place]
    elif edit == "reorder":
        rows.reverse()
    elif edit == "rename":
        files[f"renamed {number}.jsonl"] = files.pop(name)
    elif edit == "split":
        files[f"split {number}.jsonl"] = rows[place:]
        files[name] = rows[:place] or [new]
    elif len(files) > 1:
        rest = files.pop(name)
        files[min(files)] += rest


SHAPES: dict[str, dict[str, Any]] = {
    "windows": {"params": {"window": 8}},
    "mean": {"params": {"window": 8, "mean": True}},
    "texts": {"task": SHOUTING},
    "part": {"where": "n < 70"},
    "share": {"take": 0.5},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_every_shape_are_taken_over(shape: str, tmp_path: Path) -> None:
    rows = make_rows(80)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source, **SHAPES[shape])
    begin(spec, tmp_path / "run")
    rows[10]["text"] = "x" * 50
    rows.insert(0, {"id": "first", "text": "the first", "n": 1})
    del rows[30]
    write(source, rows)
    assert again(tmp_path / "run").computed <= 2
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_items_with_several_rows_or_none(tmp_path: Path, shardmill: Cli) -> None:
    """A function gives an item as many rows as it likes."""
    code = tmp_path / "cut.py"
    code.write_text(
        "def words(rows):\n    return [[{'word': w} for w in row['text'].split() if w != 'text'] for row in rows]\n"
    )
    rows = make_rows(60)
    rows[5]["text"] = "text"
    source = write(tmp_path / "items.jsonl", rows)

    def apply(out: Path) -> None:
        how = ("--call", f"{code}:words", "--id", "id", "--keep", "n", "--out", out, "--device", "cpu")
        said = shardmill("apply", source, *how)
        assert said.status == 0, said

    apply(tmp_path / "run")
    rows[10]["text"] = "some more words"
    rows.insert(0, {"id": "first", "text": "the first", "n": 1})
    write(source, rows)
    said = shardmill("refresh", tmp_path / "run", "--allow-code", "--device", "cpu", "--json")
    assert said.status == 0, said
    assert json.loads(said.out)["computed"] == 2
    apply(tmp_path / "fresh")
    assert is_proved(tmp_path / "run").table().equals(Run(tmp_path / "fresh").table())


def test_rows_that_failed_are_tried_again(tmp_path: Path) -> None:
    rows = make_rows(20)
    rows[4]["text"] = None
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    rows.append({"id": "new", "text": "new", "n": 0})
    write(source, rows)
    done = again(tmp_path / "run")
    assert (done.reused, done.computed, done.errors) == (19, 2, 1)
    assert "2 computed, 1 failed" in done.describe()
    assert [record["row_in_shard"] for record in Run(tmp_path / "run").errors()] == [4]


def test_repeated_texts_are_all_there(tmp_path: Path) -> None:
    rows = [{"id": f"k{n}", "text": f"text {n % 3}", "n": n} for n in range(30)]
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    write(source, [*rows[5:], {"id": "more", "text": "text 1", "n": 9}])
    assert again(tmp_path / "run").computed == 0
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


@pytest.mark.services
def test_a_run_in_a_bucket(s3_server: str, tmp_path: Path) -> None:
    rows = make_rows(60)
    store = open_store(f"{s3_server}/refreshed")
    source, out = f"{store.url}/source/items.jsonl", f"{store.url}/run"

    def put() -> None:
        store.put("source/items.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())

    put()
    begin(spec_of(source), out)
    rows[7]["text"] = "changed"
    put()
    done = again(out)
    assert (done.reused, done.computed, done.run) == (59, 1, out)
    assert is_proved(out).ledger.url == f"{out}/editions/000002"


KILLED = """
import sys
from shardmill.core import permission
from shardmill.run.refreshing import refresh
from shardmill.sinks import earlier, keeping
from shardmill.sources import batches
from shardmill.testing import InProcessEngine, crash_at
earlier._FEWEST_BYTES = 0
keeping.KEEP_EVERY_S, batches.BATCH_ROWS = 0.0, 4
permission.allow(["shardmill.testing:FakeTask"])
refresh(sys.argv[1], engine=InProcessEngine(on_step=crash_at(sys.argv[2], int(sys.argv[3]))))
"""


@pytest.mark.parametrize(
    ("step", "after"), [("claimed", 0), ("batch", 2), ("keeping", 2), ("kept", 3), ("staged", 1), ("committing", 3)]
)
def test_a_killed_refresh_goes_on(step: str, after: int, tmp_path: Path) -> None:
    rows = make_rows(100)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    before = begin(spec, tmp_path / "run").table()
    for n in range(0, 100, 9):
        rows[n]["text"] = f"changed {n}"
    write(source, rows)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-c", KILLED, str(tmp_path / "run"), step, str(after)]
    assert subprocess.run(words, env=environment, check=False).returncode == -9
    assert Run(tmp_path / "run").table().equals(before), "until it is done, the edition before is read"
    done = again(tmp_path / "run")
    assert (done.edition, done.computed) == (2, 12)
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_a_source_that_moved_on_is_begun_again(tmp_path: Path) -> None:
    rows = make_rows(100)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, [*rows, {"id": "a", "text": "a", "n": 0}])

    def fail(step: str, shard: int) -> None:
        if step == "committing" and shard == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refresh(tmp_path / "run", engine=InProcessEngine(on_step=fail))
    write(source, [*rows, {"id": "b", "text": "b", "n": 0}])
    assert again(tmp_path / "run").edition == 2
    assert is_proved(tmp_path / "run").table(["id"]).column("id").to_pylist()[-1] == "b"


def test_two_at_once_make_one_edition(tmp_path: Path) -> None:
    rows = make_rows(60)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, [*rows, {"id": "a", "text": "a", "n": 0}])
    inner: list[Refreshed] = []

    def another(step: str, shard: int) -> None:
        if step == "staged" and not inner:
            inner.append(again(tmp_path / "run"))

    done = refresh(tmp_path / "run", engine=InProcessEngine(on_step=another))
    assert done.edition == inner[0].edition == 2
    assert Editions(tmp_path / "run").current() == 2
    is_proved(tmp_path / "run")


def test_an_edition_whose_settings_were_replaced_is_refreshed(tmp_path: Path) -> None:
    """A killed process may have sent them for the same edition before it was begun again, and they come late."""
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    for n in range(2):
        write(source, rows[n + 1 :])
        again(tmp_path / "run")
    settings = tmp_path / "run/editions/000003/execution.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "generation": "another"}))
    write(source, rows)
    assert again(tmp_path / "run").edition == 4
    assert Run(tmp_path / "run").ledger.execution()["max_errors"] == "100%"


def test_an_edition_that_is_read_is_not_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh sleeps after it has found an edition to go on with; others complete it, and the source changes."""
    rows = make_rows(60)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, rows[1:])
    slept: list[Refreshed] = []
    write_really = refreshing.write_plan

    def sleep(*given: Any, **how: Any) -> Any:
        if not slept:
            monkeypatch.setattr(refreshing, "write_plan", write_really)
            write(source, rows[1:])
            slept.append(again(tmp_path / "run"))
        return write_really(*given, **{**how, "fresh": True})

    monkeypatch.setattr(refreshing, "write_plan", sleep)
    with pytest.raises(Preempted, match="another process has made this edition"):
        again(tmp_path / "run")
    assert slept[0].edition == Editions(tmp_path / "run").current() == 2
    assert len(is_proved(tmp_path / "run").table()) == 59


def test_an_edition_whose_maker_died_before_the_switch_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(40)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    write(source, rows[1:])

    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Editions, "switch", die)
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path / "run")
    write(source, rows[2:])
    assert again(tmp_path / "run").edition == 3
    assert Editions(tmp_path / "run").origin(3).base == 2
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_readers_keep_the_edition_that_they_opened(tmp_path: Path) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    old = begin(spec_of(source), tmp_path / "run")
    write(source, rows[5:])
    again(tmp_path / "run")
    assert len(old.table()) == 30
    assert len(Run(tmp_path / "run").table()) == 25
    assert len(Run(Editions(tmp_path / "run").place(1)).table()) == 25, "the folder of the run is its newest edition"


def test_old_editions_are_pruned(tmp_path: Path, shardmill: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    first = begin(spec_of(source), tmp_path / "run")
    editions = Editions(tmp_path / "run")
    for n in range(3):
        write(source, rows[n + 1 :])
        again(tmp_path / "run")
    said = shardmill("prune", tmp_path / "run", "--keep-editions", 2)
    assert "Nothing to delete." in said.err, "they were replaced within the hour"
    monkeypatch.setattr("shardmill.ledger.editions.GRACE_S", 0.0)
    said = shardmill("prune", tmp_path / "run", "--keep-editions", 2, "--json")
    assert json.loads(said.out)["pruned"] == [1, 2]
    needed = {part.place(editions.run) for number in (3, 4) for part in borrowed_by(editions, number)}
    left = [*(tmp_path / "run/parts").glob("*"), *(tmp_path / "run/editions/000002/parts").glob("*")]
    assert left, "rows of the editions that stay are there"
    assert {*map(str, left)} <= needed
    assert first.table().num_rows == 30, "all of its parts are needed, so who has opened it reads it to the end"
    with pytest.raises(EditionPruned, match="is an edition that was pruned"):
        Run(editions.place(2)).table()
    assert_told(shardmill("verify", editions.place(2)), 75, "pruned")
    assert len(Run(editions.place(3)).table()) == 28
    assert len(is_proved(tmp_path / "run").table()) == 27
    assert 3 in prune(tmp_path / "run", 1).pruned
    assert len(is_proved(tmp_path / "run").table()) == 27
    write(source, rows)
    assert again(tmp_path / "run").edition == 5
    assert_told(shardmill("prune", tmp_path / "nowhere"), 2, "nowhere")


def test_rows_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": f"id {n}", "text": f"text {n} " * 20, "n": n} for n in range(2000)]
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source, params={"dims": 64})
    spec = make_spec(spec.work.model_dump(exclude_unset=True), {"shard_bytes": 100_000})
    monkeypatch.undo()
    begin(spec, tmp_path / "run")
    written = sum(path.stat().st_size for path in (tmp_path / "run/parts").iterdir())
    editions = Editions(tmp_path / "run")
    for day in range(1, 13):
        for n in range(day, 2000, 200):
            rows[n]["text"] = f"day {day}: {rows[n]['text']}"
        rows.pop(day * 50)
        write(source, rows)
        done = again(tmp_path / "run")
        assert (done.computed, done.reused) == (10, 1999 - day - 9)
        folder = Path(editions.place(done.edition))
        added = sum(path.stat().st_size for path in (folder / "parts").iterdir())
        assert added < written / 2, day
        parts = [len(read_borrowed(Run(folder).ledger.store, c)) for c in Run(folder).ledger.commits.read().values()]
        assert max(parts) <= 8, "rows of many small parts are brought together"
    run = is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")
    assert len(list(run.batches(["n"]))) >= 1
    found = begin(spec_of(f"run:{tmp_path / 'run'}", text="id"), tmp_path / "chain")
    assert found.table(["n"]).column("n").to_pylist() == [row["n"] for row in rows]
    borrowed = borrowed_by(editions, 13)
    damage = Path(borrowed[0].place(str(tmp_path / "run")))
    data = bytearray(damage.read_bytes())
    data[len(data) // 3] ^= 1
    damage.write_bytes(data)
    report = Run(tmp_path / "run").verify(report=False)
    assert {check.name for check in report.checks if not check.ok} >= {"digests"}


def test_after_a_rollback_the_next_one_is_made_from_what_is_read(tmp_path: Path) -> None:
    rows = make_rows(60)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    for n in range(2):
        rows[n]["text"] = f"edited {n}"
        write(source, rows)
        again(tmp_path / "run")
    editions = Editions(tmp_path / "run")
    third = Run(tmp_path / "run").table()
    assert editions.switch(3, 2)
    done = again(tmp_path / "run")
    assert (done.edition, done.computed) == (4, 1), "it has the rows of the second edition"
    assert [editions.origin(number).base for number in (2, 3, 4)] == [1, 2, 2]
    assert is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh").table().equals(third)
    assert Run(editions.place(3)).table().equals(third), "what was read stays as it is"


def test_the_same_command_and_fresh_know_editions(tmp_path: Path) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    write(source, rows[5:])
    with pytest.raises(StaleResume, match="holds a different run") as told:
        begin(spec, tmp_path / "run")
    assert f"shardmill refresh {tmp_path / 'run'}" in str(told.value)
    again(tmp_path / "run")
    assert len(begin(spec, tmp_path / "run").table()) == 25, "it is complete"
    assert len(resume(tmp_path / "run").table()) == 25
    write(source, rows)
    start(spec, tmp_path / "run", fresh=True, engine=InProcessEngine())
    assert is_proved(tmp_path / "run").ledger.url == str(tmp_path / "run")
    assert not list((tmp_path / "run/editions").glob("*/parts/*"))


def test_a_fresh_start_that_dies_leaves_no_editions_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folders have the same names in every run, so they go before its plan is replaced."""
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    write(source, rows[5:])
    again(tmp_path / "run")

    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(LocalStore, "replace_if_same", die)
        with pytest.raises(KeyboardInterrupt):
            start(spec, tmp_path / "run", fresh=True, engine=InProcessEngine())
    assert not [path for path in (tmp_path / "run/editions").rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(Run(tmp_path / "run").table()) == 30
    assert again(tmp_path / "run").edition == 2
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_earlier_versions_refuse_a_run_of_several_editions(tmp_path: Path) -> None:
    source = write(tmp_path / "items.jsonl", make_rows(10))
    begin(spec_of(source), tmp_path / "run")
    write(source, make_rows(12))
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    again(tmp_path / "run")
    marked = json.loads((tmp_path / "run/plan.json").read_text())
    assert (plan["format"], marked["format"]) == (2, 3)
    assert (plan["id"], plan["shards"]) == (marked["id"], marked["shards"])
    assert json.loads((tmp_path / "run/editions/000002/plan.json").read_text())["format"] == 3


@pytest.mark.parametrize("shape", ["plain", *SHAPES])
def test_rows_of_earlier_versions_are_taken_over_where_files_are_unchanged(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        name: [{**row, "id": f"{name} {row['id']}", "text": f"{name} {row['text']}"} for row in make_rows(40)]
        for name in ("a.jsonl", "b.jsonl")
    }
    files["a.jsonl"][5]["text"] = None
    write_all(tmp_path / "source", files)
    spec = spec_of(tmp_path / "source", **SHAPES.get(shape, {}))
    with monkeypatch.context() as earlier:
        earlier.setattr("shardmill.sinks.parquet.encode_lineage", lambda lineage: b"")
        begin(spec, tmp_path / "run")
    write(tmp_path / "source/b.jsonl", [*files["b.jsonl"], {"id": "a", "text": "a", "n": 0}])
    write(tmp_path / "source/0.jsonl", [{"id": "b", "text": "b", "n": 0}])
    would = again(tmp_path / "run", dry_run=True)
    done = again(tmp_path / "run")
    assert (would.reused, would.computed) == (done.reused, done.computed)
    assert 0 < done.reused < 40
    assert done.reused == 39 or shape in ("part", "share")
    run = is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")
    assert not list((tmp_path / "run/editions/000002").glob("earlier/*"))
    write(tmp_path / "source/0.jsonl", [{"id": "b", "text": "bb", "n": 0}])
    assert again(tmp_path / "run").computed <= 2, "from now on each item has a digest"
    assert run.plan.id != Run(tmp_path / "run").plan.id


def test_rows_of_earlier_versions_that_are_not_those_of_the_source_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "source/a.jsonl", make_rows(20))
    about = source.stat()
    spec = spec_of(tmp_path / "source")
    monkeypatch.setattr("shardmill.sinks.parquet.encode_lineage", lambda lineage: b"")
    begin(spec, tmp_path / "run")
    monkeypatch.undo()
    source.write_text(source.read_text().replace("text 7", "text X"))
    os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
    write(tmp_path / "source/b.jsonl", [{"id": "a", "text": "a", "n": 0}])
    assert 0 < again(tmp_path / "run").computed < 20, "only the shard whose items are others"
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_a_damaged_part_is_not_taken_over(tmp_path: Path) -> None:
    rows = make_rows(20)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    part = min((tmp_path / "run/parts").glob("*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.write_bytes(data)
    write(source, [*rows, {"id": "a", "text": "a", "n": 0}])
    with pytest.raises(UsageError, match=r"parts/.* is damaged"):
        again(tmp_path / "run")
    assert Editions(tmp_path / "run").current() == 1


def test_rows_of_two_precisions_are_compared_as_the_lesser_allows(tmp_path: Path) -> None:
    """What computed a row is told by its shard's commit; of a shard with rows of both, it is not known."""
    rows = make_rows(40)
    source = write(tmp_path / "items.jsonl", rows)
    spec = spec_of(source, task="tests.support.corpora:Precise", params={"precision": "bfloat16"})
    begin(spec, tmp_path / "run")
    commits = Run(tmp_path / "run").ledger.commits
    assert {commit.precision for commit in commits.read().values()} == {"bfloat16"}
    write(source, [*rows, *({"id": f"a{n}", "text": f"a{n}" * 40, "n": 0} for n in range(9))])
    Precise.now = "float32"
    try:
        again(tmp_path / "run")
    finally:
        Precise.now = ""
    found = Run(tmp_path / "run").ledger.commits.read().values()
    assert {commit.precision for commit in found if commit.reused} == {""}
    assert {commit.precision for commit in found if not commit.reused} == {"float32"}


@pytest.mark.parametrize("left", [0, 9])
def test_an_outage_upstream_deletes_nothing(left: int, tmp_path: Path) -> None:
    rows = make_rows(40)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, rows[:left])
    with pytest.raises(SourceError) as told:
        again(tmp_path / "run")
    assert str(told.value).count("\n") <= 1
    assert len(Run(tmp_path / "run").table()) == 40
    if left:
        assert again(tmp_path / "run", allow_shrink=True).items == 9


def test_what_cannot_be_refreshed(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl(make_rows(30))
    with pytest.raises(UsageError, match="the first items"):
        again(begin(spec_of(source, limit=5), tmp_path / "limited").ledger.url)
    grouped = make_spec({"source": str(source), "task": "summarize", "text": "text", "group_by": "n"})
    assert grouped.work.group_by
    half = shardmill.prepare(spec_of(source), tmp_path / "half")
    with pytest.raises(NotComplete, match="are not done"):
        again(half.ledger.url)


def test_a_changed_model_is_no_refresh(tmp_path: Path) -> None:
    source = write(tmp_path / "items.jsonl", make_rows(10))
    run = begin(spec_of(source), tmp_path / "run")
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    plan["fingerprint"] = {**plan["fingerprint"], "model": "another"}
    (tmp_path / "run/plan.json").write_text(json.dumps(plan))
    with pytest.raises(StaleResume, match="is not the one that it was planned with"):
        again(run.ledger.url)


def test_from_the_command_line_and_from_python(tmp_path: Path, shardmill: Cli) -> None:
    import shardmill as library

    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    run = begin(spec_of(source), tmp_path / "run")
    said = shardmill("refresh", tmp_path / "run", "--allow-code", "--device", "cpu")
    assert "Nothing has changed: edition 1 has 30 items." in said.err, said
    write(source, [*rows[1:], {"id": "a", "text": "a", "n": 0}])
    said = shardmill("refresh", tmp_path / "run", "--dry-run", "--json")
    found = json.loads(said.out)
    assert (found["items"], found["reused"], found["computed"]) == (30, 29, 1)
    said = shardmill("refresh", tmp_path / "run", "--device", "cpu", "--workers", 1)
    assert "Edition 2 has 30 items, the one before has 30: 29 reused, 1 computed" in said.err, said
    write(source, rows)
    assert run.refresh().edition == 3
    assert len(run.table()) == 30
    assert library.refresh(tmp_path / "run").changed is False
    assert_told(shardmill("refresh", tmp_path / "nowhere"), 2, "nowhere")


def test_an_edition_is_a_source(tmp_path: Path) -> None:
    """What reads a run reads its newest edition."""
    rows = make_rows(20)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "first")
    write(source, rows[4:])
    again(tmp_path / "first")
    second = begin(
        make_spec({**spec_of(f"run:{tmp_path / 'first'}").work.model_dump(), "text": "id"}), tmp_path / "two"
    )
    assert len(second.table()) == 16
    assert Ledger(tmp_path / "first").url.endswith("editions/000002")
    assert isinstance(second.table(), pa.Table)


def test_a_chain_is_refreshed_in_order(tmp_path: Path) -> None:
    rows = make_rows(60)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "first")
    work = {**spec_of(f"run:{tmp_path / 'first'}").work.model_dump(exclude_unset=True), "text": "id"}
    second = make_spec(work, {"shard_bytes": 600})
    begin(second, tmp_path / "second")
    rows[7]["id"] = "another"
    rows[8]["text"] = "changed"
    del rows[20]
    write(source, rows)
    assert not again(tmp_path / "second").changed, "the first has not been refreshed yet"
    assert again(tmp_path / "first").computed == 1
    assert again(tmp_path / "second").computed == 1
    is_as_fresh(tmp_path / "second", second, tmp_path / "fresh")


def test_nobody_is_told_to_start_a_refreshed_run_over(tmp_path: Path) -> None:
    """That would delete its editions."""
    rows = make_rows(20)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, [{**row, "text": None, "more": "x" * 20} for row in rows])
    for _ in range(2):
        with pytest.raises(ShardmillError, match="rows failed") as told:
            again(tmp_path / "run", changes={"max_errors": "1%"})
        assert "The edition before stays" in told.value.hint
        assert "--fresh" not in told.value.hint
    write(source, rows[1:])
    assert again(tmp_path / "run").reused == 19


@pytest.mark.parametrize("id", ["id", ""])
def test_a_query_whose_rows_are_the_same_makes_no_edition(id: str, tmp_path: Path) -> None:
    """With a key, the query is cut into ranges; without one, it is read in one."""

    def change(*statements: str) -> None:
        with closing(sqlite3.connect(tmp_path / "rows.db")) as database, database:
            for each in statements:
                database.execute(each)

    change("CREATE TABLE r (id INTEGER, text TEXT, n INTEGER)")
    change(*(f"INSERT INTO r VALUES ({n}, 'text {n}', {n})" for n in range(40)))
    work = spec_of(tmp_path / "rows.db", query="SELECT * FROM r", id=id).work.model_dump(exclude_unset=True)
    begin(make_spec(work, {"shard_bytes": 300}), tmp_path / "run")
    assert not again(tmp_path / "run").changed
    for statement, computed in (
        ("UPDATE r SET text = 'edited' WHERE id = 30", 1),
        ("UPDATE r SET n = -1 WHERE id = 30", 0),
        ("INSERT INTO r VALUES (99, 'text 99', 99)", 1),
        ("DELETE FROM r WHERE id = 99", 0),
        ("DELETE FROM r WHERE id = 5", 0),
    ):
        change(statement)
        assert again(tmp_path / "run", dry_run=True).changed
        done = again(tmp_path / "run")
        assert (done.changed, done.computed) == (True, computed), statement
        assert not again(tmp_path / "run").changed
        assert not again(tmp_path / "run", dry_run=True).changed
    assert Editions(tmp_path / "run").current() == 6
    is_proved(tmp_path / "run")


@pytest.mark.parametrize("column", ["text", "id", "n"])
def test_a_column_that_vanished_is_told(column: str, tmp_path: Path) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    write(source, [{name: value for name, value in row.items() if name != column} for row in rows])
    with pytest.raises(SourceError, match=f"no field '{column}'"):
        again(tmp_path / "run")
    assert not (tmp_path / "run/editions").exists()


def test_ids_that_became_equal_lose_nothing(tmp_path: Path) -> None:
    rows = make_rows(30)
    source = write(tmp_path / "items.jsonl", rows)
    begin(spec_of(source), tmp_path / "run")
    rows[3]["id"] = rows[4]["id"]
    write(source, rows)
    again(tmp_path / "run")
    assert len(Run(tmp_path / "run").table()) == 30
    (failed,) = (check for check in Run(tmp_path / "run").verify(report=False).checks if not check.ok)
    assert "k4 in rows 3 and 4" in failed.seen
