"""The proof of a large run: one pass over each part, on all cores, in memory that does not grow with the ids."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from shardmill.core import devices
from shardmill.results import ids, parts
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
