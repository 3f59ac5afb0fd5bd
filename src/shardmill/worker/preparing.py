"""Items as a task prepares them for the device, in blocks; one that it cannot prepare is set aside alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.errors import ShardmillError, TaskError, WorkerFailed, free_frames
from shardmill.ledger import Claim
from shardmill.plan import Plan
from shardmill.sinks.base import Sink
from shardmill.sinks.digests import TEXT_DIGEST, digest_items, hash_items_anywhere, hash_kept, place_items
from shardmill.sinks.earlier import EarlierRows
from shardmill.sources import Source
from shardmill.tasks.base import WINDOW, Prepared, Task, add_bytes, fields_of, number_items
from shardmill.worker.block import Block, ReadBatch

CONTRACT = "A task must return one row per input, in order (docs/tasks.md)."
_OWNERS = "Prepared.owners must give the text of each input, in order; every text needs an input (docs/tasks.md)."


def prepare(task: Task, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
    """Prepare texts. On an error, halve them until the failing text is alone, and mark it bad."""
    try:
        prepared = task.prepare(texts) if fields is None else task.prepare(texts, fields)
    except ShardmillError:
        raise
    except Exception as error:
        free_frames(error)
        if len(texts) == 1:
            return Prepared([None], np.zeros(1, np.int64), {0: f"{type(error).__name__}: {error}"[:500]})
        middle = len(texts) // 2
        first, second = (None, None) if fields is None else (fields.slice(0, middle), fields.slice(middle))
        halves = prepare(task, texts[:middle], first), prepare(task, texts[middle:], second)
        return _add(*halves, middle, len(texts) - middle)
    _check(task, prepared, texts)
    return prepared


def _check(task: Task, prepared: Prepared, texts: Sequence[str | None]) -> None:
    owners = prepared.owners
    if owners is None:
        if not len(texts) == len(prepared.inputs) == len(prepared.costs):
            raise TaskError(f"The task prepared {len(prepared.inputs)} inputs for {len(texts)} texts.", hint=CONTRACT)
        return
    wanted = {i for i, text in enumerate(texts) if text is not None and i not in prepared.bad}
    in_order = len(owners) == len(prepared.inputs) == len(prepared.costs) and bool((np.diff(owners) >= 0).all())
    if not in_order or set(owners.tolist()) != wanted:
        raise TaskError(f"The task's `owners` do not match its inputs for {len(texts)} texts.", hint=_OWNERS)
    if WINDOW not in task.output.names and task.combine(len(texts)) is None:
        raise TaskError(
            "The task prepares several inputs per text but does not say how they become rows.",
            hint=f"Give it {WINDOW!r} in its output, or a method combine (docs/tasks.md).",
        )


def _add(a: Prepared, b: Prepared, a_texts: int, b_texts: int) -> Prepared:
    bad = {**a.bad, **{row + a_texts: reason for row, reason in b.bad.items()}}
    costs = np.concatenate([a.costs, b.costs])
    owners = None
    if a.owners is not None or b.owners is not None:
        firsts, seconds = (np.arange(n) if p.owners is None else p.owners for p, n in ((a, a_texts), (b, b_texts)))
        owners = np.concatenate([firsts, seconds + a_texts])
    return Prepared([*a.inputs, *b.inputs], costs, bad, a.tokens + b.tokens, a.truncated + b.truncated, owners)


def make_block(
    read: ReadBatch,
    task: Task,
    keep: Iterable[str],
    sink: Sink | None = None,
    *,
    into_table: bool = False,
    earlier: EarlierRows | None = None,
) -> Block:
    """Prepare items, leaving out bad ones; of the columns read, the result has those to `keep`.

    A digest of what each is made from stays beside the rows, for their `sink`. In a table it is a column, and items
    whose rows are there already are unchanged. Rows that an `earlier` edition has are taken over.
    """
    batch, bad = read.batch, dict(read.batch.bad)
    for row in read.poison:
        if read.first_row <= row < read.first_row + len(batch):
            bad.setdefault(row - read.first_row, "it crashed every worker that ran it, alone on the device")
    taken = None if batch.taken is None or batch.taken.all() else batch.taken
    untaken = frozenset[int]() if taken is None else frozenset(np.flatnonzero(~taken).tolist())
    bad = {row: reason for row, reason in bad.items() if row not in untaken}
    unreadable = sum(row not in untaken for row in batch.bad)
    texts = _without(batch.texts, [*bad, *untaken])
    kept, unchanged = batch.kept.select(list(keep)), frozenset[int]()
    kept_hashes = hash_kept(kept)
    contents = hash_items_anywhere(batch.texts, kept_hashes)
    fields = fields_of(task, batch.kept)
    if task.numbers_items:
        fields = number_items(fields, read.claim.shard, read.first_row, len(batch))
    made_from = None if sink is None else digest_items(texts, fields, sink.salt)
    if sink is not None and into_table:
        kept = kept.append_column(TEXT_DIGEST, made_from)
        unchanged = sink.unchanged(kept)
        texts = _without(texts, [*unchanged])
    recalled = None
    if batch.left_out is not None and earlier is not None and earlier.seen is not None:
        recalled = earlier.seen.recall(batch.seen, batch.left_out)
        made_from, kept_hashes, contents = recalled.fill(made_from, kept_hashes, contents)
    reused = earlier.find(made_from, kept_hashes, recalled) if earlier is not None and made_from is not None else None
    if reused is not None:
        texts = _without(texts, np.flatnonzero(reused.is_reused))
    prepared = prepare(task, texts.to_numpy(zero_copy_only=False).tolist(), add_bytes(fields, batch.contents))
    for row, reason in prepared.bad.items():
        if row not in untaken and not (reused is not None and reused.is_reused[row]):
            address = batch.addresses[row][:200] if batch.addresses else ""
            bad.setdefault(row, f"{address}: {reason}" if address else reason)
    return Block(
        claim=read.claim,
        first_row=read.first_row,
        kept=kept,
        lines=batch.lines,
        line_count=batch.line_count,
        size_bytes=batch.size_bytes,
        prepared=prepared,
        bad=bad,
        unchanged=unchanged,
        files=batch.files,
        suspects=read.suspects,
        combined=task.combine(len(batch)),
        varies=task.rows_vary,
        item_hashes=place_items(contents, read.first_row, taken),
        kept_hashes=None if into_table else kept_hashes,
        made_from=made_from,
        seen=batch.seen,
        contents=contents,
        reused=reused,
        taken=taken,
        unreadable=unreadable,
    )


def _without(texts: pa.Array, rows: Sequence[int] | NDArray[np.int64]) -> pa.Array:
    """The texts, those of these rows null."""
    if not len(rows):
        return texts
    stays = np.ones(len(texts), bool)
    stays[rows] = False
    return pc.if_else(pa.array(stays), texts, pa.scalar(None, texts.type))


def read_item(source: Source, plan: Plan, task: Task, shard: int, row: int) -> Any:
    """What a task gets as one item of a shard, for a worker that does not hold the shard."""
    first = 0
    for batch in source.read(plan.shards[shard]):
        if row < first + len(batch):
            one = next(batch.after(row - first).cut(1))
            read = ReadBatch(Claim(shard, ""), row, one, None, ())
            return make_block(read, task, plan.kept).prepared.inputs[0]
        first += len(batch)
    raise WorkerFailed(
        f"Shard {shard} has no row {row}.",
        hint="The source has changed since the run was planned: start over with --fresh.",
    ).without_resume()
