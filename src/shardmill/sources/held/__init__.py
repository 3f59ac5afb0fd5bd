"""Data in memory as a source: frames, Arrow tables, datasets, lists and iterators, as Arrow batches.

Libraries of others are recognized by the names of their classes, and never imported from here.
"""

from __future__ import annotations

from shardmill.sources.held.data import TEXT, VECTOR, HeldData, ValueDigest, find_held

__all__ = ["TEXT", "VECTOR", "HeldData", "ValueDigest", "find_held"]
