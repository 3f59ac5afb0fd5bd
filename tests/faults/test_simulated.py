"""Seeded runs in which everything goes wrong: campaigns/faults.py in small. What a seed finds, it finds again."""

from __future__ import annotations

import pytest

from campaigns.faults import play
from campaigns.planted_bugs import BUGS

SEEDS = 100
# The first seed that shows each planted bug, which is played before the others.
SHOWS = {
    "commit-before-errors": 1,
    "commit-before-part": 1,
    "commit-by-put": 6,
    "delete-without-lock": 17,
    "kept-with-gaps": 5,
    "one-generation": 104,
    "refusal-believed": 4,
    "settings-made-up": 7,
    "start-over-in-two-steps": 75,
    "sweep-at-start": 23,
}


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_every_row_comes_out_once_whatever_happens(first: int) -> None:
    for seed in range(first, first + 25):
        faults = play(seed).faults
        assert not faults, f"{faults[0]}\nplay it again: python -m campaigns.faults --seed {seed}"


def test_a_seed_always_plays_the_same() -> None:
    once, again, other = play(3), play(3), play(4)
    assert (once.digest, once.requests) == (again.digest, again.requests)
    assert once.digest != other.digest


@pytest.mark.parametrize("bug", sorted(BUGS.keys() - {""}))
def test_every_planted_bug_is_found_within_the_seeds(bug: str) -> None:
    """Any change of the requests changes what a seed plays: if the known seed shows nothing, another one must."""
    assert any(play(seed, bug).faults for seed in (SHOWS[bug], *range(SEEDS)))
