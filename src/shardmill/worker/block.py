"""Items on their way through a worker: as read, as prepared by the task, and as finished rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.errors import Cure, WorkerFailed
from shardmill.core.hashing import Hashes, bind, hash_inputs, sum_hashes
from shardmill.ledger import Claim, Suspects
from shardmill.sinks.base import Recipe
from shardmill.sinks.digests import hash_contents, place_rows
from shardmill.sinks.earlier import Reused
from shardmill.sinks.lineage import make_lineage
from shardmill.sources import ItemBatch
from shardmill.tasks.base import WINDOW, Combined, Output, Prepared, Task

Rows = NDArray[np.int64]

# The column that says which input each row of a task's output was made from.
_GIVEN = "shardmill_given"

# A streaming task gets blocks of about this much work: rows are kept once their block is finished.
_BLOCK_S, _FEWEST_ROWS = 10.0, 32
# Blocks of items that need memory once they are prepared: eight wait for the device.
_BLOCK_BYTES = 8 << 20
# Kept columns are repeated in each row of an item, so wide ones are written in slices of this size.
_WRITTEN_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Items as read from the source."""

    claim: Claim
    first_row: int
    batch: ItemBatch
    suspects: Suspects | None
    poison: tuple[int, ...]


def cut_batch(
    batch: ItemBatch, claim: Claim, first_row: int, suspects: Suspects | None, task: Task, rows_per_s: float
) -> Iterator[ReadBatch]:
    """A batch that begins at `first_row`, as it is or, for a task that streams, in blocks of some seconds of work.

    A task that runs for hours gets its items one by one, and one whose items need memory few at a time.
    """
    rows = max(_FEWEST_ROWS, int(rows_per_s * _BLOCK_S)) if task.streams else max(1, len(batch))
    rows = min(rows, max(1, _BLOCK_BYTES // task.item_bytes)) if task.item_bytes else rows
    rows = 1 if task.one_shard else rows
    poison = suspects.poison if suspects is not None else ()
    for portion in batch.cut(rows):
        yield ReadBatch(claim, first_row, portion, None if claim.shadow else suspects, poison)
        first_row += len(portion)


@dataclass(slots=True)
class Block:
    """Consecutive items of one shard. `bad` is per item, `prepared.inputs` and `outputs` are per input.

    Each row that the task returns has a column with the hash of the input that was handed to it. It stays beside the
    row until it is written, and is compared there with the hash made when the block was. `item_hashes` are of the items
    as read, `kept_hashes` of their kept columns; with these, `rows_digest` is of the rows, before they are sorted.
    `made_from` has a digest of what each item's rows are made from, `seen` one of what tells its change, if there is
    such a thing, and `contents` a hash of all of it; `lineage` has these and hashes of its rows. Those of some items
    may be `reused` from an earlier edition.

    Of the bad ones, `unreadable` are so in the source. `unchanged` are items whose result is already in the sink,
    `files` the number of each item's file if the shard has several. If items may have several rows or none (`varies`),
    `gone` are those that have none, once it is finished; so are those that are not `taken`, None if all are.
    """

    claim: Claim
    first_row: int
    kept: pa.RecordBatch
    lines: Sequence[int]
    line_count: int
    size_bytes: int
    prepared: Prepared
    bad: dict[int, str]
    unchanged: frozenset[int] = frozenset()
    files: Sequence[int] = ()
    suspects: Suspects | None = None
    combined: Combined | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    varies: bool = False
    gone: Sequence[int] = ()
    unreadable: int = 0
    item_hashes: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    kept_hashes: Hashes | None = None
    taken: NDArray[np.bool_] | None = None
    rows_digest: str = ""
    made_from: pa.Array | None = None
    seen: pa.Array | None = None
    contents: Hashes | None = None
    reused: Reused | None = None
    lineage: pa.RecordBatch | None = None
    outputs: list[tuple[Rows, pa.RecordBatch, Rows | None]] = field(default_factory=list)
    _ran: NDArray[np.bool_] = field(init=False)
    _bound: Hashes = field(init=False)

    def __post_init__(self) -> None:
        inputs = len(self.prepared.inputs)
        self._ran = np.zeros(inputs, bool)
        self._bound = bind(hash_inputs(self.prepared.inputs), self.items(np.arange(inputs)))

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def tokens(self) -> int:
        """The tokens read, as counted when its items were prepared or run."""
        return self.prepared.tokens + self.tokens_in

    @property
    def cost(self) -> int:
        return int(self.prepared.costs.sum())

    @property
    def held_bytes(self) -> int:
        """The memory of its prepared inputs, as far as they are one array."""
        return int(getattr(self.prepared.inputs, "nbytes", 0))

    def release(self) -> None:
        """Free the prepared inputs, once all of them have run."""
        self.prepared = replace(self.prepared, inputs=())

    def item(self, row: int) -> int:
        """The item that an input belongs to."""
        return row if self.prepared.owners is None else int(self.prepared.owners[row])

    def items(self, rows: Rows) -> Rows:
        return rows if self.prepared.owners is None else self.prepared.owners[rows]

    def _is_made(self) -> NDArray[np.bool_]:
        """Whether the rows of each item are made here: it is taken, and they are not taken over."""
        made = np.ones(len(self), bool) if self.taken is None else self.taken.copy()
        if self.reused is not None:
            made &= ~self.reused.is_reused
        return made

    def doable(self) -> Rows:
        """The inputs of all items that can and must be run."""
        keep = self._is_made()
        keep[[*self.bad, *self.unchanged]] = False
        return np.flatnonzero(keep if self.prepared.owners is None else keep[self.prepared.owners])

    def take_in(self, rows: Rows, made: pa.RecordBatch, counts: Rows | None = None) -> int:
        """Keep or combine the task's `tagged` output for some inputs, which may have several rows or none each.

        Returns how many items have their first input here.
        """
        if self._ran[rows].any():
            raise mixed_up(self.claim.shard, f"item {self.first_row + self.item(int(rows[0]))} was returned twice")
        self._ran[rows] = True
        if self.combined is None:
            self.outputs.append((rows, made, counts))
        else:
            items = self.items(rows)
            self._check_bound(made.column(_GIVEN), rows, items)
            self.combined.add(items, made.drop_columns([_GIVEN]))
        owners = self.prepared.owners
        return len(rows) if owners is None else int(((rows == 0) | (owners[rows] != owners[rows - 1])).sum())

    def finish(self, output: pa.Schema) -> Iterator[tuple[pa.Table, Rows, Recipe | None]]:
        """The finished rows in source order, with the item of each: kept columns, then the task's output, which is null
        for failed items. With a recipe, these are own rows, between rows that stay in earlier parts."""
        if (reused := self.reused) is None:
            for table, own in self._finish(output):
                yield table, own, None
            return
        copied = reused.items[reused.is_copied]
        tables, items = [_join(reused.keep(self.kept), list(map(reused.column, output)), output)], [copied]
        for table, own in self._finish(output):
            tables.append(table)
            items.append(own)
        every = np.concatenate(items)
        order, recipe = reused.arrange(every, self.first_row)
        yield pa.concat_tables(tables).take(pa.array(order)), every[order], recipe

    def _finish(self, output: pa.Schema) -> Iterator[tuple[pa.Table, Rows]]:
        """The rows that were made here."""
        self._check_covered()
        if self.combined is not None:
            done = self.combined.finish()
            items, rows = np.flatnonzero(self._is_made()), done.rows
            if len(items) < len(self):
                rows = rows.take(pa.array(items))
            for item, reason in done.bad.items():
                if self._is_made()[item]:
                    self.bad.setdefault(item, reason)
            self.outputs = [(items, rows, None)]
        made = pa.concat_batches([batch for _, batch, _ in self.outputs]) if self.outputs else None
        self._digest_rows(made, output)
        if self.taken is not None:
            self.gone = np.flatnonzero(~self.taken).tolist()
        if self.varies:
            yield from self._varying(output, made)
            return
        several = WINDOW in output.names
        inputs = len(self.prepared.costs) if several else len(self)
        where = np.full(inputs, -1, np.int64)
        order = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _, _ in self.outputs)])
        where[order] = np.arange(len(order))
        if several:
            yield from self._several(output, where, made)
        else:
            where[list(self.bad)] = -1
            items = np.flatnonzero(self._is_made())
            kept = self.kept if len(items) == len(self) else self.kept.take(pa.array(items))
            yield _join(kept, self._take(made, where[items], items, items, output), output), items

    def _check_covered(self) -> None:
        """Every item was run, with all its inputs, or is bad or unchanged: no row is null without a reason."""
        rows = self.doable()
        covered = np.zeros(len(self), bool)
        covered[self.items(rows)] = True
        covered[self.items(rows[~self._ran[rows]])] = False
        covered[[*self.bad, *self.unchanged]] = True
        covered |= ~self._is_made()
        if len(missed := np.flatnonzero(~covered)):
            hole = WorkerFailed(
                f"Shard {self.claim.shard}: {len(missed)} items were neither run nor set aside, "
                f"the first in row {self.first_row + missed[0]}.",
                hint="This shard was not committed, and is tried again. If it fails again, please report it.",
            )
            hole.cure = Cure.HERE
            raise hole

    def _several(self, output: pa.Schema, where: Rows, made: pa.RecordBatch | None) -> Iterator[tuple[pa.Table, Rows]]:
        """One row per input, and one per failed item, in slices."""
        good, bad = self.doable(), np.array(sorted(self.bad), np.int64)
        items = np.concatenate([self.items(good), bad])
        order = np.argsort(items, kind="stable")
        items, where = items[order], np.concatenate([where[good], np.full(len(bad), -1)])[order]
        inputs = np.concatenate([good, np.full(len(bad), -1)])[order]
        yield from self._in_slices(output, items, inputs, where, made)

    def _varying(self, output: pa.Schema, made: pa.RecordBatch | None) -> Iterator[tuple[pa.Table, Rows]]:
        """As many rows per item as its input gave, and one per failed item, in slices."""
        counts, firsts, before = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64), 0
        for rows, batch, each in self.outputs:
            counts[rows] = 1 if each is None else each
            firsts[rows] = before + np.cumsum(counts[rows]) - counts[rows]
            before += batch.num_rows
        failed = np.zeros(len(self), bool)
        failed[list(self.bad)] = True
        counts[failed] = 1
        has_rows = counts > 0
        if self.reused is not None:
            has_rows[self.reused.items] = True
        self.gone = np.flatnonzero(~has_rows).tolist()
        items = np.repeat(np.arange(len(self)), counts)
        where = firsts[items] + np.arange(len(items)) - np.searchsorted(items, items)
        yield from self._in_slices(output, items, items, np.where(failed[items], -1, where), made)

    def _in_slices(
        self, output: pa.Schema, items: Rows, inputs: Rows, where: Rows, made: pa.RecordBatch | None
    ) -> Iterator[tuple[pa.Table, Rows]]:
        """Rows with the number of each among those of its item; `where` has its place in `made`, -1 for none."""
        numbers = np.arange(len(items)) - np.searchsorted(items, items)
        others = pa.schema([f for f in output if f.name != WINDOW])
        step = max(1, _WRITTEN_BYTES // _widest(self.kept, output))
        for at in range(0, len(items), step):
            rows = slice(at, at + step)
            taken = self._take(made, where[rows], inputs[rows], items[rows], others)
            columns = dict(zip(others.names, taken, strict=True))
            columns[WINDOW] = pa.array(numbers[rows], output.field(WINDOW).type)
            kept = self.kept if _is_whole(items[rows], len(self)) else self.kept.take(pa.array(items[rows]))
            yield _join(kept, [columns[n] for n in output.names], output), items[rows]

    def _take(
        self, made: pa.RecordBatch | None, where: Rows, inputs: Rows, items: Rows, output: pa.Schema
    ) -> list[pa.Array]:
        """The rows at `where`, null for -1, which must be those of these inputs; all null if nothing was returned."""
        if made is None:
            return [pa.nulls(len(where), f.type) for f in output]
        taken = made if _is_whole(where, made.num_rows) else made.take(pa.array(where, mask=where < 0))
        columns: list[pa.Array] = taken.columns
        if _GIVEN in made.schema.names:
            there = np.flatnonzero(where >= 0)
            self._check_bound(columns.pop().take(pa.array(there)), inputs[there], items[there])
        return columns

    def _check_bound(self, given: pa.Array, inputs: Rows, items: Rows) -> None:
        """These inputs were handed to the task for these items, and no others."""
        wrong = np.flatnonzero(bind(given.to_numpy(zero_copy_only=False), items) != self._bound[inputs])
        if len(wrong):
            raise mixed_up(
                self.claim.shard,
                f"{len(wrong)} rows were made from other inputs than those of their items, "
                f"the first is for item {self.first_row + int(items[wrong[0]])}",
            )

    def _digest_rows(self, made: pa.RecordBatch | None, output: pa.Schema) -> None:
        """The digest of all rows of the block as the task returned them, each with its item; failed items have one."""
        if self.kept_hashes is None:
            return
        names = [name for name in output.names if name != WINDOW]
        failed = np.zeros(len(self), bool)
        failed[list(self.bad)] = True
        bad = np.flatnonzero(failed)
        nulls = pa.RecordBatch.from_arrays([pa.nulls(len(bad), output.field(n).type) for n in names], names=names)
        owners, places = [bad], [np.zeros_like(bad)]
        hashes = [hash_contents(nulls, self.kept_hashes[bad])]
        if made is not None:
            rows = np.concatenate([rows for rows, _, _ in self.outputs])
            items = self.items(rows) if self.combined is None else rows
            numbers = np.zeros_like(items)
            if self.prepared.owners is not None and self.combined is None:
                numbers = rows - np.searchsorted(self.prepared.owners, items)
            if self.varies:
                counts = np.concatenate([np.ones_like(r) if each is None else each for r, _, each in self.outputs])
                items = np.repeat(items, counts)
                numbers = np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
            good = np.flatnonzero(~failed[items])
            whole = made.select(names)
            whole = whole if len(good) == len(items) else whole.take(pa.array(good))
            items, numbers = items[good], numbers[good]
            hashes.append(hash_contents(whole, self.kept_hashes[items]))
            owners.append(items)
            places.append(numbers)
        if self.reused is not None:
            owners.append(self.reused.items)
            places.append(self.reused.numbers)
            known, there = self.reused.contents.copy(), self.reused.is_copied
            copied = self.reused.copied.select(names)
            known[there] = hash_contents(copied, self.kept_hashes[self.reused.items[there]])
            hashes.append(known)
        items, contents = np.concatenate(owners), np.concatenate(hashes)
        self.rows_digest = sum_hashes(place_rows(contents, items + self.first_row, np.concatenate(places)))
        if self.made_from is not None:
            order = np.lexsort((np.concatenate(places), items))
            without = bad if self.taken is None else np.flatnonzero(failed | ~self.taken)
            self.lineage = make_lineage(
                *(self.made_from, self.kept_hashes, items[order], contents[order], without),
                seen=self.seen,
                contents=self.contents,
            )


def tagged(output: Output, given: Hashes) -> pa.RecordBatch:
    """The rows of an output, each with the hash of the input that it was made from."""
    given = given if output.given is None else output.given
    hashes = given if output.counts is None else np.repeat(given, output.counts)
    return output.rows.append_column(_GIVEN, pa.array(hashes, pa.uint64()))


def mixed_up(shard: int, what: str) -> WorkerFailed:
    """Rows and items do not belong together: nothing of the shard is committed."""
    error = WorkerFailed(
        f"Shard {shard}: {what}.",
        hint="This shard was not committed, and is tried again. A task must not change its inputs. If it fails again, "
        "please report it.",
    )
    error.cure = Cure.HERE
    return error


def _is_whole(places: Rows, rows: int) -> bool:
    """Whether these are all places, in order."""
    return len(places) == rows and bool((places == np.arange(rows)).all())


def _join(kept: pa.RecordBatch, made: list[pa.Array], output: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([*kept.columns, *made], schema=pa.schema([*kept.schema, *output]))


def _widest(kept: pa.RecordBatch, output: pa.Schema) -> int:
    """An estimate of the largest finished row, in bytes."""
    size: int = 64 + sum(8 * f.type.list_size for f in output if pa.types.is_fixed_size_list(f.type))
    for column in kept.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
            size += pc.max(pc.binary_length(column)).as_py() or 0
        elif pa.types.is_nested(column.type):
            size += column.nbytes
    return size
