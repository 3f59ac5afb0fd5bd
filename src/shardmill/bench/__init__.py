"""Measure what this machine does with a task, on real runs: `shardmill bench embed`.

from shardmill.bench.embed import EmbedBench, bench_embed

result = bench_embed(EmbedBench(device="cpu", texts=2000))
"""
