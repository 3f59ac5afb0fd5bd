"""Finished runs that are delivered while everything goes wrong: campaigns/deliveries.py in small."""

from __future__ import annotations

import pytest

from campaigns.deliveries import play
from campaigns.planted_bugs import DELIVERY_BUGS

SEEDS, SEARCHED = 20, 300
# The first seed that shows a planted bug, which is played before the others.
SHOWS = {"lots-committed-blindly": 338, "lots-cut-anew": 0}


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_every_row_is_delivered_once_whatever_happens(first: int) -> None:
    for seed in range(first, first + 10):
        faults = play(seed).faults
        assert not faults, f"{faults[0]}\nplay it again: python -m campaigns.deliveries --seed {seed}"


@pytest.mark.parametrize("bug", sorted(DELIVERY_BUGS))
def test_every_planted_bug_is_found_within_the_seeds(bug: str) -> None:
    """Any change of the requests changes what a seed plays: if the known seed shows nothing, another one must."""
    assert any(play(seed, bug).faults for seed in (SHOWS[bug], *range(SEARCHED)))
