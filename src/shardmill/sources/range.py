"""A range of ids as a source, such as `range:0:100000000`: every id is an item, and no file is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from shardmill.core.errors import SourceError
from shardmill.core.ranges import split_evenly
from shardmill.core.template import NO_TEXT
from shardmill.plan import Shard, SourceFile, SourceStat
from shardmill.sources.base import Fields, ItemBatch, Source

FORMAT = "range"
COLUMN = "sample_id"
_BATCH_ROWS = 1 << 16


def items_place(count: int) -> str:
    """The range of a task's own items."""
    return f"{FORMAT}:0:{count}"


def parse_range(place: str) -> tuple[int, int]:
    match = re.fullmatch(rf"{FORMAT}:(\d+):(\d+)", place)
    start, stop = (int(match[1]), int(match[2])) if match else (0, 0)
    if not start < stop <= 1 << 64:
        raise SourceError(f"{place!r} is not a range of ids.", hint="Write range:START:STOP, from 0 up to 2**64.")
    return start, stop


def discover(places: Sequence[str], fields: Fields) -> SourceStat:
    """A range counts as one file, with one byte per id."""
    if len(places) != 1:
        raise SourceError("Two ranges of ids cannot be combined.", hint="Name one source.")
    texts = () if fields.text == NO_TEXT else (fields.text,)
    for name in (*texts, *fields.id, *fields.keep, *fields.wanted):
        if name != COLUMN:
            raise SourceError(f"A range of ids has no field {name!r}.", hint=f"Its only field is {COLUMN!r}.")
    start, stop = parse_range(places[0])
    columns = {COLUMN: "uint64"} if fields.id or fields.keep or fields.wanted else {}
    return SourceStat(FORMAT, (SourceFile(places[0], stop - start, FORMAT, ""),), columns)


def list_columns(places: Sequence[str], query: str) -> dict[str, pa.DataType]:
    return {COLUMN: pa.int64()}


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> RangeSource:
    return RangeSource(stat)


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    return file.size_bytes


class RangeSource(Source):
    def __init__(self, stat: SourceStat) -> None:
        self._stat = stat

    def shards(self, target_bytes: int) -> list[Shard]:
        start, stop = parse_range(self._stat.files[0].place)
        parts = -(-(stop - start) // max(1, target_bytes))
        return [Shard(i, 0, a, b, b - a) for i, (a, b) in enumerate(split_evenly(start, stop, parts))]

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        for start in range(shard.start, shard.stop, _BATCH_ROWS):
            count = min(_BATCH_ROWS, shard.stop - start)
            ids = pa.array(np.arange(count, dtype=np.uint64) + np.uint64(start))
            kept = pa.record_batch({COLUMN: ids}).select(list(self._stat.columns))
            first = start - shard.start + 1
            yield ItemBatch(
                *(ids.cast(pa.string()), kept, range(first, first + count), count),
                size_bytes=count,
                places=range(start, start + count),
            )
