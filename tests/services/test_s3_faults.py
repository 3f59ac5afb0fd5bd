"""An S3 server behind a bad line: answers that are lost, refused or late. Loopback only."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from shardmill.run import Run, start
from shardmill.store import open_store
from shardmill.testing import InProcessEngine, fake_vector
from tests.conftest import fake_rows, fake_spec
from tests.services.badline import BadLine, first_time

pytestmark = pytest.mark.services

ROWS = fake_rows(60)


@pytest.fixture
def line(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadLine]:
    line = BadLine(os.environ["AWS_ENDPOINT_URL"])
    thread = threading.Thread(target=line.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", line.url)
    yield line
    line.shutdown()
    line.server_close()
    thread.join(10)


@pytest.fixture
def folder(s3_server: str) -> str:
    return f"{s3_server}/{uuid.uuid4().hex}"


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


def _run(folder: str) -> Run:
    """Source, run and proof, all through the line."""
    open_store(f"{folder}/source").put("items.jsonl", "".join(json.dumps(r) + "\n" for r in ROWS).encode())
    return start(
        fake_spec(f"{folder}/source/items.jsonl", shard_bytes=1_000), f"{folder}/run", engine=InProcessEngine()
    )


def assert_exactly_once(run: Run) -> None:
    table = run.table()
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    vectors = np.stack(table.column("embedding").to_numpy(zero_copy_only=False))
    assert np.array_equal(vectors, np.stack([fake_vector(row["text"]) for row in ROWS]))
    report = run.verify()
    assert report.verified, report
    parts = sorted(e.key for e in run.ledger.store.list("parts/"))
    assert parts == sorted(c.part for c in run.ledger.commits().values())


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
