"""A process that dies after it sent the plan of a new run: the plan may arrive when others have gone on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.errors import Preempted
from shardmill.ledger import Ledger
from shardmill.run import Run, prepare, start
from shardmill.store import LocalStore
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec


class Died(BaseException):
    pass


class OnItsWay(LocalStore):
    """Whoever swaps the plan dies, and the swap is still on its way."""

    sent: tuple[str, bytes, str]

    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool:
        if key != "plan.json":
            return super().replace_if_same(key, data, tag)
        self.sent = key, data, tag
        raise Died


def test_a_swap_that_arrives_late_is_refused_once_another_went_on(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    spec = fake_spec(write_jsonl(fake_rows(60)), shard_bytes=800)
    prepare(spec, tmp_path / "run")
    dying = OnItsWay(tmp_path / "run")
    ledger = Ledger(dying)
    with pytest.raises(Died):
        ledger.start_over(ledger.plan())

    done = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert not LocalStore(tmp_path / "run").replace_if_same(*dying.sent)
    assert Run(tmp_path / "run").plan == done.plan
    assert done.status().state == "complete"
    assert done.verify().verified


def test_a_start_over_that_dies_before_its_plan_is_there_leaves_the_run_whole(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """Seed 5251 of the simulation: parts were deleted whose commits came after the list of what to delete."""
    run = start(fake_spec(write_jsonl(fake_rows(60)), shard_bytes=800), tmp_path / "run", engine=InProcessEngine())
    ledger = Ledger(OnItsWay(tmp_path / "run"))
    with pytest.raises(Died):
        ledger.start_over(ledger.plan())
    assert run.status().state == "complete"
    assert run.verify().verified


def test_a_start_over_that_dies_after_its_plan_is_there_leaves_a_new_run(
    write_jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fake_spec(write_jsonl(fake_rows(60)), shard_bytes=800)
    old = start(spec, tmp_path / "run", engine=InProcessEngine())
    left = {e.key for e in old.ledger.store.list("parts/")}
    ledger = Ledger(tmp_path / "run")
    plan, delete_all = ledger.plan(), ledger.store.delete_all

    def die_at_parts(keys: list[str]) -> None:
        if any(key.startswith("parts/") for key in keys):
            raise Died
        delete_all(keys)

    monkeypatch.setattr(ledger.store, "delete_all", die_at_parts)
    with pytest.raises(Died):
        ledger.start_over(plan)
    new = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert new.plan.generation != old.plan.generation
    assert new.verify().verified
    assert not left & {e.key for e in new.ledger.store.list("parts/")}, "swept"


def test_whoever_comes_after_the_swap_sees_that_the_run_was_started_over(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    spec = fake_spec(write_jsonl(fake_rows(20)))
    prepare(spec, tmp_path / "run")
    slow, other = Ledger(tmp_path / "run"), Ledger(tmp_path / "run")
    slow.plan()
    other.start_over(other.plan())
    with pytest.raises(Preempted, match="started the run over"):
        slow.confirm()
    other.confirm()
    other.confirm()
    assert other.plan().generation == Ledger(tmp_path / "run").plan().generation
