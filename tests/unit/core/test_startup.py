"""What start-up does is told with its seconds."""

from __future__ import annotations

import contextlib

import pytest

from shardmill.core import startup
from shardmill.core.startup import COMPILING, LOADING, TRYING, doing, tell


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of an earlier test may still load its model in a thread of this process."""
    monkeypatch.setattr(startup, "_doing", [])


def test_what_is_done_within_goes_back_to_what_was_done_around_it() -> None:
    seen = []
    with doing(LOADING):
        with contextlib.suppress(ValueError), doing(TRYING), doing(COMPILING):
            seen.append(startup.now_doing()[0])
            raise ValueError
        seen.append(startup.now_doing()[0])
    assert [*seen, startup.now_doing()[0]] == [COMPILING, LOADING, ""]


def test_one_of_two_threads_that_load_ends_before_the_other() -> None:
    first, second = doing(LOADING), doing(COMPILING)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert startup.now_doing()[0] == COMPILING
    second.__exit__(None, None, None)
    assert startup.now_doing()[0] == ""


def test_seconds_are_whole_and_never_below_zero() -> None:
    assert tell(TRYING, 3.2) == "trying kernels, 3 s"
    assert tell(TRYING, -5.0) == "trying kernels, 0 s"
    assert tell("", 9.0) == "loading the model"
