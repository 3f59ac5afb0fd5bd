"""Small files that follow one another share a shard, and every row still comes once, with its file and its line."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SourceError, StaleResume
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import start
from shardmill.run.planner import make_plan
from shardmill.run.status.shard import describe_shard
from shardmill.sources import discover, open_source
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.more_sources import as_arrow_file, as_arrow_stream, as_json, as_pickle
from tests.support.sources import FIELDS, Row, as_csv, as_jsonl, as_parquet, batch_rows, put, read_all, rows_strategy

Placed = tuple[int, int, Row, str | None]

KINDS: dict[str, tuple[str, Callable[[list[Row]], bytes]]] = {
    "jsonl": ("jsonl", lambda rows: as_jsonl(rows, "\n", final=True)),
    "jsonl without a newline at the end": ("jsonl", lambda rows: as_jsonl(rows, "\r\n", final=False)),
    "gzip": ("jsonl.gz", lambda rows: gzip.compress(as_jsonl(rows, "\n", final=True))),
    "csv": ("csv", lambda rows: as_csv(rows, "\n", final=True)),
    "parquet": ("parquet", lambda rows: as_parquet(rows, "", final=True)),
    "arrow file": ("arrow", as_arrow_file),
    "arrow stream": ("arrows", as_arrow_stream),
    "json": ("json", as_json),
    "pickle": ("pkl", as_pickle),
}


def placed_rows(place: list[str], target_bytes: int) -> list[Placed]:
    """Every row of a source with the number of its file, its line there, and why it is bad; lines by adding up."""
    source = open_source(discover(place, FIELDS), FIELDS)
    found: list[Placed] = []
    lines: dict[int, int] = {}
    for shard in source.shards(target_bytes):
        before = lines.get(shard.file, 0)
        for batch in source.read(shard):
            numbers = batch.files or [0] * len(batch)
            for i, row in enumerate(batch_rows(batch)):
                found.append((shard.file + numbers[i], before + batch.lines[i], row, batch.bad.get(i)))
            lines[shard.file] = lines.get(shard.file, 0) + batch.line_count
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.none() | rows_strategy.map(lambda rows: rows[:6]) | rows_strategy, min_size=1, max_size=8),
    target_bytes=st.integers(1, 6_000),
)
def test_grouped_files_read_as_each_alone(
    tmp_path: Path, kind: str, files: list[list[Row] | None], target_bytes: int
) -> None:
    files = [*files, [{"key": "last", "body": "x", "n": 1}]]
    suffix, write = KINDS[kind]
    root, places = str(tmp_path / uuid.uuid4().hex), []
    for i, rows in enumerate(files):
        put(root, f"{i}.{suffix}", b"" if rows is None else write(rows))
        places.append(f"{root}/{i}.{suffix}")
    alone = [
        (i, line, row, reason)
        for i, rows in enumerate(files)
        if rows is not None
        for _, line, row, reason in placed_rows([places[i]], 10**9)
    ]
    assert placed_rows(places, target_bytes) == alone
    assert [row for _, _, row, _ in alone] == read_all(discover(places, FIELDS), target_bytes)
    assert len(alone) == sum(len(rows) for rows in files if rows)


def test_many_small_files_are_few_shards(tmp_path: Path) -> None:
    put(str(tmp_path), "a.jsonl", as_jsonl([{"key": "k", "body": "x" * 2000, "n": 1}], "\n", final=True))
    stat = discover([str(tmp_path)], FIELDS)
    source = open_source(replace(stat, files=stat.files * 10_000), FIELDS)
    assert len(source.shards(1_800_000)) == 12
    # However little they hold, a thousand files are enough for one shard.
    assert len(source.shards(10**12)) == 10
    assert len(source.shards(1000)) == 30_000


def small_files(folder: Path, kind: str) -> tuple[Spec, list[list[Row]]]:
    """Files of one to three rows, some without rows, a larger one in between, and rows without text."""
    suffix, write = KINDS[kind]
    files: list[list[Row]] = [
        [{"key": f"{i}-{j}", "body": f"text {i} {j}", "n": i} for j in range(300 if i == 7 else i % 4)]
        for i in range(20)
    ]
    files[3][1]["body"] = files[5][0]["body"] = files[7][200]["body"] = files[18][1]["body"] = ""
    for i, rows in enumerate(files):
        put(str(folder), f"{i:02d}.{suffix}", write(rows) if rows or kind in ("csv", "parquet") else b"")
    work = {"source": str(folder), "text": "body", "id": "key", "keep": "n", "task": "shardmill.testing:FakeTask"}
    return make_spec(work, {"shard_bytes": 4_000, "max_errors": "100%"}), files


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_run_over_small_files_is_proved_and_its_errors_are_found(tmp_path: Path, kind: str) -> None:
    spec, files = small_files(tmp_path / "source", kind)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    grouped = [s for s in run.plan.shards if s.files > 1]
    assert len(grouped) >= 2
    assert len(run.plan.shards) < len(files) - 5
    rows = [row for each in files for row in each]
    table = run.table()
    assert table.column("key").to_pylist() == [row["key"] for row in rows]
    made = table.column("embedding").to_pylist()
    assert [v is None for v in made] == [not row["body"] for row in rows]
    assert made[0] == pytest.approx(fake_vector(str(rows[0]["body"])), abs=1e-6)

    first = {"jsonl": 1, "csv": 2, "parquet": 1}[kind]
    suffix = KINDS[kind][0]
    assert [(e["file"], e["line"], rows[e["row"]]["key"]) for e in run.errors()] == [
        (f"03.{suffix}", first + 1, "3-1"),
        (f"05.{suffix}", first, "5-0"),
        (f"07.{suffix}", first + 200, "7-200"),
        (f"18.{suffix}", first + 1, "18-1"),
    ]
    report = run.verify(sample=64)
    assert report.verified, [c for c in report.checks if not c.ok]
    assert describe_shard(run.ledger, run.plan, grouped[0].index)["files"] == grouped[0].files


def test_a_run_planned_with_a_shard_for_each_file_is_resumed_as_it_was(tmp_path: Path) -> None:
    spec, files = small_files(tmp_path / "source", "jsonl")
    new = make_plan(spec, [])
    alone = make_plan(make_spec(spec.work.model_dump(), {"shard_bytes": 1}), [])
    first = {s.file: s for s in reversed(alone.shards)}
    whole = [replace(s, start=0, stop=new.stat.files[f].size_bytes) for f, s in sorted(first.items())]
    old = Plan.of(new.work, new.stat, new.fingerprint, [replace(s, index=i) for i, s in enumerate(whole)])
    assert (old.id, old.to_json()["format"], new.to_json()["format"]) == (new.id, 2, 2)
    Ledger(tmp_path / "run").create(old)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert run.plan.shards == old.shards
    assert run.table().column("key").to_pylist() == [row["key"] for each in files for row in each]
    assert run.verify().verified


def test_a_file_that_changed_is_refused_in_a_group_too(tmp_path: Path) -> None:
    spec, _ = small_files(tmp_path / "source", "jsonl")
    plan = make_plan(spec, [])
    shard = next(s for s in plan.shards if s.files > 3)
    source, changed = open_source(plan.stat, FIELDS), tmp_path / "source" / f"{shard.file + 2:02d}.jsonl"
    was = os.stat(changed)
    changed.write_bytes(changed.read_bytes()[:-2] + b" }")
    with pytest.raises(StaleResume, match=f"{changed.name} changed during the run"):
        list(source.read(shard))
    os.utime(changed, ns=(was.st_atime_ns, was.st_mtime_ns))
    changed.unlink()
    with pytest.raises(SourceError, match="is gone"):
        list(source.read(shard))


def test_a_plan_of_groups_has_a_format_that_earlier_versions_refuse(tmp_path: Path) -> None:
    spec, _ = small_files(tmp_path / "source", "jsonl")
    plan = make_plan(spec, [])
    raw = json.loads(plan.encode())
    assert Plan.from_json(plan.encode()) == plan
    # Version 0.1.0 reads format 1 only, and says so; it would take a group for a piece of its first file.
    assert raw["format"] == 2
    assert {len(row) for row in raw["shards"]} == {4, 7}
    moved = plan.relocated({"places": [f"/elsewhere/{i}" for i in range(len(plan.stat.files))]})
    assert moved.shards == plan.shards
