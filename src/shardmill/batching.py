"""Batches of items within a budget of tokens or memory."""

from shardmill.core.batching import *  # noqa: F403
from shardmill.core.batching import __all__ as __all__
