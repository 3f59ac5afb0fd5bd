"""Faults by which a row may come to the wrong item: planted in the worker, in the source and in the folder of a run.

Whoever changes a part here also forges its digest in the commit: it stands for a bug of ours, not for a damaged disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.hashing import hash_inputs
from shardmill.ledger import Commit
from shardmill.results.verify import digest
from shardmill.run import Run
from shardmill.sinks.keeping import Prefix
from shardmill.sinks.parquet import StagedPart
from shardmill.sources import ItemBatch, grouped
from shardmill.tasks.base import Output
from shardmill.testing import FakeTask
from shardmill.worker import pipeline, runner
from shardmill.worker.batch import Batch
from shardmill.worker.block import Block
from shardmill.worker.writer import Writer

PLAIN, WINDOWS, MEAN, GROUPS, SORTING = "plain", "windows", "mean", "groups", "sorting"


class SortingTask(FakeTask):
    """Sorts its inputs by length, says so by their hashes, and puts the rows back only if `tidy`."""

    def __init__(self, tidy: bool = True) -> None:
        super().__init__()
        self.tidy = tidy

    def run(self, inputs: Any) -> Output:
        order = np.array(sorted(range(len(inputs)), key=lambda i: (len(inputs[i]), inputs[i])), np.int64)
        texts = [inputs[i] for i in order]
        back = np.argsort(order) if self.tidy else np.arange(len(order))
        return Output(super().run(texts).rows.take(pa.array(back)), given=hash_inputs(texts)[back])


@dataclass(frozen=True, slots=True)
class MixUp:
    """A fault, the kind of run that it is planted in, and where: one of `worker` (while it runs), `after` (when it is
    done; with the source) and `task` (by a parameter)."""

    layout: str = PLAIN
    worker: Callable[[random.Random], contextlib.AbstractContextManager[Any]] | None = None
    after: Callable[[Run, Path, random.Random], None] | None = None
    params: tuple[tuple[str, Any], ...] = ()
    dies: bool = False


class Once:
    """Does something once, at the first call that it fits, after some others."""

    def __init__(self, choose: random.Random) -> None:
        self.choose, self._left, self.done = choose, choose.randrange(2), False

    def due(self, fits: bool) -> bool:
        if self.done or not fits:
            return False
        self._left -= 1
        self.done = self._left < 0
        return self.done

    def two(self, among: int) -> list[int]:
        return self.choose.sample(range(among), 2)


def swapped(count: int, a: int, b: int) -> pa.Array:
    order = np.arange(count)
    order[[a, b]] = b, a
    return pa.array(order)


@contextlib.contextmanager
def replaced(owner: Any, name: str, choose: random.Random, make: Callable[[Any, Once], Any]) -> Iterator[Once]:
    once = Once(choose)
    with patch.object(owner, name, make(getattr(owner, name), once)):
        yield once


# In the worker


def sort_wrongly(choose: random.Random) -> Any:
    def make(inputs: Any, once: Once) -> Any:
        def wrong(self: Batch) -> Any:
            found = inputs(self)
            return found[::-1] if once.due(len({*found}) > 1) else found

        return wrong

    return replaced(Batch, "inputs", choose, make)


def swap_at_hand_out(choose: random.Random) -> Any:
    def make(take: Any, once: Once) -> Any:
        def wrong(rows: pa.RecordBatch, places: Any) -> pa.RecordBatch:
            found = take(rows, places)
            if once.due(found.num_rows > 1):
                return found.take(swapped(found.num_rows, *once.two(found.num_rows)))
            return found

        return wrong

    return replaced(runner, "take_rows", choose, make)


def write_twice(choose: random.Random) -> Any:
    def make(write: Any, once: Once) -> Any:
        def wrong(self: Writer, block: Block) -> None:
            write(self, block)
            if once.due(len(block) > 0):
                write(self, block)

        return wrong

    return replaced(Writer, "write", choose, make)


def exchange_windows(choose: random.Random) -> Any:
    def make(make_block: Any, once: Once) -> Any:
        def wrong(*given: Any, **named: Any) -> Block:
            block: Block = make_block(*given, **named)
            owners = block.prepared.owners
            if owners is not None and once.due(len({*owners.tolist()}) > 1):
                a = int(np.flatnonzero(np.diff(owners))[0])
                owners[[a, a + 1]] = owners[[a + 1, a]]
            return block

        return wrong

    return replaced(pipeline, "make_block", choose, make)


def lose_an_item(choose: random.Random) -> Any:
    """The reader passes an item over, and reads the one after it twice."""

    def make(cut: Any, once: Once) -> Any:
        def wrong(batch: ItemBatch, *more: Any) -> Any:
            if once.due(len(batch) > 1):
                order, lost = np.arange(len(batch)), once.choose.randrange(len(batch) - 1)
                order[lost] = lost + 1
                batch = replace(batch, texts=batch.texts.take(pa.array(order)), kept=batch.kept.take(pa.array(order)))
            return cut(batch, *more)

        return wrong

    return replaced(pipeline, "cut_batch", choose, make)


def write_in_another_order(choose: random.Random) -> Any:
    def make(write: Any, once: Once) -> Any:
        def wrong(self: StagedPart, rows: pa.Table, *more: Any) -> None:
            if once.due(rows.num_rows > 1):
                rows = rows.take(swapped(rows.num_rows, *once.two(rows.num_rows)))
            write(self, rows, *more)

        return wrong

    return replaced(StagedPart, "write", choose, make)


def keep_in_another_order(choose: random.Random) -> Any:
    """Rows are kept for the next attempt in another order than that of their items."""

    def make(write: Any, once: Once) -> Any:
        def wrong(self: Prefix, rows: pa.Table, *more: Any) -> None:
            if once.due(rows.num_rows > 1):
                rows = rows.take(swapped(rows.num_rows, *once.two(rows.num_rows)))
            write(self, rows, *more)

        return wrong

    return replaced(Prefix, "write", choose, make)


def keep_for_other_items(choose: random.Random) -> Any:
    """The items whose rows are kept are not those that the next attempt reads."""

    def make(make_block: Any, once: Once) -> Any:
        def wrong(read: Any, *more: Any, **named: Any) -> Block:
            if once.due(len(read.batch) > 1):
                order = swapped(len(read.batch), *once.two(len(read.batch)))
                batch = replace(read.batch, texts=read.batch.texts.take(order), kept=read.batch.kept.take(order))
                read = replace(read, batch=batch)
            return make_block(read, *more, **named)  # type: ignore[no-any-return]

        return wrong

    return replaced(pipeline, "make_block", choose, make)


def sort_groups_wrongly(choose: random.Random) -> Any:
    def make(join: Any, once: Once) -> Any:
        def wrong(*given: Any, **named: Any) -> Iterator[dict[str, Any]]:
            groups = list(join(*given, **named))
            a, b = once.two(len(groups))
            once.done = True
            groups[a]["text"], groups[b]["text"] = groups[b]["text"], groups[a]["text"]
            yield from groups

        return wrong

    return replaced(grouped, "_join", choose, make)


# In the folder


def path_of(run: Run, key: str) -> Path:
    return Path(run.ledger.url) / key


def rewrite_commit(run: Run, commit: Commit) -> None:
    path_of(run, run.ledger.commits.key(commit.shard)).write_text(json.dumps(asdict(commit)))


def rewrite_part(run: Run, choose: random.Random, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of one part, and forge its digest."""
    commit = choose.choice([c for c in run.ledger.commits.read().values() if c.rows_in_part > 3])
    path = path_of(run, commit.part)
    pq.write_table(change(pq.read_table(path)), path)
    rewrite_commit(run, replace(commit, digest=digest(run.ledger.store, commit.part), part_bytes=path.stat().st_size))


