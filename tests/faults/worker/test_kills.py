"""Whatever dies and whenever: after a resume every row is there exactly once.

Real processes, really killed by SIGKILL; the fake task keeps torch out, and a fork server makes starting one cheap.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Claim, Ledger
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.testing import STEPS, crash_at, crash_somewhere, fake_vector
from shardmill.worker import Worker
from tests.support.corpora import fake_rows, fake_spec
from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S

CRASHES = 240
processes = Forking()

ROWS = fake_rows(300)


def _work(run: str, hook: Callable[[str, int], None] | None = None) -> None:
    kwargs: dict[str, Any] = {} if hook is None else {"on_step": hook}
    Worker(Ledger(run), device=Device("cpu", "cpu"), **kwargs).work()


def _work_until_step(run: str, step: str, after: int) -> None:
    _work(run, crash_at(step, after))


def _work_until_seed(run: str, seed: int) -> None:
    _work(run, crash_somewhere(seed))


def _start(target: Callable[..., None], *args: Any) -> Any:
    process = processes.Process(target=target, args=args)
    process.start()
    return process


def _finish(process: Any) -> int:
    process.join(PATIENCE_S)
    assert process.exitcode is not None, "the worker hangs"
    return int(process.exitcode)


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Callable[..., Path]) -> str:
    # More deaths in a row without a commit would end the run as failed: this is about what is lost, nothing else.
    spec = fake_spec(write_jsonl(ROWS), batch_tokens=400, max_restarts=CRASHES)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger.url


def assert_exactly_once(run: str) -> None:
    opened = Run(run)
    table = opened.table()
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    vectors = np.stack(table.column("embedding").to_numpy(zero_copy_only=False))
    assert np.array_equal(vectors, np.stack([fake_vector(row["text"]) for row in ROWS]))
    report = opened.verify()
    assert report.verified, report


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [0, 2])
def test_a_worker_killed_at_each_step(run: str, step: str, after: int) -> None:
    assert _finish(_start(_work_until_step, run, step, after)) == -signal.SIGKILL
    assert _finish(_start(_work, run)) == 0
    assert_exactly_once(run)


@pytest.mark.parametrize("seed", range(24))
def test_hundreds_of_kills_at_seeded_moments(run: str, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(CRASHES // 24):
        _finish(_start(_work_until_seed, run, choose.randrange(1 << 30)))
    assert _finish(_start(_work, run)) == 0
    assert_exactly_once(run)


@pytest.mark.parametrize("seed", range(8))
def test_two_workers_race_while_both_are_killed_and_replaced(run: str, seed: int) -> None:
    choose = random.Random(1000 + seed)
    for _ in range(4):
        pair = [_start(_work_until_seed, run, choose.randrange(1 << 30)) for _ in range(2)]
        for process in pair:
            _finish(process)
    pair = [_start(_work, run) for _ in range(2)]
    assert [_finish(p) for p in pair] == [0, 0]
    assert_exactly_once(run)


def _work_on_shadow(run: str, shard: int) -> None:
    """Take a shard that another holds, as an idle worker does near the end, and commit it."""

    class Blind(Ledger):
        def claim(self, worker: str, shards: int, **settings: Any) -> Any:
            if self.store.head("shadowed-once") is None:
                self.store.put("shadowed-once", b"")
                return Claim(shard, "shadow", shadow=True)
            return super().claim(worker, shards, **settings)

    Worker(Blind(run), device=Device("cpu", "cpu")).work()


def test_two_workers_on_one_shard_leave_one_part(run: str) -> None:
    pair = [_start(_work_on_shadow, run, 0), _start(_work, run)]
    assert [_finish(p) for p in pair] == [0, 0]
    ledger = Ledger(run)
    ledger.store.delete("shadowed-once")
    parts = [e.key for e in ledger.store.list("parts/")]
    assert sorted(parts) == sorted(c.part for c in ledger.commits.read().values())
    assert_exactly_once(run)


def test_debris_of_dead_attempts_is_swept(run: str) -> None:
    for after in range(3):
        _finish(_start(_work_until_step, run, "staged", after))
    assert _finish(_start(_work, run)) == 0
    ledger = Ledger(run)
    assert len(list(ledger.store.list("parts/"))) > len(ledger.commits.read())
    ledger.sweep()
    assert len(list(ledger.store.list("parts/"))) == len(ledger.commits.read())
    assert list(ledger.store.list("leases/")) == []
    assert_exactly_once(run)
