"""Benchmark a task on this machine: `shardmill bench embed`, `shardmill bench augment`.

from shardmill.bench.embed import EmbedBench, bench_embed

result = bench_embed(EmbedBench(device="cpu", texts=2000))
"""

from shardmill.bench.augment import BenchmarkConfig, BenchmarkMetrics, BenchmarkRunner
from shardmill.bench.measure import measure_memory, measure_time

__all__ = ["BenchmarkConfig", "BenchmarkMetrics", "BenchmarkRunner", "measure_memory", "measure_time"]
