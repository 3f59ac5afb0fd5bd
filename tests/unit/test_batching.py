"""Batches by budget, and a budget that learns from memory that ran out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.batching import Budget, plan_batches

costs_strategy = st.lists(st.integers(0, 600), max_size=80).map(lambda c: np.array(c, np.int64))


@given(costs=costs_strategy, budget=st.integers(1, 1000))
def test_every_item_is_in_one_batch(costs: np.ndarray, budget: int) -> None:
    batches = plan_batches(costs, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(costs)))
    assert all(len(batch) for batch in batches)


@given(costs=costs_strategy, budget=st.integers(1, 1000))
def test_a_padded_batch_is_within_the_budget_unless_it_is_one_item(costs: np.ndarray, budget: int) -> None:
    for batch in plan_batches(costs, budget):
        assert len(batch) == 1 or len(batch) * costs[batch].max() <= budget


@given(costs=costs_strategy, budget=st.integers(1, 1000))
def test_the_longest_come_first(costs: np.ndarray, budget: int) -> None:
    order = [cost for batch in plan_batches(costs, budget) for cost in costs[batch].tolist()]
    assert order == sorted(order, reverse=True)


def test_items_of_equal_cost_keep_their_order() -> None:
    assert [b.tolist() for b in plan_batches(np.full(5, 10), 20)] == [[0, 1], [2, 3], [4]]


def test_a_budget_is_halved_by_an_overflow_and_never_reaches_zero() -> None:
    budget = Budget(5)
    seen = []
    for _ in range(4):
        budget.shrink(failed=budget.now)
        seen.append(budget.now)
    assert seen == [2, 1, 1, 1]


def test_a_small_batch_that_failed_says_more_than_the_budget() -> None:
    budget = Budget(1000)
    budget.shrink(failed=100)
    assert budget.now == 50
    budget.shrink(failed=2000)
    assert budget.now == 25


def test_a_budget_grows_back_to_where_it_began_and_no_further() -> None:
    budget = Budget(100, patience=2)
    budget.shrink(failed=100)
    seen = []
    for _ in range(20):
        budget.succeed()
        seen.append(budget.now)
    assert seen[:4] == [50, 62, 62, 77]
    assert seen[-1] == 100


def test_each_further_overflow_makes_growing_slower() -> None:
    def batches_until_it_grows(overflows: int) -> int:
        budget = Budget(1024, patience=3)
        for _ in range(overflows):
            budget.shrink(failed=budget.now)
        before, batches = budget.now, 0
        while budget.now == before:
            budget.succeed()
            batches += 1
        return batches

    assert [batches_until_it_grows(n) for n in (1, 2, 3)] == [3, 6, 9]
