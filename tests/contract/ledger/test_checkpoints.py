"""Checkpoints and reports of long items, in every store: whole or not there, and fenced against late attempts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import CorruptState, TaskError
from shardmill.ledger import ItemReport, ItemReports, Ledger
from shardmill.ledger.report import MOST_REPORTS
from tests.support.ledgers import a_plan, make_commit


@pytest.fixture
def ledger(place: str) -> Ledger:
    ledger = Ledger(place, lambda: 7.0)
    ledger.create(a_plan())
    return ledger


def _keys(ledger: Ledger) -> list[str]:
    return [entry.key for entry in ledger.store.list("checkpoints/")]


def test_what_was_kept_is_read_by_the_next_attempt(ledger: Ledger, tmp_path: Path) -> None:
    mine = ledger.checkpoints.take_over(1, 0, "p", "a1")
    assert mine.newest is None
    assert mine.step is None
    large = tmp_path / "model.safetensors"
    large.write_bytes(bytes(range(256)) * 40_000)
    assert mine.keep(5, {"model.safetensors": large, "a/state.json": b"{}"})
    next_one = ledger.checkpoints.take_over(1, 0, "p", "a2").newest
    assert next_one is not None
    assert next_one.step == 5
    assert set(next_one.names) == {"model.safetensors", "a/state.json"}
    assert next_one.read("model.safetensors") == large.read_bytes()
    next_one.fetch(tmp_path / "fetched")
    assert (tmp_path / "fetched/a/state.json").read_bytes() == b"{}"
    assert (tmp_path / "fetched/model.safetensors").read_bytes() == large.read_bytes()


def _damage(ledger: Ledger, content: bytes) -> None:
    """Flip a bit of the file that has this content."""
    key = next(key for key in _keys(ledger) if ledger.store.get(key) == content)
    ledger.store.put(key, bytes([content[0] ^ 1]) + content[1:])


def test_the_last_two_checkpoints_stay(ledger: Ledger) -> None:
    mine = ledger.checkpoints.take_over(1, 0, "p", "a1")
    for step in (1, 2, 3):
        assert mine.keep(step, {"state.json": b"%d" % step})
    assert len(_keys(ledger)) == 3
    found = ledger.checkpoints.find(1)
    assert found is not None
    assert (found.step, found.read("state.json")) == (3, b"3")


def test_an_attempt_that_wakes_up_late_changes_nothing(ledger: Ledger) -> None:
    early = ledger.checkpoints.take_over(1, 0, "p", "early")
    assert early.keep(1, {"state.json": b"1"})
    late = ledger.checkpoints.take_over(1, 0, "p", "late")
    assert not early.keep(2, {"state.json": b"of early"})
    assert late.keep(3, {"state.json": b"3"})
    assert not early.keep(4, {"state.json": b"of early"})
    found = ledger.checkpoints.find(1)
    assert found is not None
    assert (found.step, found.read("state.json")) == (3, b"3")
    assert len(_keys(ledger)) == 3


def test_a_damaged_bit_costs_the_steps_since_the_checkpoint_before(ledger: Ledger, tmp_path: Path) -> None:
    mine = ledger.checkpoints.take_over(1, 0, "p", "a1")
    for step in (1, 2):
        mine.keep(step, {"a.json": b"same", "state.json": b"state %d" % step})
    _damage(ledger, b"state 2")
    mine = ledger.checkpoints.take_over(1, 0, "p", "a2")
    beside = ledger.checkpoints.find_whole(1)
    for found in (mine.newest, beside):
        assert found is not None
        assert (found.step, found.read("state.json")) == (1, b"state 1")
        found.fetch(tmp_path)
    assert mine.step == 2
    assert mine.keep(2, {"state.json": b"state 2 again"})
    assert len(_keys(ledger)) == 1 + 1 + 2
    _damage(ledger, b"state 2 again")
    found = ledger.checkpoints.take_over(1, 0, "p", "a3").newest
    assert found is not None
    assert found.read("state.json") == b"state 1"


def test_if_both_are_damaged_the_reader_is_told(ledger: Ledger) -> None:
    mine = ledger.checkpoints.take_over(1, 0, "p", "a1")
    for step in (1, 2):
        mine.keep(step, {"state.json": b"state %d" % step})
        _damage(ledger, b"state %d" % step)
    with pytest.raises(CorruptState, match="digest"):
        ledger.checkpoints.take_over(1, 0, "p", "a2").newest.read("state.json")  # type: ignore[union-attr]


def test_attempts_that_take_over_at_once_leave_one(ledger: Ledger) -> None:
    names = [f"a{i}" for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        taken = list(pool.map(lambda name: ledger.checkpoints.take_over(0, 0, "p", name), names))
        kept = list(pool.map(lambda i: taken[i].keep(i, {"state.json": b"%d" % i}), range(6)))
    assert kept.count(True) == 1
    found = ledger.checkpoints.find(0)
    assert found is not None
    assert found.read("state.json") == b"%d" % kept.index(True)
    assert len(_keys(ledger)) == 2


def test_a_file_that_is_gone_or_torn_is_no_checkpoint(ledger: Ledger) -> None:
    mine = ledger.checkpoints.take_over(1, 0, "p", "a1")
    mine.keep(1, {"state.json": b"12345"})
    file = next(key for key in _keys(ledger) if not key.endswith(".json"))
    ledger.store.put(file, b"1234X")
    with pytest.raises(CorruptState, match="digest"):
        ledger.checkpoints.take_over(1, 0, "p", "a2").newest.read("state.json")  # type: ignore[union-attr]
    ledger.store.put(file, b"123")
    assert ledger.checkpoints.take_over(1, 0, "p", "a3").newest is None
    ledger.store.delete(file)
    assert ledger.checkpoints.take_over(1, 0, "p", "a4").newest is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"shard": 1}', b'{"files": {"../x": ["commits/1", 1, ""]}}'])
def test_a_damaged_record_is_replaced(ledger: Ledger, damage: bytes) -> None:
    ledger.checkpoints.take_over(1, 0, "p", "a1").keep(1, {"state.json": b"1"})
    ledger.store.put(next(key for key in _keys(ledger) if key.endswith(".json")), damage)
    mine = ledger.checkpoints.take_over(1, 0, "p", "a2")
    assert mine.newest is None
    assert mine.keep(1, {"state.json": b"2"})
    assert len(_keys(ledger)) == 2


@pytest.mark.parametrize("name", ["state.pkl", "model.pt", "../state.json", "/state.json", ".json", "a b.json"])
def test_only_files_that_run_no_code_are_kept(ledger: Ledger, name: str) -> None:
    with pytest.raises(TaskError, match="cannot have a file"):
        ledger.checkpoints.take_over(1, 0, "p", "a1").keep(1, {name: b"1"})


def test_those_of_a_shard_go_with_its_commit_and_of_all_with_the_sweep(ledger: Ledger) -> None:
    for shard in (0, 1, 2):
        ledger.checkpoints.take_over(shard, 0, "p", "a1").keep(1, {"state.json": b"1"})
    ledger.checkpoints.delete(1)
    assert {key[12:18] for key in _keys(ledger)} == {"000000", "000002"}
    for shard in (0, 1, 2):
        ledger.commits.add(make_commit(shard))
    ledger.sweep()
    assert not _keys(ledger)


def test_a_fresh_start_has_neither_checkpoints_nor_reports(ledger: Ledger) -> None:
    ledger.checkpoints.take_over(0, 0, "p", "a1").keep(1, {"state.json": b"1"})
    ledger.reports.put(0, 0, ItemReports([ItemReport(1, 7.0, {"loss": 0.5})]))
    ledger.start_over(a_plan())
    assert not _keys(ledger)
    assert not list(ledger.store.list("reports/"))
    assert ledger.checkpoints.find(0) is None


class Killed(BaseException):
    pass


class Mortal:
    """A store whose process dies before its n-th request that changes something."""

    def __init__(self, store: Any, lives: int) -> None:
        self._store, self.lives = store, lives

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("put", "put_if_absent", "replace_if_same", "delete", "delete_all", "partial", "rename"):
            return method

        def call(*args: Any) -> Any:
            if self.lives == 0:
                raise Killed
            self.lives -= 1
            return method(*args)

        return call


@pytest.mark.parametrize("lives", range(12))
def test_a_death_between_any_two_requests_leaves_a_whole_checkpoint(lives: int, tmp_path: Path) -> None:
    whole = Ledger(tmp_path / "run")
    whole.create(a_plan())
    whole.checkpoints.take_over(0, 0, "p", "a1").keep(1, {"a.json": b"1", "b.json": b"1"})
    dying = Ledger(tmp_path / "run")
    dying.plan()
    store: Any = Mortal(dying.store, lives)
    dying.checkpoints._store = store
    survived = False
    try:
        dying.checkpoints.take_over(0, 0, "p", "a2").keep(2, {"a.json": b"2", "b.json": b"2"})
        survived = True
    except Killed:
        pass
    mine = whole.checkpoints.take_over(0, 0, "p", "a3")
    found = mine.newest
    assert found is not None
    assert found.read("a.json") == found.read("b.json") == b"%d" % found.step
    assert found.step == 2 if survived else found.step in (1, 2)
    assert mine.keep(3, {"a.json": b"3"})
    assert len(_keys(whole)) == 1 + 1 + 2


def test_reports_are_bounded_and_keep_the_last(ledger: Ledger) -> None:
    reports = ItemReports()
    for step in range(1000):
        reports = reports.add(ItemReport(step, 7.0, {"loss": 1.0 / (step + 1), "nan": None}))
        assert reports.points[-1].step == step
    assert MOST_REPORTS // 2 <= len(reports.points) <= MOST_REPORTS
    ledger.reports.put(2, 0, reports)
    assert ledger.reports.read(2) == reports
    assert ledger.reports.read(1) == ItemReports()


def test_a_lease_is_held_by_its_holder_alone(ledger: Ledger) -> None:
    claim = ledger.leases.take(0, "w", 60.0)
    assert claim is not None
    assert ledger.leases.hold(claim, "w", 60.0)
    assert not ledger.leases.hold(claim, "other", 60.0)
    ledger.leases.record_death("w")
    heir = ledger.claim("heir", 1, lease_s=60.0)
    assert heir is not None
    assert heir.crashes == 1
    assert not ledger.leases.hold(claim, "w", 60.0)
    assert ledger.leases.hold(heir, "heir", 60.0, forgiven=True)
    assert ledger.leases.read()[0].crashes == 0
