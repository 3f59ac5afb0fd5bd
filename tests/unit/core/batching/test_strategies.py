"""Batches by budget, and a budget that learns from memory that ran out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.core.batching import BatchConfig, BatchProcessor, BatchStrategy, Budget, plan_batches, size_bytes
from shardmill.core.errors import UsageError

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


def batches_of(strategy: BatchStrategy, samples: Any, **config: Any) -> list[list[Any]]:
    return list(BatchProcessor(strategy, BatchConfig(strategy, **config)).process_stream(samples))


@given(
    strategy=st.sampled_from(BatchStrategy),
    texts=st.lists(st.text(max_size=9), max_size=60),
    size=st.integers(1, 9),
    bins=st.integers(1, 4),
)
def test_every_strategy_puts_every_sample_into_one_batch(
    strategy: BatchStrategy, texts: list[str], size: int, bins: int
) -> None:
    numbered = [(text, i) for i, text in enumerate(texts)]
    batches = batches_of(strategy, numbered, batch_size=size, bins=bins, token_budget=20, window=16)
    assert sorted((s for b in batches for s in b), key=lambda s: s[1]) == numbered
    assert all(batches)


def test_sequential_and_round_robin_are_not_the_same() -> None:
    assert batches_of(BatchStrategy.SEQUENTIAL, range(10), batch_size=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    dealt = batches_of(BatchStrategy.ROUND_ROBIN, range(10), batch_size=2, bins=3)
    assert dealt == [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]


def test_a_token_budget_is_kept() -> None:
    texts = ["a" * n for n in (3, 9, 4, 5)]
    assert batches_of(BatchStrategy.TOKEN_BUDGET, texts, token_budget=10) == [["a" * 9], ["a" * 5, "a" * 4], ["a" * 3]]


def test_memory_is_measured_and_its_limit_kept() -> None:
    samples = [np.zeros(n, np.uint8) for n in (100_000, 500_000, 500_000, 900_000, 10, 10)]
    batches = batches_of(BatchStrategy.MEMORY_OPTIMIZED, samples, max_memory_mb=1)
    assert [len(b) for b in batches] == [2, 1, 3]
    assert all(sum(map(size_bytes, b)) <= 1 << 20 for b in batches)


def test_batches_shrink_under_memory_pressure_and_not_below_the_minimum() -> None:
    free = [1 << 30]

    def pressing() -> int:
        free[0] //= 2
        return free[0]

    samples = [np.zeros(10_000, np.uint8) for _ in range(2000)]
    config = {"max_memory_mb": 4, "min_batch_size": 16, "free_bytes": pressing}
    sizes = [len(b) for b in batches_of(BatchStrategy.MEMORY_OPTIMIZED, samples, **config)]
    assert sizes[0] > 4 * sizes[-2]
    assert sizes[-2] == 16


def test_a_limit_below_one_sample_or_below_the_minimum_is_refused() -> None:
    sample = np.zeros(300_000, np.uint8)
    with pytest.raises(UsageError, match="One sample takes"):
        batches_of(BatchStrategy.MEMORY_OPTIMIZED, [sample], max_memory_mb=0.1)
    with pytest.raises(UsageError, match="8 samples of about"):
        batches_of(BatchStrategy.MEMORY_OPTIMIZED, [sample] * 10, max_memory_mb=1, min_batch_size=8)


def test_adaptive_batches_climb_to_where_the_consumer_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer with a fixed cost a batch likes large batches; one that slows down with size likes small ones."""
    now = [0.0]
    monkeypatch.setattr("shardmill.core.batching.processor.time.perf_counter", lambda: now[0])

    def climb(cost_s: Any) -> list[int]:
        config = BatchConfig(batch_size=32, min_batch_size=4, max_batch_size=512)
        sizes = []
        for batch in BatchProcessor(BatchStrategy.ADAPTIVE, config).process_stream(range(4000)):
            now[0] += cost_s(len(batch))
            sizes.append(len(batch))
        return sizes[:-1]

    assert max(climb(lambda n: 0.02)) >= 300
    assert min(climb(lambda n: n * n * 4e-6)) <= 16


def test_metrics_count_what_the_consumer_took() -> None:
    processor = BatchProcessor("sequential", BatchConfig(batch_size=4))
    for _ in processor.process_stream(range(10)):
        time.sleep(0.002)
    found = processor.metrics
    assert (found.batches, found.samples, found.smallest, found.largest) == (3, 10, 2, 4)
    assert found.consumer_s >= 0.006
    assert found.samples_per_second == pytest.approx(10 / found.consumer_s)


def test_the_strategy_is_the_configs_unless_one_is_given() -> None:
    adaptive = BatchConfig(BatchStrategy.ADAPTIVE)
    assert BatchProcessor(config=adaptive).strategy is BatchStrategy.ADAPTIVE
    assert BatchProcessor(None, adaptive).strategy is BatchStrategy.ADAPTIVE
    assert BatchProcessor("round_robin", adaptive).strategy is BatchStrategy.ROUND_ROBIN
    assert BatchProcessor(BatchStrategy.SEQUENTIAL, adaptive).strategy is BatchStrategy.SEQUENTIAL
    assert BatchProcessor().strategy is BatchStrategy.SEQUENTIAL
    assert BatchProcessor("adaptive").config.strategy is BatchStrategy.ADAPTIVE
    bins = list(BatchProcessor(config=BatchConfig(BatchStrategy.ROUND_ROBIN, bins=2)).process_stream(range(4)))
    assert bins == [[0, 2], [1, 3]]


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"max_memory_mb": float("nan")}, {"min_batch_size": 1 << 20}])
def test_a_batch_config_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        BatchConfig(**wrong)
    with pytest.raises(UsageError, match="is not a strategy"):
        BatchProcessor("fastest")
