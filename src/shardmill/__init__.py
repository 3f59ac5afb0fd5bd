"""shardmill: run a model over every item of a dataset, lose nothing, prove the result.

import shardmill

run = shardmill.embed("reviews.jsonl", text="reviewText", out="runs/reviews")
run.verify()
table = run.table()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardmill._version import __version__

_HOMES = {
    "Run": "shardmill.run",
    "answer": "shardmill.api",
    "apply": "shardmill.api",
    "ask": "shardmill.api",
    "calculate_optimal_chunks": "shardmill.sizing.chunks",
    "dedup": "shardmill.api",
    "embed": "shardmill.api",
    "generate": "shardmill.api",
    "load": "shardmill.api",
    "map": "shardmill.api",
    "prepare": "shardmill.run",
    "start": "shardmill.run",
    "summarize": "shardmill.api",
    "task": "shardmill.calls",
    "train": "shardmill.api",
    "tune": "shardmill.api",
    "StreamingDatasetSplitter": "shardmill.split",
    "Spec": "shardmill.spec",
    "make_spec": "shardmill.spec",
    "work": "shardmill.run",
    "ShardmillError": "shardmill.errors",
    "UsageError": "shardmill.errors",
}

__all__ = [
    "Run",
    "ShardmillError",
    "Spec",
    "StreamingDatasetSplitter",
    "UsageError",
    "__version__",
    "answer",
    "apply",
    "ask",
    "calculate_optimal_chunks",
    "dedup",
    "embed",
    "generate",
    "load",
    "make_spec",
    "map",
    "prepare",
    "start",
    "summarize",
    "task",
    "train",
    "tune",
    "work",
]

if TYPE_CHECKING:
    from shardmill.api import answer, apply, ask, dedup, embed, generate, load, map, summarize, train, tune
    from shardmill.calls import task
    from shardmill.errors import ShardmillError, UsageError
    from shardmill.run import Run, prepare, start, work
    from shardmill.sizing.chunks import calculate_optimal_chunks
    from shardmill.spec import Spec, make_spec
    from shardmill.split import StreamingDatasetSplitter


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
