"""Rows of any source that share a key as one item, its texts joined in order.

Planning sorts the rows by their key in bounded memory and writes the groups to a file, which the run folder keeps as
an index of the source; workers read groups from there. A group larger than an item may be is several items.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import GroupTooLarge, SourceError
from shardmill.core.ranges import split_weighted
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.files import stat_file
from shardmill.sources.parquet import open_parquet
from shardmill.sources.sorting import ExternalSort

# The columns of every group besides its key: texts in it, and rows without a usable text.
ITEMS, LEFT_OUT = "items", "left_out"
BETWEEN = "\n\n"

_KEY, _TEXT, _LINES, _SIZE = "key", "text", "lines", "size"
_READ_BYTES = 64 << 20
_ROW_GROUP_BYTES = 256 << 10
_MOST_ROW_GROUPS = 20_000

OnProgress = Callable[[float, str], None]


def fields_below(fields: Fields) -> Fields:
    """What is read of the source whose rows are grouped. Counts of an earlier grouping may be kept: they add up."""
    others = [name for name in (*fields.keep, *fields.wanted) if name not in (ITEMS, LEFT_OUT)]
    if fields.query or others or fields.group_by in (ITEMS, LEFT_OUT):
        what = "a query" if fields.query else f"the column {(*others, fields.group_by)[0]!r}"
        raise SourceError(
            f"{what} and a grouped source do not go together.",
            hint=f"A group has its key, {ITEMS!r} and {LEFT_OUT!r}. Run the task on the rows, then group that run.",
        )
    return replace(fields, id=(), keep=(fields.group_by, *fields.keep), group_by="")


def describe_groups(below: SourceStat, fields: Fields) -> SourceStat:
    """The source as groups: the same files, other columns. `sort_groups` makes it readable."""
    kind = arrow_type(below.columns[fields.group_by])
    checks = (pa.types.is_string, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date)
    if not any(check(kind) for check in checks):
        raise SourceError(
            f"Rows cannot be grouped by {fields.group_by!r}, which has type {kind}.",
            hint="Group by a column of text, whole numbers, numbers, dates, or true and false.",
        )
    return replace(below, columns={fields.group_by: below.columns[fields.group_by], ITEMS: "int64", LEFT_OUT: "int64"})


def sort_groups(
    stat: SourceStat,
    fields: Fields,
    max_item_bytes: int,
    open_below: Callable[[SourceStat, Fields, int], Source],
    on_progress: OnProgress,
) -> SourceStat:
    """Sort the rows by their key, write the groups to a file, and name it as the index of the first file.

    If the key is the id of the items, a group that does not fit into one of them is refused.
    """
    own = fields_below(fields)
    below = replace(stat, columns={name: stat.columns[name] for name in own.keep})
    source = open_below(below, own, max_item_bytes)
    path = _scratch() / "groups.parquet"
    with ExternalSort(_KEY) as rows:
        for batch in _rows(source, own, fields.group_by, on_progress):
            rows.add(batch)
        row_group_bytes = max(_ROW_GROUP_BYTES, stat.size_bytes // _MOST_ROW_GROUPS)
        groups = _join(rows.drain(), max_item_bytes, whole=fields.id == (fields.group_by,))
        _write(path, groups, arrow_type(stat.columns[fields.group_by]), row_group_bytes)
    # Workers read the groups and nothing else, so the files need no seek points of their own.
    files = [replace(file, entries=(), index="") for file in stat.files]
    return replace(stat, files=(replace(files[0], index=str(path)), *files[1:]))


def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shardmill-groups-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _rows(source: Source, own: Fields, key: str, on_progress: OnProgress) -> Iterator[pa.RecordBatch]:
    """Keys, texts and counts of all rows; lines without a row, such as blank ones, count with a row beside them."""
    shards = source.shards(_READ_BYTES)
    total, done, blank = sum(shard.weight_bytes for shard in shards) or 1, 0, 0
    held: ItemBatch | None = None
    for shard in shards:
        for batch in source.read(shard):
            if len(batch) and held is not None:
                yield _row_batch(held, own, key, blank)
                held, blank = None, 0
            held = batch if len(batch) else held
            blank += batch.line_count - len(batch)
        done += shard.weight_bytes
        on_progress(done / total, "sorting rows into groups")
    if held is not None:
        yield _row_batch(held, own, key, blank)


def _row_batch(batch: ItemBatch, own: Fields, key: str, blank: int) -> pa.RecordBatch:
    keys = batch.kept.column(key)
    if pa.types.is_floating(keys.type):
        keys = pc.if_else(pc.is_nan(keys), pa.scalar(None, keys.type), keys)
    lines = pa.array([1 + blank, *[1] * (len(batch) - 1)], pa.int64())
    usable = batch.texts.is_valid().cast(pa.int64())
    counts = [usable, pc.subtract(1, usable)]
    if len(own.keep) > 1:
        # A text that stands for several counts for these; if it is missing, so are they.
        there, lost = (pc.fill_null(batch.kept.column(name), 0).cast(pa.int64()) for name in (ITEMS, LEFT_OUT))
        counts = [pc.multiply(usable, there), pc.add(lost, pc.multiply(pc.subtract(1, usable), there))]
    return pa.RecordBatch.from_arrays([keys, batch.texts, lines, *counts], names=[_KEY, _TEXT, _LINES, ITEMS, LEFT_OUT])


@dataclass(slots=True)
class _Group:
    """What is known so far of the group, or the piece of one, that is being joined."""

    key: Any
    texts: list[str] = field(default_factory=list)
    size: int = 0
    lines: int = 0
    items: int = 0
    left_out: int = 0

    def add(self, text: str | None, size: int, lines: int, items: int, left_out: int) -> None:
        self.texts += [] if text is None else [text]
        self.size += size
        self.lines += lines
        self.items += items
        self.left_out += left_out

    def row(self) -> dict[str, Any]:
        text = BETWEEN.join(self.texts) if self.texts else None
        counts = {_LINES: self.lines, ITEMS: self.items, LEFT_OUT: self.left_out}
        return {_KEY: self.key, _TEXT: text, _SIZE: self.size, **counts}


def _join(batches: Iterable[pa.RecordBatch], most_bytes: int, *, whole: bool) -> Iterator[dict[str, Any]]:
    """One row per group, in the order of the keys; several if its texts exceed `most_bytes` together."""
    group: _Group | None = None
    for batch in batches:
        for key, text, lines, items, left_out, _ in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            size = 0 if text is None else len(text.encode()) + len(BETWEEN)
            if group is not None and (group.key != key or (group.texts and group.size + size > most_bytes)):
                if whole and group.key == key:
                    raise GroupTooLarge(
                        f"The texts of the group {key!r} have more than {most_bytes:,} bytes together.",
                        hint="Raise max_item_bytes in [work] of a spec. Without the key as --id it is several items.",
                    )
                yield group.row()
                group = None
            group = group or _Group(key)
            group.texts += [] if text is None else [text]
            group.size += size
            group.lines, group.items, group.left_out = (
                group.lines + lines,
                group.items + items,
                group.left_out + left_out,
            )
    if group is not None:
        yield group.row()


def _write(path: Path, rows: Iterator[dict[str, Any]], key: pa.DataType, row_group_bytes: int) -> None:
    numbers = [(name, pa.int64()) for name in (_SIZE, _LINES, ITEMS, LEFT_OUT)]
    schema = pa.schema([(_KEY, key), (_TEXT, pa.string()), *numbers])
    waiting: list[dict[str, Any]] = []
    size = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in rows:
            waiting.append(row)
            size += row[_SIZE] + 64
            if size >= row_group_bytes or len(waiting) == BATCH_ROWS:
                writer.write_table(pa.Table.from_pylist(waiting, schema))
                waiting, size = [], 0
        if waiting:
            writer.write_table(pa.Table.from_pylist(waiting, schema))


class GroupedSource(Source):
    """The groups that `sort_groups` wrote; a shard is a run of row groups of that file."""

    def __init__(self, stat: SourceStat, fields: Fields) -> None:
        self._stat, self._key = stat, fields.group_by

    def _file(self) -> SourceFile:
        place = self._stat.files[0].index
        found = stat_file(place)
        if found is None:
            raise SourceError(f"{place} is gone.", hint="Start over with --fresh: it is built again.")
        return SourceFile(place, found.size, found.tag, "")

    def shards(self, target_bytes: int) -> list[Shard]:
        with open_parquet(self._file()) as groups:
            footers = [groups.metadata.row_group(i) for i in range(groups.metadata.num_row_groups)]
        weights = [max(1, footer.total_byte_size) for footer in footers]
        cuts = split_weighted(weights, target_bytes)
        files = len(self._stat.files)
        return [Shard(i, 0, a, b, sum(weights[a:b]), files=files) for i, (a, b) in enumerate(cuts)]

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        done = 0
        with open_parquet(self._file()) as groups:
            for number in range(shard.start, shard.stop):
                footer = groups.metadata.row_group(number)
                rows = max(1, min(BATCH_ROWS, BATCH_BYTES * footer.num_rows // max(1, footer.total_byte_size)))
                for batch in groups.iter_batches(rows, row_groups=[number], use_threads=False):
                    yield self._items(batch, done)
                    done += batch.num_rows

    def _items(self, batch: pa.RecordBatch, done: int) -> ItemBatch:
        left_out = batch.column(LEFT_OUT).to_pylist()
        missing = pc.indices_nonzero(batch.column(_TEXT).is_null()).to_pylist()
        columns = [batch.column(_KEY), batch.column(ITEMS), batch.column(LEFT_OUT)]
        return ItemBatch(
            texts=batch.column(_TEXT),
            kept=pa.RecordBatch.from_arrays(columns, names=[self._key, ITEMS, LEFT_OUT]),
            lines=range(done + 1, done + batch.num_rows + 1),
            line_count=pc.sum(batch.column(_LINES)).as_py() or 0,
            bad={row: f"none of the {left_out[row]:,} rows of this group has a usable text" for row in missing},
            size_bytes=pc.sum(batch.column(_SIZE)).as_py() or 0,
        )
