"""A death costs the rows since the last kept ones, and no kept piece is believed that could be wrong."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Claim, Ledger, Suspects
from shardmill.plan.spec import make_spec
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.sinks import keeping
from shardmill.sinks.keeping import Keeper
from shardmill.sinks.parquet import ParquetSink
from shardmill.sources import batches, kept_schema
from shardmill.tasks import open_task
from shardmill.testing import KEEPING_STEPS, STEPS, crash_at, crash_somewhere
from shardmill.worker import Worker, block
from shardmill.worker.runner import Runner
from tests.support.corpora import fake_rows, fake_spec
from tests.support.counting import CountingStore
from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S

processes = Forking()

Hook = Callable[[str, int], None]
# Every fifth text is bad, in one of three ways.
BAD = ("!nan", "!raise", "")
ROWS = [{**row, "text": row["text"] + BAD[i % 3] if i % 5 == 2 else row["text"]} for i, row in enumerate(fake_rows(40))]
SETTINGS = {"shard_bytes": 1_000, "batch_tokens": 400, "max_restarts": 100}


def _make_rows_dear() -> None:
    """Blocks of four rows, each of which is kept at once."""
    keeping.KEEP_EVERY_S, batches.BATCH_ROWS = 0.0, 4


def _place(run: Path, source: Path | str, params: dict[str, Any] | None = None, **more: Any) -> Ledger:
    spec = fake_spec(source, params=params, **{**SETTINGS, **more})
    ledger = Ledger(run)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger


def _work(run: Any, hook: Hook = lambda step, shard: None) -> Worker:
    worker = Worker(Ledger(run), device=Device("cpu", "cpu"), on_step=hook)
    worker.work()
    return worker


def _work_dear(run: str, step: str, after: int) -> None:
    _make_rows_dear()
    _work(run, crash_at(step, after))


def _work_dear_seeded(run: str, seed: int) -> None:
    _make_rows_dear()
    _work(run, crash_somewhere(seed, (*STEPS, *KEEPING_STEPS, *KEEPING_STEPS)))


def _end(target: Callable[..., None], *args: Any) -> int:
    process = processes.Process(target=target, args=args)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode is not None, "the worker hangs"
    return int(process.exitcode)


def _kept(ledger: Ledger) -> list[str]:
    return [entry.key for entry in ledger.store.list("kept/")]


class _Dead(Exception):
    pass


def _dying(step: str, after: int = 0) -> Hook:
    seen = 0

    def hook(reached: str, shard: int) -> None:
        nonlocal seen
        seen += reached == step
        if reached == step and seen > after:
            raise _Dead

    return hook


def _die(run: Any, step: str = "kept", after: int = 0) -> None:
    with pytest.raises(_Dead):
        _work(run, _dying(step, after))


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEEP_EVERY_S", 0.0)
    monkeypatch.setattr(batches, "BATCH_ROWS", 4)


@pytest.fixture
def source(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(ROWS)


@pytest.fixture
def plain(tmp_path: Path, source: Path) -> Callable[..., None]:
    """Compares a run with one of the same source that nobody disturbed."""

    def check(run: Path, **params: Any) -> None:
        undisturbed = _place(tmp_path / "plain", source, params)
        _work(undisturbed.url)
        found, wanted = Run(run), Run(tmp_path / "plain")
        assert found.table().equals(wanted.table())
        assert [*found.errors()] == [*wanted.errors()]
        assert found.verify(sample=8).verified
        for one, other in zip(found.ledger.commits.read_complete(found.plan), _commits(wanted), strict=True):
            for name in ("rows", "lines", "errors", "tokens", "tokens_out", "truncated", "inputs", "part_rows"):
                assert getattr(one, name) == getattr(other, name), name
        found.ledger.sweep()
        assert _kept(found.ledger) == []

    return check


def _commits(run: Run) -> list[Any]:
    return run.ledger.commits.read_complete(run.plan)


@pytest.fixture
def ledger(tmp_path: Path, source: Path) -> Ledger:
    return _place(tmp_path / "run", source)


@pytest.mark.parametrize("step", [*KEEPING_STEPS, "staged"])
def test_a_worker_that_keeps_rows_is_killed_at_each_step(step: str, ledger: Ledger, tmp_path: Path, plain: Any) -> None:
    assert _end(_work_dear, ledger.url, step, 2) == -signal.SIGKILL
    assert _end(_work_dear, ledger.url, "never", 0) == 0
    plain(tmp_path / "run")


def test_many_kills_at_seeded_moments(ledger: Ledger, tmp_path: Path, plain: Any) -> None:
    choose = random.Random(16)
    for _ in range(6):
        _end(_work_dear_seeded, ledger.url, choose.randrange(1 << 30))
    assert _end(_work_dear, ledger.url, "never", 0) == 0
    plain(tmp_path / "run")


@pytest.mark.usefixtures("dear")
@pytest.mark.parametrize("params", [{}, {"window": 7}, {"window": 7, "mean": True}], ids=["rows", "windows", "mean"])
def test_the_next_attempt_goes_on_after_what_was_kept(
    params: dict[str, Any], tmp_path: Path, source: Path, plain: Any
) -> None:
    ledger = _place(tmp_path / "run", source, params)
    _die(ledger.url, after=2)
    assert len(_kept(ledger)) == 3
    bytes_run: list[int] = []
    worker = Worker(Ledger(ledger.url), device=Device("cpu", "cpu"))
    worker.on_step = lambda step, shard: bytes_run.append(worker._shards[shard].bytes_run) if step == "staged" else None
    worker.work()
    # kept rows count as done in the progress
    assert bytes_run[0] >= 0.9 * ledger.plan().shards[0].weight_bytes
    assert worker._tally.rows == len(ROWS) - 12
    assert _kept(ledger) == []
    plain(tmp_path / "run", **params)


@pytest.mark.usefixtures("dear")
def test_a_shard_that_was_kept_to_its_end_is_only_committed(ledger: Ledger, tmp_path: Path, plain: Any) -> None:
    _die(ledger.url, "staging")
    before = len(_kept(ledger))
    assert _work(ledger.url)._tally.rows <= len(ROWS) - 4 * (before - 1)
    plain(tmp_path / "run")


def _flip(ledger: Ledger, key: str) -> None:
    content = bytearray(ledger.store.get(key))
    content[-40] ^= 1
    ledger.store.put(key, bytes(content))


def _cut(ledger: Ledger, key: str) -> None:
    ledger.store.put(key, ledger.store.get(key)[:50])


def _rewrite(change: dict[str, Any]) -> Callable[[Ledger, str], None]:
    """Another content with a right digest, as a folder may have that somebody else wrote."""

    def rewrite(ledger: Ledger, key: str) -> None:
        head, _, data = ledger.store.get(key)[64:].partition(b"\n")
        body = json.dumps(json.loads(head) | change).encode() + b"\n" + (b"" if "cut" in change else data)
        ledger.store.put(key, hashlib.sha256(body).hexdigest().encode() + body)

    return rewrite


WRONG: dict[str, Callable[[Ledger, str], None]] = {
    "a bit": _flip,
    "cut": _cut,
    "gone": lambda ledger, key: ledger.store.delete(key),
    "plan": _rewrite({"plan": "another"}),
    "precision": _rewrite({"numerics": {"precision": "bfloat16"}}),
    "shard": _rewrite({"shard": 3}),
    "rows": _rewrite({"part_rows": 3}),
    "counts": _rewrite({"counts": {}}),
    "negative": _rewrite({"counts": {"inputs": 0, "tokens": -1, "tokens_out": 0, "truncated": 0}}),
    "errors": _rewrite({"errors": [{"row_in_shard": 99}]}),
    "no rows": _rewrite({"cut": True}),
    "nonsense": lambda ledger, key: ledger.store.put(key, hashlib.sha256(b"x").hexdigest().encode() + b"x"),
}


@pytest.mark.usefixtures("dear")
def test_a_piece_that_could_be_wrong_is_passed_over(ledger: Ledger, tmp_path: Path, plain: Any) -> None:
    _die(ledger.url, after=1)
    _, second = _kept(ledger)
    right, plan = ledger.store.get(second), ledger.plan()
    output = open_task(plan.work.task, plan.work.params).output
    sink = ParquetSink(ledger, kept_schema(plan), output, Keeper(ledger.kept, plan, {}))

    def count_taken_back() -> int:
        staged = sink.begin(Claim(0, "again"))
        staged.abandon()
        return staged.done

    assert count_taken_back() == 8
    for name, spoil in WRONG.items():
        spoil(ledger, second)
        assert count_taken_back() == 4, name
        ledger.store.put(second, right)
    WRONG["plan"](ledger, second)
    assert _work(ledger.url)._tally.rows == len(ROWS) - 4
    plain(tmp_path / "run")


@pytest.mark.usefixtures("dear")
def test_pieces_of_another_generation_and_of_no_shard_are_not_looked_at(ledger: Ledger) -> None:
    _die(ledger.url, after=1)
    first, _ = _kept(ledger)
    ledger.store.put("kept/000000.zzzzzzzz.000000000.000000004.abc", ledger.store.get(first))
    ledger.store.put(f"kept/000000.{ledger.plan().generation}.nonsense", b"")
    assert _work(ledger.url)._tally.rows == len(ROWS) - 8
    plan = ledger.plan()
    ledger.start_over(plan)
    assert _kept(ledger) == []


@pytest.mark.usefixtures("dear")
def test_two_attempts_at_one_shard_keep_beside_each_other(ledger: Ledger, tmp_path: Path, plain: Any) -> None:
    """The shadow cuts the shard at other rows; what follows the longest chain is done by the third."""
    _die(ledger.url, after=2)
    batches.BATCH_ROWS = 3

    class Blind(Ledger):
        def claim(self, worker: str, shards: int, **settings: Any) -> Claim:
            return Claim(0, "shadow", shadow=True)

    worker = Worker(Blind(ledger.url), device=Device("cpu", "cpu"), on_step=_dying("kept", 0))
    with pytest.raises(_Dead):
        worker.work()
    pieces = ledger.kept.find(0)
    assert pieces[-1].first_row == 12
    assert pieces[-1].key.endswith(".shadow")
    assert _work(ledger.url)._tally.rows == len(ROWS) - pieces[-1].stop
    plain(tmp_path / "run")


@pytest.mark.usefixtures("dear")
def test_a_query_keeps_nothing_since_its_rows_may_change(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "items.db") as database:
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO items VALUES (?, ?)", enumerate(row["text"] for row in ROWS))
    database.close()
    ledger = _place(tmp_path / "run", f"sqlite:///{tmp_path}/items.db", query="SELECT id, text FROM items")
    _die(ledger.url, "staging")
    assert _kept(ledger) == []


def test_a_task_that_is_quick_writes_nothing_and_soon_looks_for_nothing(ledger: Ledger) -> None:
    store: Any = CountingStore(ledger.url)
    _work(store)
    asked = {kind: count for kind, count in store.requests.items() if kind.endswith(" kept")}
    assert len(ledger.commits.shards()) > 2
    assert set(asked) == {"list kept"}
    assert asked["list kept"] <= 3


def test_rows_that_come_too_fast_are_not_held(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEEP_EVERY_S", 0.0)
    monkeypatch.setattr(keeping, "_MOST_BYTES", 10)
    _die(ledger.url, "staging")
    assert _kept(ledger) == []


@pytest.mark.usefixtures("dear")
def test_a_task_that_streams_keeps_finished_blocks(
    tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are smaller than what is read at once."""
    monkeypatch.setattr(batches, "BATCH_ROWS", 1024)
    monkeypatch.setattr(block, "_BLOCK_S", 0.0)
    monkeypatch.setattr(block, "_FEWEST_ROWS", 8)
    work = {"source": str(write_jsonl(ROWS)), "text": "text", "id": "id", "task": "shardmill.testing:FakeStream"}
    spec = make_spec(work, {"max_errors": "100%"})
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    _die(ledger.url, after=1)
    assert len(_kept(ledger)) == 2
    worker = _work(ledger.url)
    assert worker._tally.rows == len(ROWS) - 16
    run = Run(tmp_path / "run")
    assert run.verify().verified
    assert sum(commit.tokens_out for commit in _commits(run)) == sum(
        len(row["text"].split()) for row in ROWS if "!raise" not in row["text"].split()
    )


