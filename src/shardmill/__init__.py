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
    "answer": "shardmill.verbs.functions",
    "apply": "shardmill.verbs.functions",
    "ask": "shardmill.verbs.functions",
    "audit": "shardmill.verbs.functions",
    "calculate_optimal_chunks": "shardmill.plan.sizing.chunks",
    "classify": "shardmill.verbs.functions",
    "dedup": "shardmill.verbs.functions",
    "embed": "shardmill.verbs.functions",
    "embed_sparse": "shardmill.verbs.functions",
    "embed_tokens": "shardmill.verbs.functions",
    "generate": "shardmill.verbs.functions",
    "load": "shardmill.verbs.functions",
    "map": "shardmill.verbs.functions",
    "migrate": "shardmill.verbs.functions",
    "peek": "shardmill.verbs.functions",
    "prepare": "shardmill.run",
    "receipt": "shardmill.verbs.functions",
    "refresh": "shardmill.verbs.functions",
    "score": "shardmill.verbs.functions",
    "start": "shardmill.run",
    "summarize": "shardmill.verbs.functions",
    "task": "shardmill.core.functions",
    "train": "shardmill.verbs.functions",
    "tune": "shardmill.verbs.functions",
    "StreamingDatasetSplitter": "shardmill.verbs.split",
    "Spec": "shardmill.plan.spec",
    "make_spec": "shardmill.plan.spec",
    "work": "shardmill.run",
    "ShardmillError": "shardmill.core.errors",
    "UsageError": "shardmill.core.errors",
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
    "audit",
    "calculate_optimal_chunks",
    "classify",
    "dedup",
    "embed",
    "embed_sparse",
    "embed_tokens",
    "generate",
    "load",
    "make_spec",
    "map",
    "migrate",
    "peek",
    "prepare",
    "receipt",
    "refresh",
    "score",
    "start",
    "summarize",
    "task",
    "train",
    "tune",
    "work",
]

if TYPE_CHECKING:
    from shardmill.core.errors import ShardmillError, UsageError
    from shardmill.core.functions import task
    from shardmill.plan.sizing.chunks import calculate_optimal_chunks
    from shardmill.plan.spec import Spec, make_spec
    from shardmill.run import Run, prepare, start, work
    from shardmill.verbs.functions import (
        answer,
        apply,
        ask,
        audit,
        classify,
        dedup,
        embed,
        embed_sparse,
        embed_tokens,
        generate,
        load,
        map,
        migrate,
        peek,
        receipt,
        refresh,
        score,
        summarize,
        train,
        tune,
    )
    from shardmill.verbs.split import StreamingDatasetSplitter


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if (function := _find_function(name)) is None:
        raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
    return function


def _find_function(name: str) -> Any:
    """The function of a verb that an installed package brings."""
    from importlib.util import find_spec

    # `from shardmill import cli` asks for an attribute first.
    if name.startswith("_") or find_spec(f"shardmill.{name}"):
        return None
    from shardmill.plugins import find_brought

    verb = find_brought("verbs", name)
    if verb is None or not verb.call:
        return None
    from shardmill.run.function import make_function

    return make_function(verb)


def __dir__() -> list[str]:
    return sorted(__all__)
