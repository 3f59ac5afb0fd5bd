"""Benchmarks of speed and memory, each beside its peers. docs/benchmarks.md has the results."""
