"""Splits a dataset into chunks that become visible all at once or not at all.

The public package and the command line import it. It reads through `sources`.
"""

from shardmill.split.spec import Cut, SplitSpec, parse_bytes, parse_splits
from shardmill.split.splitter import StreamingDatasetSplitter, split, split_files

__all__ = ["Cut", "SplitSpec", "StreamingDatasetSplitter", "parse_bytes", "parse_splits", "split", "split_files"]
