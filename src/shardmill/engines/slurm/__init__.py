"""Slurm: an array job whose tasks are workers. They pull shards, so it does not matter how many start, or when."""

from shardmill.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
