"""The proof of a large run: one pass over each part, on all cores, in memory that does not grow with the ids."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from shardmill.core import devices
from shardmill.core.helpers import Helpers
from shardmill.results import ids, parts, reading
from shardmill.run import Run, start
from shardmill.store import LocalStore
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Write) -> Run:
    made = start(fake_spec(write_jsonl(fake_rows(200))), tmp_path / "run", engine=InProcessEngine())
    assert len(made.plan.shards) >= 4
    return made


def listen(monkeypatch: pytest.MonkeyPatch, heard: Callable[[str], None]) -> None:
    """Call `heard` with the key of each part that is opened."""
    reader = LocalStore.reader

    def listening(self: LocalStore, key: str) -> IO[bytes]:
        if key.startswith("parts/"):
            heard(key)
        return reader(self, key)

    monkeypatch.setattr(LocalStore, "reader", listening)


def test_each_part_is_read_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    listen(monkeypatch, lambda key: opened.update([key]))
    assert run.verify(sample=0).verified
    assert opened == {commit.part: 1 for commit in run.ledger.commits.read().values()}


def test_parts_are_read_on_all_cores(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "allowed_cpus", lambda: {0, 1})
    monkeypatch.setattr(devices, "_cgroup_quota", lambda: None)
    both, first = threading.Barrier(2), {c.part for c in list(run.ledger.commits.read().values())[:2]}

    def meet(key: str) -> None:
        if key in first:
            both.wait(PATIENCE_S)

    listen(monkeypatch, meet)
    assert run.verify(sample=0).verified


@pytest.mark.parametrize("compared", [4, 1 << 16])
def test_very_many_ids_that_occur_twice_are_counted(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch, compared: int
) -> None:
    """Only some of them are compared in full."""
    monkeypatch.setattr(ids, "_COMPARED", compared)
    rows = fake_rows(120)
    for i in range(100, 120):
        rows[i]["id"] = rows[i - 60]["id"]
    report = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine()).verify()
    (seen,) = [check.seen for check in report.checks if not check.ok]
    assert seen.startswith("20 ids occur more than once, e.g. k")
    first, second = map(int, re.findall(r"in rows (\d+) and (\d+)", seen)[0])
    assert (40 <= first < 60, second) == (True, first + 60)


def test_a_large_part_is_not_held(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_HELD_PART_BYTES", 100)
    assert run.verify(sample=0).verified


def damage_a_part(run: Run, source: Path) -> None:
    part = Path(run.ledger.url) / run.ledger.commits.read()[2].part
    part.write_bytes(part.read_bytes().replace(b"PAR1", b"PAR2"))


def change_a_text(run: Run, source: Path) -> None:
    """In place, so that neither size nor time nor the edges of the file tell."""
    times = source.stat()
    data = bytearray(source.read_bytes())
    at = data.index(b'"text": "', len(data) // 2) + len(b'"text": "')
    data[at : at + 1] = b"Z" if data[at : at + 1] != b"Z" else b"Y"
    source.write_bytes(data)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))


def remove_the_source(run: Run, source: Path) -> None:
    source.unlink()


@pytest.mark.parametrize("trouble", [None, damage_a_part, change_a_text, remove_the_source])
def test_helpers_see_what_one_process_sees(
    trouble: Callable[[Run, Path], None] | None, tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(fake_rows(200))
    run = start(fake_spec(source), tmp_path / "run", engine=InProcessEngine())
    if trouble is not None:
        trouble(run, source)
    alone = run.verify(sample=0)
    assert alone.verified == (trouble is None)
    asked: list[str] = []
    call = Helpers.call

    def listening(self: Helpers, question: tuple[str, list[object]]) -> object:
        asked.extend([question[0]] * len(question[1]))
        return call(self, question)

    monkeypatch.setattr(Helpers, "call", listening)
    monkeypatch.setattr(reading, "cores", lambda: 2)
    monkeypatch.setattr(reading, "_ALONE_S", 0.0)
    monkeypatch.setattr(reading, "_ROWS_AT_ONCE", 60)
    helped = run.verify(sample=0)
    assert [*helped.checks] == [*alone.checks]
    assert Counter(asked)["parts"] == len(run.plan.shards)
    assert Counter(asked)["items"] == len(run.plan.shards) or trouble is remove_the_source