def set_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), table.schema.field(name), column)


def sound_rows(table: pa.Table) -> list[int]:
    """Rows that have a vector: a missing one is stored as NaN."""
    first = (
        table.column("embedding").combine_chunks().values.to_numpy()[:: table.schema.field("embedding").type.list_size]
    )
    return [int(row) for row in np.flatnonzero(np.isfinite(first))]


def replace_id(run: Run, source: Path, choose: random.Random) -> None:
    def change(table: pa.Table) -> pa.Table:
        ids = table.column("id").to_pylist()
        ids[choose.randrange(len(ids))] = "another"
        return set_column(table, "id", pa.array(ids))

    rewrite_part(run, choose, change)


def swap_rows(run: Run, source: Path, choose: random.Random) -> None:
    def change(table: pa.Table) -> pa.Table:
        return table.take(swapped(table.num_rows, *choose.sample(range(table.num_rows), 2)))

    rewrite_part(run, choose, change)


def swap_vectors(run: Run, source: Path, choose: random.Random) -> None:
    """In a run with windows: of two items."""

    def change(table: pa.Table) -> pa.Table:
        among = sound_rows(table)
        if "window" in table.column_names:
            among = [row for row in among if table.column("window")[row].as_py() == 0]
        a, b = choose.sample(among, 2)
        return set_column(table, "embedding", table.column("embedding").take(swapped(table.num_rows, a, b)))

    rewrite_part(run, choose, change)