@pytest.mark.usefixtures("dear")
def test_the_device_is_checked_before_suspects_that_follow_kept_rows(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plain: Any
) -> None:
    probed: list[int] = []
    _die(ledger.url, after=1)
    ledger.suspects.put(0, Suspects(rows=(9, 10)))
    monkeypatch.setattr(Runner, "_probe", lambda self, shard, suspects: probed.append(shard))
    _work(ledger.url)
    assert probed == [0]
    plain(tmp_path / "run")


@pytest.mark.usefixtures("dear")
def test_a_worker_looks_where_a_shard_would_take_it_long(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pace of a small shard says what a large one takes."""
    monkeypatch.setattr(keeping, "KEEP_EVERY_S", 60.0)
    plan = ledger.plan()
    small, large = replace(plan.shards[0], weight_bytes=1), replace(plan.shards[1], weight_bytes=1000)
    keeper = Keeper(ledger.kept, replace(plan, shards=(small, large)), {})
    assert keeper.looks(Claim(0, "a"))
    keeper.committed(0, worked_s=1.0)
    assert not keeper.looks(Claim(0, "a"))
    assert keeper.looks(Claim(0, "a", crashes=1))
    assert keeper.looks(Claim(0, "a", shadow=True))
    assert keeper.looks(Claim(1, "a"))
