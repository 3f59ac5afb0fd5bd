"""Slurm: an array job whose tasks are workers. They pull shards, so it does not matter how many start, or when.

Design: docs/design/engines.md
"""

from shardmill.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
