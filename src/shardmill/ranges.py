"""Ranges of integers, and how they are divided among processes."""

from shardmill.core.ranges import DistributedRangeSplitter

__all__ = ["DistributedRangeSplitter"]
