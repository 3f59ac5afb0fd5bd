"""An S3 server behind a bad line: answers that are lost, refused or late. Loopback only."""

from __future__ import annotations

import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import StoreError
from shardmill.run import Run, start
from shardmill.store import clients, open_store
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.badline import BadLine, first_time, now_and_then
from tests.support.corpora import fake_rows, fake_spec

pytestmark = pytest.mark.services

ROWS = fake_rows(60)


def _is_commit(method: str, path: str) -> bool:
    return method == "PUT" and "/commits/" in path


def test_a_write_whose_answer_was_lost_is_known_as_our_own(line: BadLine, folder: str) -> None:
    line.fault = first_time("lost answer", _is_commit)
    store = open_store(folder)
    assert store.put_if_absent("commits/000000.json", b"ours")
    assert line.seen["lost answer"] == 1
    assert store.get("commits/000000.json") == b"ours"


def test_a_write_that_came_second_is_not_ours_though_the_answer_was_lost(line: BadLine, folder: str) -> None:
    store = open_store(folder)
    store.put("commits/000000.json", b"theirs")
    line.fault = first_time("lost answer", _is_commit)
    assert not store.put_if_absent("commits/000000.json", b"ours")
    assert line.seen["lost answer"] == 1
    assert store.get("commits/000000.json") == b"theirs"


def _source(kind: str) -> bytes:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if kind == "jsonl.gz":
        return gzip.compress(lines)
    if kind == "csv":
        return "".join(["id,text\n", *(f"{row['id']},{row['text']}\n" for row in ROWS)]).encode()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), out := io.BytesIO(), row_group_size=10)
        return out.getvalue()
    return lines


def _run(folder: str, kind: str = "jsonl") -> Run:
    """Source, run and proof, all through the line."""
    open_store(f"{folder}/source").put(f"items.{kind}", _source(kind))
    return start(fake_spec(f"{folder}/source", shard_bytes=1_000), f"{folder}/run", engine=InProcessEngine())


def assert_exactly_once(run: Run) -> None:
    table = run.table()
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    vectors = np.stack(table.column("embedding").to_numpy(zero_copy_only=False))
    assert np.array_equal(vectors, np.stack([fake_vector(row["text"]) for row in ROWS]))
    report = run.verify()
    assert report.verified, report
    parts = sorted(e.key for e in run.ledger.store.list("parts/"))
    assert parts == sorted(c.part for c in run.ledger.commits.read().values())


def test_a_run_is_whole_though_the_answer_to_every_commit_was_lost(line: BadLine, folder: str) -> None:
    line.fault = first_time("lost answer", _is_commit)
    run = _run(folder)
    assert line.seen["lost answer"] == len(run.plan.shards) > 2
    assert_exactly_once(run)


def test_a_run_is_whole_though_parts_and_commits_had_to_be_sent_twice(line: BadLine, folder: str) -> None:
    line.fault = first_time("lost request", lambda method, path: _is_commit(method, path) or "/parts/" in path)
    run = _run(folder)
    assert line.seen["lost request"] >= 2 * len(run.plan.shards)
    assert_exactly_once(run)


def test_a_run_is_whole_though_the_server_is_busy_now_and_then(line: BadLine, folder: str) -> None:
    line.fault = first_time("503 SlowDown", lambda method, path: "/parts/" in path or "/commits/" in path)
    run = _run(folder)
    assert line.seen["503 SlowDown"] >= 2 * len(run.plan.shards)
    assert_exactly_once(run)


def test_a_run_is_whole_though_answers_are_late(line: BadLine, folder: str) -> None:
    line.fault = lambda method, path: "late" if method == "PUT" else ""
    run = _run(folder)
    assert line.seen["late"] > len(run.plan.shards)
    assert_exactly_once(run)


@pytest.mark.parametrize("fault", ["reset", "torn", "cut", "short", "stall", "500 InternalError"])
def test_a_run_is_whole_though_every_first_answer_is_broken(line: BadLine, folder: str, fault: str) -> None:
    """What is read and what is listed: the source, commits, parts."""
    at = ("/source/",) if fault == "stall" else ("/source/", "list-type=2", "/parts/")
    line.fault = first_time(fault, lambda method, path: method == "GET" and any(part in path for part in at))
    run = _run(folder)
    assert line.seen[fault] >= 2
    assert_exactly_once(run)


FAULTS = ["lost request", "reset", "torn", "cut", "short", "stall", "500 InternalError", "503 SlowDown"]


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(["jsonl", "jsonl.gz", "csv", "parquet"])))
def test_a_run_is_whole_on_a_line_that_fails_now_and_then(line: BadLine, folder: str, seed: int, kind: str) -> None:
    line.fault = now_and_then(seed, FAULTS, 0.2)
    run = _run(folder, kind)
    assert sum(line.seen[fault] for fault in FAULTS) > 10
    line.fault = lambda method, path: ""
    assert_exactly_once(run)


def test_a_store_that_never_answers_is_given_up(line: BadLine, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "RETRIES", 1)
    monkeypatch.setattr(clients, "RETRY_S", 1)
    store = open_store(folder)
    store.put("items", b"1234")
    line.fault = lambda method, path: "stall"
    with pytest.raises(StoreError, match="response body error") as caught:
        store.get_range("items", 0, 4)
    assert caught.value.retryable
