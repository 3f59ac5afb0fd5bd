"""Groups items into batches: by a cost budget, by count, by memory, or by the speed of the consumer."""

from shardmill.core.batching.budget import Budget, plan_batches
from shardmill.core.batching.processor import BatchConfig, BatchMetrics, BatchProcessor, BatchStrategy
from shardmill.core.batching.sizes import size_bytes

__all__ = [
    "BatchConfig",
    "BatchMetrics",
    "BatchProcessor",
    "BatchStrategy",
    "Budget",
    "plan_batches",
    "size_bytes",
]
