"""A store that refuses, for want of a bucket, a permission or credentials; and objects that change under way."""

from __future__ import annotations

import gzip
import json
import random
import socket
from collections.abc import Callable

import pytest

from shardmill.core.errors import ShardmillError, SourceError, StaleResume, StoreError
from shardmill.run import Run, start
from shardmill.run.status.runs import list_runs
from shardmill.sources import Fields, discover, open_source
from shardmill.store import open_store
from shardmill.testing import InProcessEngine
from shardmill.watch.monitor.watcher import Watcher
from tests.support.badline import BadLine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import wait_for

pytestmark = pytest.mark.services

ROWS = fake_rows(60)
DATA = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def _put_source(folder: str, data: bytes = DATA) -> None:
    open_store(f"{folder}/source").put("items.jsonl", data)


def _start(folder: str, on_step: Callable[[str, int], None] = lambda step, shard: None) -> Run:
    spec = fake_spec(f"{folder}/source/items.jsonl", shard_bytes=1_000, lease_s=1.0)
    return start(spec, f"{folder}/run", engine=InProcessEngine(on_step=on_step))


def _once(step: str, action: Callable[[], object]) -> Callable[[str, int], None]:
    """Do something when a step is reached for the first time."""
    left = [action]

    def hook(reached: str, shard: int) -> None:
        if reached == step and left:
            left.pop()()

    return hook


def assert_complete(run: Run) -> None:
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in ROWS]
    assert run.verify().verified


def test_no_permission(line: BadLine, folder: str) -> None:
    _put_source(folder)
    line.fault = lambda method, path: "403 AccessDenied" if "items.jsonl" in path else ""
    with pytest.raises(StoreError, match=r"items\.jsonl: access is denied") as caught:
        _start(folder)
    assert "AWS_REQUEST_PAYER" in caught.value.hint
    assert not caught.value.retryable
    assert sum(line.seen.values()) < 10


def test_no_permission_to_write(line: BadLine, folder: str) -> None:
    _put_source(folder)
    line.fault = lambda method, path: "403 AccessDenied" if method == "PUT" else ""
    with pytest.raises(StoreError, match=r"plan\.json: access is denied \(AccessDenied\)"):
        _start(folder)
    line.fault = lambda method, path: ""
    assert_complete(_start(folder))


def test_keys_that_the_store_does_not_know(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=r"does not accept the credentials \(SignatureDoesNotMatch\)"):
        list(open_store(folder).list())
    with pytest.raises(StoreError, match="access is denied") as caught:
        discover([f"{folder}/items.jsonl"], Fields("text"))
    assert "expired" in caught.value.hint


def test_a_bucket_that_does_not_exist(s3_server: str) -> None:
    for ask in (
        lambda: discover(["s3://no-such-bucket/items.jsonl"], Fields("text")),
        lambda: discover(["s3://no-such-bucket/data/*.jsonl"], Fields("text")),
        lambda: Run("s3://no-such-bucket/run"),
    ):
        with pytest.raises(StoreError, match="s3://no-such-bucket: no such bucket") as caught:
            ask()
        assert "AWS_ENDPOINT_URL" in caught.value.hint


def test_a_bucket_in_another_region(line: BadLine, folder: str) -> None:
    line.fault = lambda method, path: "301 PermanentRedirect"
    with pytest.raises(StoreError, match="s3://shardmill: the bucket is in another region") as caught:
        _start(folder)
    assert "AWS_REGION" in caught.value.hint


