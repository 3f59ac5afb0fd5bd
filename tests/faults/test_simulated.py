"""Seeded runs in which everything goes wrong: campaigns/faults.py in small. What a seed finds, it finds again."""

from __future__ import annotations

import pytest

from campaigns.faults import play_planted
from campaigns.faulty_run import play

SEEDS = 100


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_every_row_comes_out_once_whatever_happens(first: int) -> None:
    for seed in range(first, first + 25):
        faults = play(seed).faults
        assert not faults, f"{faults[0]}\nplay it again: python -m campaigns.faults --seed {seed}"


def test_a_seed_always_plays_the_same() -> None:
    once, again, other = play(3), play(3), play(4)
    assert (once.digest, once.requests) == (again.digest, again.requests)
    assert once.digest != other.digest


@pytest.mark.parametrize("bug", ["commit-by-put", "commit-before-part", "delete-without-lock"])
def test_a_planted_bug_is_found(bug: str) -> None:
    """`python -m campaigns.faults --mutate NAME` finds the others, which take more seeds."""
    assert any(play_planted((seed, bug)).faults for seed in range(100))
