"""A dataset cut into chunks that are there all together or not at all.

The public package and the command line import it. It reads with the readers of `sources`.
"""

from shardmill.split.spec import Cut, SplitSpec, parse_bytes, parse_splits
from shardmill.split.splitter import StreamingDatasetSplitter, split, split_files

__all__ = ["Cut", "SplitSpec", "StreamingDatasetSplitter", "parse_bytes", "parse_splits", "split", "split_files"]