@pytest.mark.parametrize("answers", [False, True])
def test_no_credentials_are_noticed_in_seconds(
    line: BadLine, folder: str, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Nobody answers where a cloud machine would give credentials out, or one who has none."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    line.fault = lambda method, path: "404 NotFound"
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", line.url if answers else address)
    with pytest.raises(StoreError, match="no credentials were found") as caught:
        _start(folder)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert "AWS_SKIP_SIGNATURE" in caught.value.hint


@pytest.mark.parametrize("answer", ["400 ExpiredToken", "403 InvalidAccessKeyId", "403 AccessDenied"])
def test_credentials_that_end_under_way(line: BadLine, folder: str, answer: str) -> None:
    _put_source(folder)

    def expire() -> None:
        line.fault = lambda method, path: answer

    with pytest.raises(StoreError) as caught:
        _start(folder, _once("committed", expire))
    assert not caught.value.retryable
    assert "credentials" in str(caught.value)
    line.fault = lambda method, path: ""
    assert 0 < len(Run(f"{folder}/run").ledger.commits.shards()) < len(Run(f"{folder}/run").plan.shards)
    assert_complete(_start(folder))


def test_credentials_that_end_under_real_workers(line: BadLine, folder: str) -> None:
    _put_source(folder)
    spec = fake_spec(f"{folder}/source/items.jsonl", shard_bytes=1_000, workers=1, lease_s=1.0, params={"delay_s": 0.3})
    line.fault = lambda method, path: "400 ExpiredToken" if line.seen[""] > 60 else ""
    with pytest.raises(ShardmillError, match=r"the credentials have expired \(ExpiredToken\)") as caught:
        start(spec, f"{folder}/run")
    assert "it resumes" in caught.value.hint
    line.fault = lambda method, path: ""
    run = start(spec, f"{folder}/run")
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in ROWS]


def test_an_object_written_anew_under_way_is_found_out_though_its_size_is_the_same(folder: str) -> None:
    _put_source(folder)
    other = DATA.replace(b"text", b"TEXT", 60).replace(b'"TEXT":', b'"text":')
    assert len(other) == len(DATA)
    with pytest.raises(StaleResume, match=r"items\.jsonl changed during the run") as caught:
        _start(folder, _once("committed", lambda: _put_source(folder, other)))
    assert "--fresh" in caught.value.hint
    with pytest.raises(StaleResume, match="holds a different run"):
        _start(folder)
    _put_source(folder)
    assert_complete(_start(folder))


def test_an_object_deleted_under_way_is_missed_and_resumed_when_it_is_back(folder: str) -> None:
    _put_source(folder)
    gone = _once("committed", lambda: open_store(f"{folder}/source").delete("items.jsonl"))
    with pytest.raises(SourceError, match=r"items\.jsonl is gone") as caught:
        _start(folder, gone)
    assert "it resumes" in caught.value.hint
    _put_source(folder)
    assert_complete(_start(folder))


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv"])
def test_no_shard_mixes_two_versions_of_an_object(folder: str, kind: str) -> None:
    """The object changes between two range reads of one shard."""
    draw = random.Random(5)
    body = "".join(f'{{"text": "{draw.randbytes(900).hex()}"}}\n' for _ in range(6000)).encode()
    if kind == "csv":
        body = body.replace(b'{"text": "', b"").replace(b'"}', b"")
        body = b"text\n" + body
    data = gzip.compress(body, 1) if kind == "jsonl.gz" else body
    store = open_store(folder)
    store.put(f"items.{kind}", data)
    source = open_source(discover([f"{folder}/items.{kind}"], Fields("text")), Fields("text"))
    batches = source.read(source.shards(1 << 30)[0])
    next(batches)
    store.put(f"items.{kind}", data[:-100] + b" " * 99 + b"\n")
    with pytest.raises(StaleResume, match="it was overwritten"):
        list(batches)


def test_runs_that_may_not_be_read_are_told_in_one_line(line: BadLine, folder: str) -> None:
    _put_source(folder)
    _start(folder)
    with Watcher(folder) as watcher:
        (seen,) = [run for run in watcher.runs() if run.status is not None]
        line.fault = lambda method, path: "403 AccessDenied"
        wait_for(lambda: watcher.run(seen.key).trouble)
        now = watcher.run(seen.key)
        assert now is not None
        assert "access is denied" in now.trouble
        assert now.status is not None, "the last that could be read stays"
    for look in (lambda: Watcher(folder).start(), lambda: list_runs(folder), lambda: Run(f"{folder}/run").status()):
        with pytest.raises(StoreError, match="access is denied") as caught:
            look()
        assert "\n" not in caught.value.message
