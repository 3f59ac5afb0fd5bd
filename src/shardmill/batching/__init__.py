"""Which items go through the model together: by a budget of cost, by count, by memory, by the consumer's speed."""

from shardmill.batching.budget import Budget, plan_batches
from shardmill.batching.processor import BatchConfig, BatchMetrics, BatchProcessor, BatchStrategy
from shardmill.batching.sizes import size_bytes

__all__ = [
    "BatchConfig",
    "BatchMetrics",
    "BatchProcessor",
    "BatchStrategy",
    "Budget",
    "plan_batches",
    "size_bytes",
]
