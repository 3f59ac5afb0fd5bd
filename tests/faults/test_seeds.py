"""The runner of campaigns: a seed that hangs, or whose process dies, has failed, and the others are played."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import closing

import pytest

from campaigns.faulty_run import Outcome
from campaigns.seeds import play_all


def play(seed: int) -> Outcome:
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(seed, requests=10 * seed)


def hang(seed: int) -> Outcome:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return Outcome(seed)


def _faults(outcomes: Iterable[Outcome]) -> list[tuple[int, list[str]]]:
    return [(outcome.seed, outcome.faults) for outcome in outcomes]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_seed_whose_process_dies_has_failed(processes: int) -> None:
    found = _faults(play_all(play, range(4), processes, 600.0))
    assert found == [(0, []), (1, ["its process ended with status -9"]), (2, []), (3, [])]


def test_a_seed_that_hangs_has_failed_and_tells_where_it_stands(capfd: pytest.CaptureFixture[str]) -> None:
    ((seed, (fault,)),) = _faults(play_all(hang, [7], 1, 0.1))
    assert (seed, fault) == (7, "it did not end within 0.1 s; stderr has where it stood")
    assert "in hang" in capfd.readouterr().err


def test_whoever_stops_early_leaves_no_process() -> None:
    before = {*multiprocessing.active_children()}
    with closing(play_all(play, range(100, 1000), 2, 600.0)) as outcomes:
        assert next(outcomes).seed == 100
        assert {*multiprocessing.active_children()} - before
    assert not {*multiprocessing.active_children()} - before
