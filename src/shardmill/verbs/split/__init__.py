"""Splits a dataset into chunks that become visible all at once or not at all.

The public package and the command line import it. It reads through `sources`.

Design: docs/design/planning-and-sources.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardmill.plugins.base import Verb

if TYPE_CHECKING:
    from shardmill.verbs.split.spec import Cut, SplitSpec, parse_bytes, parse_splits
    from shardmill.verbs.split.splitter import StreamingDatasetSplitter, split, split_files

__all__ = [
    "VERB",
    "Cut",
    "SplitSpec",
    "StreamingDatasetSplitter",
    "parse_bytes",
    "parse_splits",
    "split",
    "split_files",
]

VERB = Verb(
    name="split",
    summary="Cut a source into chunks, for other programs or for training.",
    about="The dataset appears when all chunks are written.",
    resumes=True,
    examples=(
        "shardmill split reviews.jsonl --out s3://bucket --bytes 64MB",
        "shardmill split reviews.jsonl --out data --shuffle 7 --splits train=0.9,test=0.1 --by hash:asin",
        'shardmill split postgresql://user@host/db --query "SELECT * FROM documents" --out data',
    ),
    options="shardmill.verbs.split.options:SplitOptions",
    start="shardmill.verbs.split.start:start",
    show="shardmill.verbs.split.start:show_dataset",
)

_SPEC = ("Cut", "SplitSpec", "parse_bytes", "parse_splits")
_SPLITTER = ("StreamingDatasetSplitter", "split", "split_files")


def __getattr__(name: str) -> Any:
    """What the package offers, imported when it is used: whoever lists the verbs needs none of it."""
    from importlib import import_module

    for module, names in (("spec", _SPEC), ("splitter", _SPLITTER)):
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
