"""Files that are as they were are not read again, and whoever writes one is noticed, whatever its size and its time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardmill import testing
from shardmill.core.devices import Device
from shardmill.core.errors import UsageError
from shardmill.ledger import Editions, Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.results.own_items import find_own_items
from shardmill.run import Run, start
from shardmill.run.refreshed import Refreshed
from shardmill.run.refreshing import refresh
from shardmill.run.rollback import roll_back
from shardmill.sources.grouping import FileSource
from shardmill.store import open_store
from shardmill.tasks import open_task
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from shardmill.worker.writer import open_earlier
from tests.support.corpora import fake_rows

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also few rows stay where they are. A file is settled at once: the tests wait until it is."""
    monkeypatch.setattr("shardmill.sinks.earlier._FEWEST_BYTES", 0)
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", 0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read item by item."""
    names: list[str] = []
    really = FileSource._read_file

    def note(self: FileSource, index: int, piece: Any = None) -> Any:
        names.append(self._stat.files[index].name)
        return really(self, index, piece)

    monkeypatch.setattr(FileSource, "_read_file", note)
    return names


def make_rows(name: str, count: int = 20) -> Rows:
    return [{"id": f"{name} {n}", "text": f"{name} {row['text']}", "n": n} for n, row in enumerate(fake_rows(count))]