def change_kept(run: Run, source: Path, choose: random.Random) -> None:
    def change(table: pa.Table) -> pa.Table:
        numbers = table.column("n").to_pylist()
        numbers[choose.randrange(len(numbers))] += 1
        return set_column(table, "n", pa.array(numbers, table.schema.field("n").type))

    rewrite_part(run, choose, change)


def flip_bit(run: Run, source: Path, choose: random.Random) -> None:
    """The lowest bit of one number: no check of values can see it."""

    def change(table: pa.Table) -> pa.Table:
        column = table.column("embedding").combine_chunks()
        numbers = column.values.to_numpy().copy()
        numbers.view(np.uint32)[choose.choice(np.flatnonzero(np.isfinite(numbers)))] ^= 1
        return set_column(table, "embedding", pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=column.type))

    rewrite_part(run, choose, change)


def repeat_row(run: Run, source: Path, choose: random.Random) -> None:
    """One row takes the place of another."""

    def change(table: pa.Table) -> pa.Table:
        order = np.arange(table.num_rows)
        a, b = choose.sample(range(table.num_rows), 2)
        order[a] = b
        return table.take(pa.array(order))

    rewrite_part(run, choose, change)


def exchange_parts(run: Run, source: Path, choose: random.Random) -> None:
    one, other = choose.sample(list(run.ledger.commits.read().values()), 2)
    for commit, by in ((one, other), (other, one)):
        same = {name: getattr(by, name) for name in ("part", "digest", "part_bytes", "rows", "lines")}
        rewrite_commit(run, replace(commit, **same))


# In the source


def rewrite_source(source: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """As many bytes as before, and the same time: nothing but the content tells."""
    before = source.stat()
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    change(rows)
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_text(run: Run, source: Path, choose: random.Random) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        row = choose.choice([row for row in rows if row["text"]])
        row["text"] = "T" + row["text"][1:]

    rewrite_source(source, change)


def swap_lines(run: Run, source: Path, choose: random.Random) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        a = choose.randrange(len(rows) - 1)
        rows[a], rows[a + 1] = rows[a + 1], rows[a]

    rewrite_source(source, change)


def change_id(run: Run, source: Path, choose: random.Random) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        row = choose.choice(rows)
        row["id"] = "K" + row["id"][1:]

    rewrite_source(source, change)


MIXUPS: dict[str, MixUp] = {
    "a batch is sorted wrongly": MixUp(worker=sort_wrongly),
    "two rows of a batch are swapped at the hand-out": MixUp(worker=swap_at_hand_out),
    "a batch is written twice": MixUp(worker=write_twice),
    "windows of two items are exchanged before they are averaged": MixUp(MEAN, worker=exchange_windows),
    "windows of two items are exchanged": MixUp(WINDOWS, worker=exchange_windows),
    "the reader loses an item and reads another twice": MixUp(worker=lose_an_item),
    "the sink writes two rows in another order": MixUp(worker=write_in_another_order),
    "rows are kept in another order, and the worker dies": MixUp(worker=keep_in_another_order, dies=True),
    "rows are kept for other items, and the worker dies": MixUp(worker=keep_for_other_items, dies=True),
    "the sort exchanges the texts of two groups": MixUp(GROUPS, worker=sort_groups_wrongly),
    "a task sorts its batch and does not put it back": MixUp(SORTING, params=(("tidy", False),)),
    "an id is replaced in a part": MixUp(after=replace_id),
    "two rows of a part are swapped": MixUp(after=swap_rows),
    "two vectors of a part are swapped": MixUp(after=swap_vectors),
    "vectors of two items' windows are swapped in a part": MixUp(WINDOWS, after=swap_vectors),
    "a kept column is changed in a part": MixUp(after=change_kept),
    "the lowest bit of a number is flipped in a part": MixUp(after=flip_bit),
    "a row takes the place of another in a part": MixUp(after=repeat_row),
    "two shards exchange their parts": MixUp(after=exchange_parts),
    "a text of the source is changed": MixUp(after=change_text),
    "two lines of the source are swapped": MixUp(after=swap_lines),
    "an id of the source is changed": MixUp(after=change_id),
}
