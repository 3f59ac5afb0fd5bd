"""A run as a trace, in a real collector: from several processes, and without any cost when it is off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill import Run
from shardmill.core.telemetry import MOST_SHARDS, RunTrace, trace_ids
from tests.support.cli import process, write_spec
from tests.support.libraries import needed
from tests.support.otlp import OtlpCollector, otlp_collector

needed("opentelemetry.exporter.otlp.proto.http")

pytestmark = pytest.mark.services


def test_a_run_is_one_trace_of_all_who_work_on_it(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl([{"id": str(i), "text": f"some words {i}"} for i in range(300)])
    spec, out = write_spec(tmp_path, source), tmp_path / "run"
    with otlp_collector(tmp_path / "spans.jsonl") as collector:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        merge = f"merge:{tmp_path / 'all.parquet'}"
        then = ("--then", "verify", "--then", merge)
        done = process("run", "--spec", spec, "--out", out, "--workers", 2, *then, env=environment)
        assert done.status == 0, done.err
        spans = collector.spans()
    plan = Run(out).plan
    trace, root = trace_ids(plan.id, plan.generation)
    assert {span["trace"] for span in spans} == {f"{trace:032x}"}
    names = Counter(span["name"] for span in spans)
    assert names == {"run": 1, "plan": 1, "shard": len(plan.shards), "sweep": 1, "verify": 1, "merge": 1}
    (run,) = (span for span in spans if span["name"] == "run")
    assert (run["id"], run["parent"]) == (f"{root:016x}", "")
    for span in spans:
        assert span is run or span["parent"] == run["id"]
        assert run["began"] <= span["began"] <= span["ended"] <= run["ended"]
        assert span["resource"]["service.name"] == "shardmill"
    shards = [span["attributes"] for span in spans if span["name"] == "shard"]
    assert sorted(shard["shardmill.shard"] for shard in shards) == [s.index for s in plan.shards]
    assert sum(shard["shardmill.rows"] for shard in shards) == 300


def test_a_run_that_fails_is_a_trace_too_and_one_that_is_resumed_a_longer_one(
    tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    source = write_jsonl([{"id": str(i), "text": "!nan" if i % 2 else f"some words {i}"} for i in range(40)])
    spec, out = write_spec(tmp_path, source), tmp_path / "run"
    (taken := tmp_path / "taken.parquet").mkdir()
    with otlp_collector(tmp_path / "spans.jsonl") as collector:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        limited = ("run", "--spec", spec, "--out", out, "--workers", 1, "--max-errors")
        assert process(*limited, 3, env=environment).status == 1
        first = roots(collector)
        assert process(*limited, "90%", "--then", f"merge:{taken}", env=environment).status == 1
        second = roots(collector)[1:]
        assert process(*limited, "90%", "--then", "verify", env=environment).status == 0
        third = roots(collector)[2:]
        spans = collector.spans()
    plan = Run(out).plan
    assert ["rows failed" in span["failed"] for span in first] == [True]
    assert [span["failed"].partition(":")[0] for span in second] == ["merge"]
    assert [span["failed"] for span in third] == [""]
    assert [span["attributes"]["shardmill.state"] for span in (*first, *third)] == ["failed", "done"]
    trace, root = trace_ids(plan.id, plan.generation)
    told = [*first, *second, *third]
    assert {(span["trace"], span["id"]) for span in told} == {(f"{trace:032x}", f"{root:016x}")}
    assert {span["began"] for span in told} == {first[0]["began"]}
    assert third[0]["ended"] >= max(span["ended"] for span in spans)


def test_a_run_that_is_stopped_is_a_trace_too(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    spec, out = write_spec(tmp_path, write_jsonl([{"id": "1", "text": "some words"}])), tmp_path / "run"
    with otlp_collector(tmp_path / "spans.jsonl") as collector:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        assert process("plan", "--spec", spec, "--out", out, env=environment).status == 0
        for _ in range(2):
            assert process("stop", out, env=environment).status == 0
        (run,) = roots(collector)
    assert (run["failed"], run["attributes"]["shardmill.state"]) == ("", "stopped")


def roots(collector: OtlpCollector) -> list[dict[str, Any]]:
    return [span for span in collector.spans() if span["name"] == "run"]


def test_many_shards_have_a_bounded_number_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(RunTrace, "add", lambda self, name, *_, **more: sent.append(name))
    trace = RunTrace(None, "p", "g")  # type: ignore[arg-type]
    for shard in range(100_000):
        trace.add_shard(shard, 100_000, 0.0, 1.0)
    assert len(sent) == MOST_SHARDS


OFF = """
import sys
import shardmill.run, shardmill.worker, shardmill.cli
from shardmill.core.telemetry import open_trace, timed_step
assert open_trace("p", "g") is None
with timed_step("p", "g", "verify"):
    pass
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
AWAY = """
from shardmill.core.telemetry import open_trace
open_trace("p", "g").add("shard", 1.0, 2.0, rows=3)
print("done")
"""


def call(code: str, **variables: str) -> str:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**bare, **variables}).stdout


def test_without_an_endpoint_nothing_is_imported() -> None:
    call(OFF)


def test_a_collector_that_is_away_stops_nothing() -> None:
    assert call(AWAY, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") == "done\n"
