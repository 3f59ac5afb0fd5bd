"""One process on one device: claims shards, reads, prepares, runs, writes, commits.

Design: docs/design/the-worker.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.worker.pipeline import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    """Import the worker when it is used: its process must heed signals before it imports libraries."""
    if name == "Worker":
        from shardmill.worker.pipeline import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
