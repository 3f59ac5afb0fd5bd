"""Batches a stream with one of five strategies. TOKEN_BUDGET is what the embed worker uses."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from shardmill.core.batching.budget import plan_batches
from shardmill.core.batching.sizes import free_bytes, size_bytes
from shardmill.core.errors import UsageError

T = TypeVar("T")
_STEP = 1.5
_BETTER = 1.05
_LOOK_AGAIN_BYTES = 1 << 20


class BatchStrategy(enum.Enum):
    """How samples of a stream are grouped into batches."""

    SEQUENTIAL = "sequential"
    ROUND_ROBIN = "round_robin"
    MEMORY_OPTIMIZED = "memory_optimized"
    ADAPTIVE = "adaptive"
    TOKEN_BUDGET = "token_budget"


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Sizes and limits. `batch_size` is the size of a batch, or the initial size of ADAPTIVE.

    ROUND_ROBIN distributes samples over `bins` batches. `cost` returns the cost of a sample within `token_budget`;
    TOKEN_BUDGET sorts `window` samples at a time. A batch of MEMORY_OPTIMIZED takes at most `max_memory_mb`, and at
    most half of the free memory.
    """

    strategy: BatchStrategy = BatchStrategy.SEQUENTIAL
    batch_size: int = 256
    min_batch_size: int = 1
    max_batch_size: int = 65_536
    max_memory_mb: float = 1024.0
    bins: int = 8
    token_budget: int = 16_384
    window: int = 4096
    cost: Callable[[Any], int] = len
    free_bytes: Callable[[], int] = free_bytes

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "min_batch_size",
            "max_batch_size",
            "max_memory_mb",
            "bins",
            "token_budget",
            "window",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}.", hint="Give a number above 0.")
        if self.min_batch_size > self.max_batch_size:
            raise UsageError(
                f"min_batch_size {self.min_batch_size} is above max_batch_size {self.max_batch_size}.",
                hint="Lower min_batch_size or raise max_batch_size.",
            )


@dataclass(slots=True)
class BatchMetrics:
    """Totals of a stream so far. `consumer_s` is the time that the consumer spent on the batches."""

    batches: int = 0
    samples: int = 0
    smallest: int = 0
    largest: int = 0
    consumer_s: float = 0.0

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.consumer_s if self.consumer_s else 0.0

    def add(self, size: int, took_s: float) -> None:
        self.batches += 1
        self.samples += size
        self.smallest = min(size, self.smallest or size)
        self.largest = max(size, self.largest)
        self.consumer_s += took_s


class BatchProcessor:
    """Batches a stream; each sample is in exactly one batch. Without `strategy`, the config's strategy is used.

    for batch in BatchProcessor(BatchStrategy.ADAPTIVE).process_stream(samples):
        train(batch)
    """

    def __init__(self, strategy: BatchStrategy | str | None = None, config: BatchConfig | None = None) -> None:
        if strategy is None:
            strategy = (config or BatchConfig()).strategy
        try:
            self.strategy = BatchStrategy(strategy)
        except ValueError:
            known = ", ".join(s.value for s in BatchStrategy)
            raise UsageError(f"{strategy!r} is not a strategy.", hint=f"Use one of {known}.") from None
        self.config = config or BatchConfig(self.strategy)
        self.metrics = BatchMetrics()
        self._took_s = 0.0

    def process_stream(self, stream: Iterable[T]) -> Iterator[list[T]]:
        """Yield batches lazily; memory holds one batch, the bins of ROUND_ROBIN or the window of TOKEN_BUDGET."""
        make = {
            BatchStrategy.SEQUENTIAL: self._sequential,
            BatchStrategy.ROUND_ROBIN: self._round_robin,
            BatchStrategy.MEMORY_OPTIMIZED: self._by_memory,
            BatchStrategy.ADAPTIVE: self._adaptive,
            BatchStrategy.TOKEN_BUDGET: self._by_tokens,
        }[self.strategy]
        for batch in make(iter(stream)):
            size, began = len(batch), time.perf_counter()
            yield batch
            self._took_s = time.perf_counter() - began
            self.metrics.add(size, self._took_s)

    def _sequential(self, stream: Iterator[T]) -> Iterator[list[T]]:
        while batch := list(islice(stream, self.config.batch_size)):
            yield batch

    def _round_robin(self, stream: Iterator[T]) -> Iterator[list[T]]:
        """Deal samples like cards: neighbours in the stream go to different batches."""
        bins = self.config.bins
        while held := list(islice(stream, bins * self.config.batch_size)):
            yield from (batch for i in range(bins) if (batch := held[i::bins]))

    def _by_memory(self, stream: Iterator[T]) -> Iterator[list[T]]:
        """Make batches as large as memory allows. Under pressure they shrink to the minimum; the limit always holds."""
        config, limit = self.config, self.config.max_memory_mb * (1 << 20)
        batch: list[T] = []
        held, looked, allowed = 0, 0, min(limit, config.free_bytes() / 2)
        for sample in stream:
            size = size_bytes(sample)
            if held + size > allowed or len(batch) >= config.max_batch_size:
                self._check_memory(batch, held, size, limit)
                if len(batch) >= config.min_batch_size:
                    yield batch
                    batch, held, looked, allowed = [], 0, 0, min(limit, config.free_bytes() / 2)
            batch.append(sample)
            held += size
            if held - looked >= _LOOK_AGAIN_BYTES:
                looked, allowed = held, min(limit, held + config.free_bytes() / 2)
        if batch:
            yield batch

    def _check_memory(self, batch: list[T], held: int, size: int, limit: float) -> None:
        """Refuse a sample that is over the limit, alone or in a batch of the minimum size."""
        least = self.config.min_batch_size
        if size > limit:
            raise UsageError(
                f"One sample takes {size:,} bytes, over the limit of {limit:,.0f}.", hint="Raise max_memory_mb."
            )
        if held + size > limit and len(batch) < least:
            raise UsageError(
                f"{least} samples of about {held // len(batch):,} bytes are over {limit:,.0f}.",
                hint="Raise max_memory_mb or lower min_batch_size.",
            )

    def _adaptive(self, stream: Iterator[T]) -> Iterator[list[T]]:
        """Climb: keep changing the size in the direction that makes the consumer faster, else reverse."""
        config = self.config
        size = float(min(max(config.batch_size, config.min_batch_size), config.max_batch_size))
        factor, before = _STEP, 0.0
        while batch := list(islice(stream, round(size))):
            full = len(batch)
            yield batch
            rate = full / self._took_s if self._took_s else float("inf")
            if rate < before * _BETTER:
                factor = 1 / factor
            before = rate
            size = min(max(size * factor, config.min_batch_size), config.max_batch_size)

    def _by_tokens(self, stream: Iterator[T]) -> Iterator[list[T]]:
        while held := list(islice(stream, self.config.window)):
            costs = np.array([self.config.cost(sample) for sample in held], np.int64)
            for batch in plan_batches(costs, self.config.token_budget):
                yield [held[i] for i in batch]
