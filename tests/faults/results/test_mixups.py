"""Rows that come to the wrong item are found exactly, without the sample, and sound runs are not accused."""

from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path

import pytest

from campaigns.mixups import LAYOUTS, make_run, play, write_source
from campaigns.planted_mixups import GROUPS, MIXUPS
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine


@pytest.mark.parametrize("name", MIXUPS)
def test_a_planted_mix_up_is_found(name: str, tmp_path: Path) -> None:
    assert play(name, 0, tmp_path)


@pytest.mark.parametrize("seed", range(2 * len(LAYOUTS)))
def test_a_sound_run_is_not_accused(seed: int, tmp_path: Path) -> None:
    assert play("", seed, tmp_path) == ""


def test_groups_of_compressed_rows_are_sorted_again(tmp_path: Path) -> None:
    plain = write_source(tmp_path, random.Random(0))
    packed = tmp_path / "items.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    run = start(make_run(packed, GROUPS, {}), tmp_path / "run", engine=InProcessEngine(), quiet=True)
    report = run.verify(sample=0)
    assert report.verified, report
    assert "20 items are those of the source" in str(report)


def test_rows_of_a_query_may_change_and_are_named(tmp_path: Path) -> None:
    place = tmp_path / "rows.db"
    with sqlite3.connect(place) as database:
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO items VALUES (?, ?)", [(i, f"text {i}") for i in range(50)])
    work = {"source": f"sqlite:///{place}", "query": "SELECT id, text FROM items", "text": "text", "id": "id"}
    spec = make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"max_errors": "100%"})
    run = start(spec, tmp_path / "run", engine=InProcessEngine(), quiet=True)
    assert not any(check.rows for check in run.verify(sample=0).checks)
    with sqlite3.connect(place) as database:
        database.execute("UPDATE items SET text = 'another' WHERE id = 7")
    report = run.verify(sample=0)
    assert report.verified, report
    assert "rows of the query have changed since" in str(report)
    assert "the texts are not those that were read" in str(report)
    assert [row for check in report.checks for row in check.rows] == [{"shard": 0}]


def test_without_the_source_the_report_says_so(tmp_path: Path) -> None:
    source = write_source(tmp_path, random.Random(0))
    run = start(make_run(source, "plain", {}), tmp_path / "run", engine=InProcessEngine(), quiet=True)
    source.unlink()
    report = Run(tmp_path / "run").verify(sample=0, source=False)
    assert report.verified, report
    seen = {check.name: check.seen for check in report.checks}
    assert seen["contents"] == "not compared with the source: --no-source"
    assert seen["bindings"] == "60 rows are as the task returned them, each with its item"
    assert "source" not in seen
    assert run.plan.id == report.plan
