"""All rows of any source as one item: a task that learns from them needs them together and in any order.

Planning copies the columns that the task reads into one Parquet file, which the run folder keeps as an index of the
source. The item's text is the place of that file.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceStat
from shardmill.sources.files import stat_file
from shardmill.sources.grouped import ITEMS, LEFT_OUT, OnProgress
from shardmill.store import locate

# Columns of the file beside those of the source: the row of the source, and why it cannot be used.
ROW, WHY = "row", "why"
_LINES = b"lines"
_READ_BYTES = 64 << 20


def fields_below(fields: Fields) -> Fields:
    """What is read of the source whose rows are collected."""
    for name in (*fields.id, *fields.keep):
        raise SourceError(
            f"the column {name!r} cannot be kept: all rows are one item.", hint=f"It has {ITEMS!r} and {LEFT_OUT!r}."
        )
    for name in fields.wanted:
        if name in (ROW, WHY, ITEMS, LEFT_OUT):
            raise SourceError(f"the column {name!r} has the name of one of our own.", hint="Rename it in the source.")
    return replace(fields, group_by="")


def describe_collection(below: SourceStat) -> SourceStat:
    """The source as one item: the same files, and two more columns. `collect` makes it readable."""
    return replace(below, columns={**below.columns, ITEMS: "int64", LEFT_OUT: "int64"})


def collect(
    stat: SourceStat,
    fields: Fields,
    max_item_bytes: int,
    open_below: Callable[[SourceStat, Fields, int], Source],
    on_progress: OnProgress,
) -> SourceStat:
    """Write the rows to a file in bounded memory, and name it as the index of the first file."""
    own = fields_below(fields)
    columns = {name: kind for name, kind in stat.columns.items() if name not in (ITEMS, LEFT_OUT)}
    source = open_below(replace(stat, columns=columns), own, max_item_bytes)
    folder = Path(tempfile.mkdtemp(prefix="shardmill-collected-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "rows.parquet"
    kinds = [pa.field(name, arrow_type(kind)) for name, kind in columns.items()]
    schema = pa.schema([pa.field(ROW, pa.int64()), pa.field(WHY, pa.string()), *kinds])
    shards, rows, lines, done = source.shards(_READ_BYTES), 0, 0, 0
    total = sum(shard.weight_bytes for shard in shards) or 1
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for shard in shards:
            for batch in source.read(shard):
                why = pa.array([batch.bad.get(i) for i in range(len(batch))], pa.string())
                numbers = pa.array(range(rows, rows + len(batch)), pa.int64())
                own_columns = [batch.kept.column(name) for name in columns]
                writer.write_batch(pa.RecordBatch.from_arrays([numbers, why, *own_columns], schema=schema))
                rows, lines = rows + len(batch), lines + batch.line_count
            done += shard.weight_bytes
            on_progress(done / total, "collecting rows")
        writer.add_key_value_metadata({_LINES.decode(): str(lines)})
    files = [replace(file, entries=(), index="") for file in stat.files]
    return replace(stat, files=(replace(files[0], index=str(path)), *files[1:]))


class CollectedSource(Source):
    """The file that `collect` wrote, as one shard of one item."""

    def __init__(self, stat: SourceStat) -> None:
        self._stat = stat

    def shards(self, target_bytes: int) -> list[Shard]:
        place = self._place()
        found = stat_file(place)
        return [Shard(0, 0, 0, 1, max(1, found.size if found else 1), files=len(self._stat.files))]

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        place = self._place()
        store, name = locate(place)
        with store.reader(name) as data, pq.ParquetFile(data) as file:
            whys = file.read([WHY]).column(WHY)
            rows, lines = file.metadata.num_rows, int(file.metadata.metadata[_LINES])
        counts = {ITEMS: whys.null_count, LEFT_OUT: rows - whys.null_count}
        yield ItemBatch(
            texts=pa.array([place], pa.string()),
            kept=pa.RecordBatch.from_pylist([counts], pa.schema([(name, pa.int64()) for name in counts])),
            lines=range(1, 2),
            # Of items that get the same rows, the first counts them.
            line_count=0 if shard.index else lines,
            size_bytes=shard.weight_bytes,
        )

    def _place(self) -> str:
        place = self._stat.files[0].index
        if stat_file(place) is None:
            raise SourceError(f"{place} is gone.", hint="Start over with --fresh: it is built again.")
        return place
