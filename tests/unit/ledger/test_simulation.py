"""The ledger and the worker's choices in a crowd, on a simulated clock: campaigns/simulation.py in small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaigns.simulation import Outcome, Simulation, World

CROWD = World(workers=30, shards=3000, vanishing=0.04)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return Simulation(CROWD).run()


def test_every_shard_is_committed_though_workers_vanish(outcome: Outcome) -> None:
    assert outcome.committed == CROWD.shards


def test_little_is_done_twice_and_the_end_is_short(outcome: Outcome) -> None:
    assert outcome.wasted_share < 0.02
    assert outcome.tail_share < 0.03
    assert outcome.makespan_s < 1.05 * outcome.ideal_s


def test_a_claim_is_a_few_requests(outcome: Outcome) -> None:
    assert outcome.requests["LIST"] < 2.5 * CROWD.shards
    assert outcome.requests["refused PUT"] < 0.2 * CROWD.shards
    assert sorted(outcome.claim_s)[outcome.claims // 2] < 0.2


def test_workers_that_all_begin_at_one_place_get_out_of_each_others_way() -> None:
    crowd = replace(CROWD, shards=900, one_slot=True, straggling=0.0, vanishing=0.0)
    outcome = Simulation(crowd).run()
    assert outcome.committed == crowd.shards
    assert outcome.requests["refused PUT"] < 0.5 * crowd.shards
    assert outcome.wasted_share < 0.02
