"""Slurm: an array job whose tasks are workers. They pull shards, so the queue may let in few of them, and late."""

from shardmill.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmEngine"]
