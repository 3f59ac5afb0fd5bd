"""The benchmark of augmentation: what it measures, and how it says it. How fast anything is, is not tested."""

from __future__ import annotations

import json

import pytest

from shardmill.augment import PRESETS, get_preset
from shardmill.bench import BenchmarkConfig, BenchmarkRunner, measure_memory, measure_time
from shardmill.bench.augment import bench_augment
from shardmill.core.batching import BatchStrategy
from shardmill.core.errors import UsageError


def test_each_thing_is_measured_and_reported() -> None:
    runner = bench_augment(512, "mild", 1)
    names = [m.name for m in runner.results]
    assert names[:2] == ["columns", "stream of dicts"]
    assert names[2:] == ["batches, sequential", "batches, memory_optimized", "reseeding a generator"]
    assert [m.samples for m in runner.results] == [512, 64, 64, 64, 2]
    table, page, plain = runner.report(), runner.report("html"), json.loads(runner.report("json"))
    for name, found in zip(names, plain["results"], strict=True):
        assert name in table
        assert name in page
        assert found["throughput_samples_per_second"] > 0
        assert found["cpu_seconds"] >= 0
    assert page.count("<rect") == 5
    assert plain["machine"]["cores"] >= 1


def test_configurations_are_compared_under_their_names() -> None:
    found = BenchmarkRunner(
        BenchmarkConfig(iterations=2, measure_cpu=False, measure_memory=False)
    ).compare_configurations(PRESETS, 100)
    assert list(found) == list(PRESETS)
    assert all(m.cpu_seconds is None and m.memory_delta_mb is None for m in found.values())
    assert all(m.fastest_seconds <= m.elapsed_seconds for m in found.values())


def test_the_global_generator_is_left_as_it_was() -> None:
    import numpy as np

    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    BenchmarkRunner(BenchmarkConfig(1)).benchmark_reseeding(3, get_preset("mild"))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr]


def test_time_and_memory_are_there_even_after_a_failure() -> None:
    with pytest.raises(KeyError), measure_time() as timer, measure_memory() as memory:
        raise KeyError
    assert timer["elapsed_seconds"] >= 0
    assert memory["delta_mb"] == memory["end_mb"] - memory["start_mb"]
    held = []
    with measure_memory() as memory:
        held.append(bytearray(64 << 20))
    assert 60 < memory["delta_mb"] < 80


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(UsageError):
        BenchmarkConfig(iterations=0)
    runner = BenchmarkRunner()
    with pytest.raises(UsageError):
        runner.benchmark_batch_processing(0, get_preset("mild"), BatchStrategy.ADAPTIVE)
    with pytest.raises(UsageError, match="No report"):
        runner.report("pdf")
