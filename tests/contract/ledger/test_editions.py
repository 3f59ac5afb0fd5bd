"""Editions have numbers that are given once, say what they are made from, and are pruned unless somebody needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shardmill.core.errors import CorruptState, EditionPruned
from shardmill.ledger import MIGRATE, REFRESH, Editions
from shardmill.ledger.editions import GRACE_S, ORIGIN
from shardmill.store import open_store


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def editions(tmp_path: Path, clock: Clock) -> Editions:
    open_store(tmp_path / "run").put("plan.json", b"{}")
    return Editions(tmp_path / "run", clock)


def put_rows(editions: Editions, *numbers: int) -> None:
    for number in numbers:
        editions.open(number).put("plan.json", b"{}")
        editions.open(number).put("parts/000000.parquet", b"rows")


def prune(editions: Editions, keep: int, held: Sequence[int] = ()) -> list[int]:
    return [number for number in editions.retire(editions.prunable(keep, held)) if editions.prune(number)]


def has_rows(editions: Editions, number: int) -> bool:
    return editions.open(number).head("parts/000000.parquet") is not None


def make(editions: Editions, kind: str = REFRESH) -> int:
    """A next edition, which is read from now on."""
    was = editions.current()
    number = editions.begin(was, kind)
    assert editions.switch(was, number)
    return number


def test_what_was_begun_and_never_read_is_gone_on_with(editions: Editions) -> None:
    assert editions.begin(1, REFRESH) == 2
    assert editions.begin(1, REFRESH) == 2
    assert editions.begin(1, MIGRATE, "a model") == 3
    assert editions.begin(1, MIGRATE, "another model") == 4
    assert editions.begin(1, MIGRATE, "a model") == 3
    assert editions.origin(3).base == 1
    assert editions.switch(1, 2)
    assert editions.begin(2, REFRESH) == 5, "from another edition"
    assert editions.find_begun(1, REFRESH) is None, "it is read"


def test_a_number_is_never_given_again(editions: Editions) -> None:
    assert [make(editions), make(editions)] == [2, 3]
    assert editions.switch(3, 2)
    assert editions.begin(2, REFRESH) == 4, "3 is made from 2, too, but it was read"
    assert editions.switch(2, 1)
    assert editions.begin(1, REFRESH) == 5


def test_two_at_once_get_the_same_number(editions: Editions, monkeypatch: pytest.MonkeyPatch) -> None:
    look_really = editions.highest

    def look_and_be_late() -> int:
        number = look_really()
        assert Editions(editions.run).begin(1, REFRESH) == 2
        return number

    monkeypatch.setattr(editions, "highest", look_and_be_late)
    assert editions.begin(1, REFRESH) == 2
    assert look_really() == 2


def test_the_oldest_that_were_read_are_pruned(editions: Editions, clock: Clock) -> None:
    for _ in range(4):
        make(editions)
    put_rows(editions, 1, 2, 3, 4, 5)
    assert prune(editions, 2) == [], "they were superseded within the hour"
    clock.now += GRACE_S
    assert prune(editions, 3, [2]) == [1]
    assert prune(editions, 2) == [2, 3]
    assert [has_rows(editions, number) for number in range(1, 6)] == [False, False, False, True, True]
    with pytest.raises(EditionPruned):
        editions.switch(5, 3)
    assert editions.current() == 5


def test_a_clock_that_runs_backwards_deletes_nothing(editions: Editions, clock: Clock) -> None:
    clock.now = 10 * GRACE_S
    make(editions)
    clock.now = 0.0
    assert [make(editions), editions.begin(3, REFRESH)] == [3, 4]
    put_rows(editions, 1, 2, 3)
    assert prune(editions, 1) == [], "1 was superseded tomorrow"
    clock.now = GRACE_S
    assert prune(editions, 1) == [2], "and 2 after it, by an earlier time"
    clock.now = 11 * GRACE_S
    assert prune(editions, 1) == [1]
    assert editions.current() == 3


def test_the_current_one_is_never_pruned(editions: Editions, clock: Clock) -> None:
    for _ in range(4):
        make(editions)
    put_rows(editions, 1, 2, 3, 4, 5)
    editions.switch(5, 2)
    clock.now += GRACE_S
    assert prune(editions, 2) == [1, 3, 4]
    assert (has_rows(editions, 2), has_rows(editions, 5)) == (True, True)
    assert editions.begin(2, REFRESH) == 6


def test_what_was_never_read_is_pruned_when_it_is_old(editions: Editions, clock: Clock) -> None:
    editions.begin(1, MIGRATE, "a model")
    clock.now += GRACE_S
    editions.begin(1, REFRESH)
    editions.switch(1, 3)
    put_rows(editions, 1, 2, 3)
    assert prune(editions, 1) == [2]
    assert editions.find_begun(1, MIGRATE, "a model") is None


def test_an_edition_that_is_read_again_is_not_retired(editions: Editions, clock: Clock) -> None:
    make(editions)
    put_rows(editions, 1, 2)
    clock.now += GRACE_S
    going = editions.prunable(1)
    assert going == [1]
    assert Editions(editions.run, clock).switch(2, 1)
    assert editions.retire(going) == []
    assert editions.switch(1, 2)
    assert editions.retire(going) == [1]
    with pytest.raises(EditionPruned):
        editions.switch(2, 1)
    assert (editions.current(), editions.retire([])) == (2, [1]), "one that was retired is never forgotten"


def test_what_was_made_from_a_pruned_edition_and_never_read_is_refused(editions: Editions, clock: Clock) -> None:
    make(editions)
    number = editions.begin(1, MIGRATE, "a model")
    clock.now += GRACE_S
    assert editions.retire([1]) == [1]
    with pytest.raises(EditionPruned):
        editions.switch(2, number)


def test_an_edition_that_does_not_say_what_it_is_made_from(editions: Editions) -> None:
    make(editions)
    editions.open(2).delete(ORIGIN)
    with pytest.raises(CorruptState, match=r"origin\.json is missing"):
        editions.origin(2)


def test_parts_that_others_need_stay(editions: Editions, clock: Clock) -> None:
    for _ in range(2):
        make(editions)
    put_rows(editions, 1, 2, 3)
    editions.open(1).put("parts/000001.parquet", b"rows")
    clock.now += GRACE_S
    assert editions.prune(1, {"parts/000001.parquet"})
    assert [entry.key for entry in editions.open(1).list("parts/")] == ["parts/000001.parquet"]
    assert editions.prune(1)
    assert not [*editions.open(1).list("parts/")]
    assert not editions.prune(1), "nothing is left"
