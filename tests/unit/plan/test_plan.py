"""A plan is a pure function of work and source: the same gives the same, and what changed can be said."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import ShardmillError
from shardmill.plan import Plan, shard_target_bytes
from shardmill.plan.spec import make_spec
from shardmill.run.changes import differences
from shardmill.run.planner import make_plan
from shardmill.testing import FakeTask
from tests.support.corpora import fake_rows

CPU = Device("cpu", "cpu")
GPU = Device("cuda", "H200")
MIB = 1 << 20


@pytest.fixture
def source(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl([{**row, "n": 1, "title": row["text"]} for row in fake_rows(100)])


def _plan(source: Path, execution: dict[str, Any] | None = None, **work: Any) -> Plan:
    settings = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask", **work}
    return make_plan(make_spec(settings, {"shard_bytes": 2_000, **(execution or {})}), [CPU])


def test_the_same_spec_and_source_give_the_same_plan(source: Path) -> None:
    assert _plan(source) == _plan(source)
    assert _plan(source).encode() == _plan(source).encode()


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"text": "title"}, "text was 'text' and is 'title'"),
    ({"id": "n"}, r"id was \['id'\] and is \['n'\]"),
    ({"keep": "n"}, r"keep was \[\] and is \['n'\]"),
    ({"params": {"dims": 4}}, "dims was None and is 4"),
    ({"params": {"version": "2"}}, "the model's weights changed"),
    ({"max_item_bytes": 4096}, "max_item_bytes was"),
]


@pytest.mark.parametrize(("work", "said"), CHANGES)
def test_other_work_has_another_id_and_says_what_changed(source: Path, work: dict[str, Any], said: str) -> None:
    old, new = _plan(source), _plan(source, **work)
    assert old.id != new.id
    assert differences(old, old) == []
    _match(said, differences(old, new))


def test_of_another_task_no_more_is_said_than_its_name_and_its_source(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    shutil.copy(source, other)
    drawn = _plan(other, task="shardmill.testing:FakeStream", text="title")
    assert differences(_plan(source), drawn) == [
        "the task was 'shardmill.testing:FakeTask' and is 'shardmill.testing:FakeStream'",
        "the source had items.jsonl and has other.jsonl",
    ]


def _match(said: str, changes: list[str]) -> None:
    assert re.search(said, "; ".join(changes)), changes


def _rewrite(source: Path) -> None:
    """The same length, other words."""
    source.write_text(source.read_text().replace("text 7 ", "text 8 "))


def _grow(source: Path) -> None:
    with source.open("a") as file:
        file.write('{"id": "new", "text": "more", "n": 1, "title": "t"}\n')


@pytest.mark.parametrize(
    ("change", "said"), [(_grow, r"items.jsonl had [\d,]+ bytes and has"), (_rewrite, "items.jsonl was written again")]
)
def test_a_changed_source_has_another_id_and_says_so(source: Path, change: Callable[[Path], None], said: str) -> None:
    old = _plan(source)
    change(source)
    assert _plan(source).id != old.id
    _match(said, differences(old, _plan(source)))


def test_an_edit_that_keeps_size_and_time_is_seen_at_the_edges(source: Path) -> None:
    old, seen = _plan(source), source.stat()
    _rewrite(source)
    os.utime(source, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert _plan(source).id != old.id


def test_another_file_beside_the_first_is_a_change(source: Path) -> None:
    old = _plan(source.parent)
    shutil.copy(source, source.parent / "more.jsonl")
    _match("the source had items.jsonl and has items.jsonl, more.jsonl", differences(old, _plan(source.parent)))


def test_where_the_source_lies_does_not_matter(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy2(source, tmp_path / "elsewhere")
    assert _plan(Path(moved)).id == _plan(source).id
    assert differences(_plan(source), _plan(Path(moved))) == []


def test_how_it_is_executed_does_not_matter(source: Path) -> None:
    one = _plan(source)
    other = _plan(source, {"workers": 7, "batch_tokens": 10, "max_errors": "5", "lease_s": 1.0, "shard_bytes": 500})
    assert one.id == other.id
    assert len(one.shards) < len(other.shards)
    assert differences(one, other) == []


def test_a_column_whose_type_was_found_differently_is_a_change(source: Path) -> None:
    old = _plan(source, keep="n")
    stat = replace(old.stat, columns={"id": "string", "n": "double"})
    new = Plan.of(old.work, stat, old.fingerprint, old.shards)
    assert old.id != new.id
    _match("the types of the columns were .*int64.* and are .*double", differences(old, new))


def test_json_keeps_everything_and_the_order_of_columns(source: Path) -> None:
    plan = _plan(source, keep="title,n")
    copy = Plan.from_json(plan.encode())
    assert copy == plan
    assert list(copy.stat.columns) == list(plan.stat.columns) == ["id", "title", "n"]


def test_a_plan_of_another_format_is_refused(source: Path) -> None:
    raw = {**_plan(source).to_json(), "format": 99}
    with pytest.raises(ShardmillError, match=r"has format 99; this version reads formats 1 to 3"):
        Plan.from_json(json.dumps(raw))


def test_shards_tile_the_source(source: Path) -> None:
    shards = _plan(source).shards
    assert len(shards) > 3
    assert [s.index for s in shards] == list(range(len(shards)))
    assert sum(s.weight_bytes for s in shards) == source.stat().st_size


@pytest.mark.parametrize(
    ("total", "workers", "low", "high"),
    [
        (1_000, [CPU], 64 << 10, 64 << 10),
        (100 * MIB, [CPU], MIB, 2 * MIB),
        (100 * MIB, [GPU], 12 * MIB, 13 * MIB),
        (10_000 * MIB, [GPU], 100 * MIB, 200 * MIB),
        (100 * MIB, [GPU] * 8, MIB, 2 * MIB),
        (10_000 * MIB, [GPU, CPU], MIB, 2 * MIB),
    ],
)
def test_a_shard_is_a_minute_or_two_of_work_and_every_worker_has_several(
    total: int, workers: list[Device], low: int, high: int
) -> None:
    assert low <= shard_target_bytes(total, [FakeTask().bytes_per_s(w.kind) for w in workers]) <= high


def test_dear_work_is_cut_small_and_long_work_finely() -> None:
    """64 GPUs that make 4 kB of prompts a second, each; and 100 GB of prompts."""
    assert 10**6 / shard_target_bytes(10**6, [4_000.0] * 64) >= 64
    assert shard_target_bytes(10**11, [200.0]) <= 900 * 200


@pytest.mark.parametrize("rate", [1.0, 20_000.0, 2e9])
def test_shards_are_never_too_many_to_list(rate: float) -> None:
    assert 10**15 / shard_target_bytes(10**15, [rate]) <= 1_000_001
