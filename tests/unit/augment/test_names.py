"""The public names of augmentation as scripts use them: names, order of arguments, keywords, attributes of results.

Scripts that were written for an older library of the same names run here with their imports changed, and no other line.
"""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.augment import (
    AugmentationConfig,
    gen_augmentation_params,
    gen_distributed_augmentation_params,
    get_preset,
    stream_augmentation_chain,
    stream_distributed_augmentation_chain,
)
from shardmill.bench import BenchmarkConfig, BenchmarkRunner, measure_memory, measure_time
from shardmill.core.batching import BatchConfig, BatchProcessor, BatchStrategy
from shardmill.core.ranges import DistributedRangeSplitter
from tests.support.waiting import PATIENCE_S

FIVE = ["rotation", "brightness", "noise", "scale", "contrast"]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (gen_augmentation_params, ["sample_id", "config"]),
        (gen_distributed_augmentation_params, ["sample_id", "rank", "world_size", "config"]),
        (stream_augmentation_chain, ["num_samples", "config", "start_id", "chunk_size"]),
        (
            stream_distributed_augmentation_chain,
            ["num_samples", "rank", "world_size", "config", "start_id", "chunk_size"],
        ),
        (DistributedRangeSplitter, ["num_samples", "world_size"]),
        (BatchProcessor, ["strategy", "config"]),
        (BenchmarkRunner.benchmark_generation, ["self", "num_samples", "config"]),
    ],
)
def test_arguments_keep_their_names_and_order(function: Callable[..., Any], arguments: list[str]) -> None:
    assert list(inspect.signature(function).parameters)[: len(arguments)] == arguments


def test_parameters_are_a_dict_of_five_floats_by_keywords_or_by_place() -> None:
    config = get_preset("mild")
    named = gen_distributed_augmentation_params(sample_id=3, rank=1, world_size=4, config=config)
    assert named == gen_distributed_augmentation_params(3, 1, 4, config)
    assert list(named) == FIVE
    assert all(type(value) is float for value in named.values())
    assert list(gen_augmentation_params(sample_id=3, config=config)) == FIVE


@pytest.mark.parametrize("samples", [40, 40.0, float("inf")])
def test_a_stream_is_looped_over_whether_or_not_it_ends(samples: float) -> None:
    stream = stream_augmentation_chain(num_samples=samples, config=AugmentationConfig(), chunk_size=16)
    taken = list(itertools.islice(stream, 40))
    assert len(taken) == 40
    assert taken[39] == gen_augmentation_params(39, AugmentationConfig())


@pytest.mark.parametrize("strategy", ["SEQUENTIAL", "ROUND_ROBIN", "MEMORY_OPTIMIZED", "ADAPTIVE"])
def test_a_stream_goes_through_a_processor_with_a_limit_and_a_minimum(strategy: str) -> None:
    chosen = BatchStrategy[strategy]
    limits = BatchConfig(strategy=chosen, max_memory_mb=8000, min_batch_size=64)
    stream = stream_augmentation_chain(num_samples=1000, config=get_preset("aggressive"), chunk_size=500)
    done = 0
    for batch in BatchProcessor(chosen, limits).process_stream(stream):
        assert list(batch[0]) == FIVE
        done += len(batch)
    assert done == 1000


def test_ranges_of_ranks_are_made_and_validated() -> None:
    splitter = DistributedRangeSplitter(1_000_003, 32)
    assert splitter.validate_ranges() is True
    assert splitter.get_rank_range(0) == splitter.get_all_ranges()[0]
    assert splitter.get_rank_for_sample(1_000_002) == 31
    assert DistributedRangeSplitter(num_samples=10, world_size=2).validate_ranges([(0, 5), (6, 10)]) is False


def _count(rank: int, world_size: int, num_samples: int, found: Any) -> None:
    stream = stream_distributed_augmentation_chain(
        num_samples=num_samples, rank=rank, world_size=world_size, config=get_preset("moderate")
    )
    found.put((rank, [params["scale"] for params in stream]))


def test_a_process_for_each_rank_of_a_node() -> None:
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    started = [context.Process(target=_count, args=(rank, 4, 403, found)) for rank in (2, 3)]
    for process in started:
        process.start()
    got = dict(found.get(timeout=PATIENCE_S) for _ in started)
    for process in started:
        process.join()
    scales = [params["scale"] for params in stream_augmentation_chain(403, get_preset("moderate"))]
    assert got == {2: scales[2::4], 3: scales[3::4]}


def test_a_rank_asks_torch_which_it_is(tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group(backend="gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        stream = stream_distributed_augmentation_chain(
            num_samples=7, rank=dist.get_rank(), world_size=dist.get_world_size(), config=get_preset("mild")
        )
        assert len(list(stream)) == 7
    finally:
        dist.destroy_process_group()


def test_a_runner_names_its_throughput_and_the_meters_their_figures() -> None:
    runner = BenchmarkRunner(BenchmarkConfig(iterations=2, measure_memory=True, measure_cpu=True))
    assert runner.benchmark_generation(1000, get_preset("mild")).throughput_samples_per_second > 0
    with measure_time() as timer, measure_memory() as memory:
        sum(range(1000))
    assert timer["elapsed_seconds"] > 0
    assert isinstance(memory["delta_mb"], float)