def write(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def spec_of(source: Path | str, shard_bytes: int = 600, **work: Any) -> Spec:
    base = {"source": str(source), "text": "text", "id": "id", "keep": "n", "task": "shardmill.testing:FakeTask"}
    return make_spec({**base, **work}, {"shard_bytes": shard_bytes, "max_errors": "100%", "lease_s": 2.0})


def begin(spec: Spec, out: Path | str) -> Run:
    return start(spec, out, engine=InProcessEngine())


def again(out: Path | str, **how: Any) -> Refreshed:
    return refresh(out, engine=InProcessEngine(), **how)


def is_as_fresh(out: Path, spec: Spec, fresh: Path) -> Run:
    run = Run(out)
    report = run.verify(report=False)
    assert report.verified, [check for check in report.checks if not check.ok]
    assert run.table().equals(begin(spec, fresh).table())
    return run


@pytest.mark.parametrize("shard_bytes", [600, 10_000], ids=["several shards a file", "several files a shard"])
def test_only_files_that_changed_are_read(shard_bytes: int, tmp_path: Path, read: list[str]) -> None:
    source = tmp_path / "source"
    names = [f"{n}.jsonl" for n in range(12)]
    for name in names:
        write(source / name, make_rows(name))
    spec = spec_of(source, shard_bytes)
    begin(spec, tmp_path / "run")
    rows = make_rows("7.jsonl")
    rows[4]["text"] = "another text"
    write(source / "7.jsonl", [*rows, {"id": "new", "text": "a new text", "n": 0}])
    read.clear()
    would = again(tmp_path / "run", dry_run=True)
    assert (would.reused, would.computed) == (239, 2)
    done = again(tmp_path / "run")
    assert (done.items, done.reused, done.computed) == (241, 239, 2)
    if shard_bytes == 600:
        assert {*read} == {"7.jsonl"}
    else:
        # Those that share its shard are read, too.
        assert {*read} < {*names}
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_files_come_and_go_and_get_other_names(tmp_path: Path, read: list[str]) -> None:
    source = tmp_path / "source"
    for name in "abcd":
        write(source / f"{name}.jsonl", make_rows(name))
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    (source / "b.jsonl").rename(source / "z.jsonl")
    (source / "a.jsonl").unlink()
    write(source / "c1.jsonl", make_rows("c1"))
    read.clear()
    done = again(tmp_path / "run")
    assert (done.reused, done.computed, {*read}) == (60, 20, {"c1.jsonl"})
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")
    read.clear()
    write(source / "e.jsonl", make_rows("e"))
    again(tmp_path / "run")
    assert {*read} == {"e.jsonl"}, "rows that were taken over twice stay where they are"
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh again")


def test_rows_that_name_their_file_follow_a_new_name(tmp_path: Path, read: list[str]) -> None:
    source = tmp_path / "source"
    for name in "abc":
        write(source / f"{name}.jsonl", make_rows(name))
    spec = spec_of(source, id="auto", keep="n")
    begin(spec, tmp_path / "run")
    (source / "b.jsonl").rename(source / "d.jsonl")
    read.clear()
    done = again(tmp_path / "run")
    assert (done.reused, done.computed, {*read}) == (60, 0, {"d.jsonl"})
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


@pytest.mark.parametrize("part", [{"where": "n < 12"}, {"take": 0.5, "id": ()}, {"take": 0.5}])
def test_a_part_of_a_source(part: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in "bcd":
        write(source / f"{name}.jsonl", make_rows(name))
    spec = spec_of(source, **part)
    begin(spec, tmp_path / "run")
    write(source / "a.jsonl", make_rows("a"))
    again(tmp_path / "run")
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_rows_without_a_text_are_no_reason_to_read_and_rows_that_failed_are(tmp_path: Path, read: list[str]) -> None:
    source = tmp_path / "source"
    rows = {name: make_rows(name) for name in "abc"}
    rows["a"][3]["text"] = None
    rows["b"][5]["text"] = "!nan"
    for name in rows:
        write(source / f"{name}.jsonl", rows[name])
    spec = spec_of(source, 1500)
    before = begin(spec, tmp_path / "run")
    assert len(before.plan.shards) == 3
    write(source / "d.jsonl", make_rows("d"))
    read.clear()
    done = again(tmp_path / "run")
    assert {*read} == {"b.jsonl", "d.jsonl"}
    assert (done.errors, done.reused) == (2, 58)
    run = is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")
    own, other = (sorted(each.errors(), key=lambda e: e["shard"]) for each in (run, Run(tmp_path / "fresh")))
    assert own == other


def edit_unseen(path: Path, keep_inode: bool = True) -> None:
    """Change a row far from both edges, and give the file the size and the time that it had."""
    was, data = path.stat(), path.read_bytes()
    changed = data.replace(b"row 1500 ", b"row 15OO ")
    assert changed != data
    assert len(changed) == len(data)
    if not keep_inode:
        path.unlink()
    path.write_bytes(changed)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def long_rows() -> Rows:
    return [{"id": f"k{n}", "text": f"row {n} {'x' * 60}", "n": n} for n in range(3000)]


@pytest.mark.parametrize("tick_ns", [0, 10**12], ids=["settled", "just written"])
def test_an_edit_that_leaves_size_and_time_is_seen(
    tick_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", tick_ns)
    source = write(tmp_path / "items.jsonl", long_rows())
    begin(spec_of(source, 60_000), tmp_path / "run")
    edit_unseen(source)
    was = Run(tmp_path / "run").plan.stat.files[0]
    done = again(tmp_path / "run")
    now = Run(tmp_path / "run").plan.stat.files[0]
    assert (now.size_bytes, now.tag, now.edges) == (was.size_bytes, was.tag, was.edges)
    assert (done.edition, done.computed) == (2, 1)
    assert Run(tmp_path / "run").verify(report=False).verified


def test_a_file_that_was_just_written_is_read_once_and_not_at_each_turn(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", 10**12)
    source = write(tmp_path / "items.jsonl", make_rows("a"))
    begin(spec_of(source), tmp_path / "run")
    for _ in range(2):
        read.clear()
        assert not again(tmp_path / "run").changed
        assert read
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", 0)
    read.clear()
    assert not again(tmp_path / "run", dry_run=True).changed
    assert not again(tmp_path / "run").changed
    assert read
    read.clear()
    assert not again(tmp_path / "run").changed
    assert not read
    os.utime(source)
    assert again(tmp_path / "run").edition == 2, "another time is another plan"


def test_objects_are_known_by_their_tags(tmp_path: Path, read: list[str]) -> None:
    store = open_store("memory://by-file")
    for name in "ab":
        store.put(f"source/{name}.jsonl", write(tmp_path / name, make_rows(name)).read_bytes())
    spec = spec_of("memory://by-file/source/")
    begin(spec, tmp_path / "run")
    store.put("source/b.jsonl", write(tmp_path / "b", make_rows("b", 21)).read_bytes())
    read.clear()
    done = again(tmp_path / "run")
    assert (done.reused, done.computed, {*read}) == (40, 1, {"b.jsonl"})
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_parts_without_lineage_are_read(tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of earlier versions, which said nothing of items."""
    source = tmp_path / "source"
    for name in "ab":
        write(source / f"{name}.jsonl", make_rows(name))
    spec = spec_of(source)
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.sinks.parquet.encode_lineage", lambda batches: b"")
        begin(spec, tmp_path / "run")
    write(source / "c.jsonl", make_rows("c"))
    read.clear()
    done = again(tmp_path / "run")
    assert (done.reused, done.computed, {*read}) == (40, 20, {"a.jsonl", "b.jsonl", "c.jsonl"})
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


# what verify says of editions


def test_the_sample_has_rows_of_earlier_editions_and_of_its_own(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in "ab":
        write(source / f"{name}.jsonl", make_rows(name, 200))
    begin(spec_of(source), tmp_path / "run")
    rows = make_rows("b", 200)
    rows[11]["text"] = "changed"
    write(source / "b.jsonl", rows)
    assert again(tmp_path / "run").computed == 1
    run = Run(tmp_path / "run")
    commits = run.ledger.commits.read_complete(run.plan)
    assert sum(len(find_own_items(run.ledger, commit)) for commit in commits) == 1
    for _ in range(3):
        sample = next(c for c in run.verify(report=False, sample=8).checks if c.name == "sample")
        assert sample.ok
        assert "at least 1 of them lie in this edition's own parts" in sample.seen
        assert sample.seen.startswith(("8 of 400", "9 of 400"))


def damage(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rows of some texts be computed otherwise from now on, as if those that are stored were wrong."""
    really = testing.fake_vector
    monkeypatch.setattr(testing, "fake_vector", lambda text, dims: really("other" if wrong in text else text, dims))


@pytest.mark.parametrize("wrong", ["changed", "a "], ids=["a new row", "rows taken over"])
def test_the_sample_finds_wrong_rows_old_and_new(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    for name in "ab":
        write(source / f"{name}.jsonl", make_rows(name, 50))
    begin(spec_of(source), tmp_path / "run")
    write(source / "b.jsonl", [{"id": "c", "text": "changed", "n": 0}, *make_rows("b", 50)])
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    damage(wrong, monkeypatch)
    assert not next(c for c in run.verify(report=False, sample=8).checks if c.name == "sample").ok


def test_of_an_older_edition_digests_alone_are_compared(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in "ab":
        write(source / f"{name}.jsonl", make_rows(name))
    begin(spec_of(source), tmp_path / "run")
    for count in (21, 22):
        write(source / "b.jsonl", make_rows("b", count))
        again(tmp_path / "run")
    for number, rows in ((1, 40), (2, 41)):
        older = Run(tmp_path / f"run/editions/{number:06d}")
        assert len(older) == rows
        report = older.verify(report=False)
        assert report.verified
        said = {check.name: check.seen for check in report.checks}
        why = "edition 3 has replaced this one, whose source is gone; digests are compared"
        assert said["contents"] == f"not compared with the source: {why}"
        assert said["sample"] == f"none: {why}"
        assert "source" not in said
    ledger = Ledger(Editions(tmp_path / "run").open(1))
    part = Path(ledger.url) / next(iter(ledger.commits.read().values())).part
    part.write_bytes(part.read_bytes()[:-40] + bytes(40))
    for number in (1, 2, 3):
        assert not Run(tmp_path / f"run/editions/{number:06d}").verify(report=False).verified
    with pytest.raises(UsageError):
        roll_back(tmp_path / "run", 3)


# editions that have none before them


def test_a_first_edition_has_none_before(tmp_path: Path) -> None:
    source = write(tmp_path / "items.jsonl", make_rows("a"))
    run = begin(spec_of(source), tmp_path / "run")
    task = open_task(run.plan.work.task, run.plan.work.params)
    assert open_earlier(run.ledger, run.plan, task, "w") is None


def test_a_copy_of_an_edition_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Its earlier editions are elsewhere: what is left to do is computed."""
    source = tmp_path / "source"
    for name in "ab":
        write(source / f"{name}.jsonl", make_rows(name))
    spec = spec_of(source)
    begin(spec, tmp_path / "run")
    write(source / "c.jsonl", make_rows("c"))
    again(tmp_path / "run")
    shutil.copytree(tmp_path / "run/editions/000002", tmp_path / "copy")
    for commit in (tmp_path / "copy/commits").iterdir():
        commit.unlink()
    assert Worker(Ledger(tmp_path / "copy"), device=Device("cpu", "cpu")).work()
    is_as_fresh(tmp_path / "copy", spec, tmp_path / "fresh")
