"""Reads files whose items are not lines as blocks of JSON lines, with the readers of `sources`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from shardmill.plan import SourceFile, SourceStat
from shardmill.sources.formats import find_reader
from shardmill.verbs.split.blocks import Blocks, gather
from shardmill.verbs.split.items import At, encode_item, read_share
from shardmill.verbs.split.tables import infer_schema


def read_rows(stat: SourceStat, file: SourceFile, at: At) -> Blocks:
    """Read the items of a file; progress in bytes goes to `at`."""
    position = 0

    def lines() -> Iterator[bytes]:
        nonlocal position
        rows = find_reader(stat.format).iter_rows(stat, file)
        for i, (row, read_bytes) in enumerate(rows):
            position = read_bytes
            yield row if isinstance(row, bytes) else encode_item(row, i)

    for block in gather(lines()):
        yield block
        at(read_share(file, position))


def find_schema(stat: SourceStat) -> pa.Schema | None:
    """The schema of the source, or one inferred from a sample of all of it; None if the first items are enough."""
    found = find_reader(stat.format).sample(stat)
    return infer_schema(found) if isinstance(found, list) else found
