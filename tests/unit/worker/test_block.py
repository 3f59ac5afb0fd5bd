"""A block is finished only if every item was run, set aside or already there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import WorkerFailed
from shardmill.core.hashing import add_sums, hash_inputs, sum_hashes
from shardmill.ledger import Claim
from shardmill.sinks.digests import hash_items, hash_kept
from shardmill.tasks.base import WINDOW, Output, Prepared
from shardmill.worker.block import Block, tagged

OUTPUT = pa.schema([pa.field("n", pa.int64())])
BY_WINDOW = pa.schema([pa.field(WINDOW, pa.int32()), *OUTPUT])


def block(size: int, owners: list[int] | None = None, **more: Any) -> Block:
    inputs = list(range(size if owners is None else len(owners)))
    prepared = Prepared(inputs, np.ones(len(inputs), np.int64), owners=None if owners is None else np.array(owners))
    kept = pa.record_batch({"id": list(range(size))})
    return Block(Claim(4, ""), 100, kept, range(1, size + 1), size, size, prepared, **{"bad": {}, **more})


def run(made: Block, *rows: int) -> None:
    given = hash_inputs([made.prepared.inputs[row] for row in rows])
    made.take_in(np.array(rows), tagged(Output(pa.record_batch({"n": list(rows)})), given))


def finished(made: Block, output: pa.Schema = OUTPUT) -> list[Any]:
    return [value for table, *_ in made.finish(output) for value in table.column("n").to_pylist()]


def test_run_bad_and_unchanged_items_cover_a_block() -> None:
    made = block(5, bad={1: "it is bad"}, unchanged=frozenset([3]))
    run(made, 4, 0)
    run(made, 2)
    assert finished(made) == [0, None, 2, None, 4]


def test_an_item_that_was_left_out_is_no_null_row() -> None:
    made = block(5, bad={1: "it is bad"})
    run(made, 0, 2, 4)
    with pytest.raises(WorkerFailed, match=r"Shard 4: 1 items were neither run nor set aside, the first in row 103\."):
        finished(made)


def test_every_input_of_an_item_is_run() -> None:
    made = block(3, [0, 0, 1, 2, 2])
    run(made, 0, 1, 2, 3)
    with pytest.raises(WorkerFailed, match=r"1 items .* row 102"):
        finished(made, BY_WINDOW)
    run(made, 4)
    assert finished(made, BY_WINDOW) == [0, 1, 2, 3, 4]


def test_an_item_without_an_input_is_bad_or_unchanged() -> None:
    made = block(3, [0, 2])
    run(made, 0, 1)
    with pytest.raises(WorkerFailed, match=r"1 items .* row 101"):
        finished(made, BY_WINDOW)
    made.bad[1] = "no text"
    assert finished(made, BY_WINDOW) == [0, None, 1]


def test_rows_that_were_made_from_other_inputs_are_refused() -> None:
    made = block(3)
    swapped = hash_inputs([made.prepared.inputs[row] for row in (1, 0, 2)])
    made.take_in(np.arange(3), tagged(Output(pa.record_batch({"n": [1, 0, 2]})), swapped))
    with pytest.raises(
        WorkerFailed, match=r"Shard 4: 2 rows were made from other inputs .* the first is for item 100\."
    ):
        finished(made)


def test_windows_that_changed_their_items_are_refused() -> None:
    made = block(3, [0, 0, 1, 2, 2])
    assert made.prepared.owners is not None
    made.prepared.owners[[1, 2]] = made.prepared.owners[[2, 1]]
    run(made, 0, 1, 2, 3, 4)
    with pytest.raises(WorkerFailed, match="rows were made from other inputs"):
        finished(made, BY_WINDOW)


def test_rows_that_come_twice_are_refused() -> None:
    made = block(3)
    run(made, 0, 1)
    with pytest.raises(WorkerFailed, match=r"item 101 was returned twice"):
        run(made, 1, 2)


@pytest.mark.parametrize("cuts", [[], [1], [2, 5], [1, 2, 3, 4, 5]])
def test_digests_do_not_depend_on_how_items_are_cut_into_blocks(cuts: list[int]) -> None:
    rows = [{"id": f"k{i}", "n": i} for i in range(6)]
    texts, kept = pa.array([row["id"] * 3 for row in rows]), pa.RecordBatch.from_pylist(rows)
    edges = [0, *cuts, 6]
    parts = [(at, texts.slice(at, to - at), hash_kept(kept.slice(at, to - at))) for at, to in pairwise(edges)]
    digest = add_sums(sum_hashes(hash_items(each, hashes, at)) for at, each, hashes in parts)
    assert digest == sum_hashes(hash_items(texts, hash_kept(kept), 0))
    assert digest != sum_hashes(hash_items(texts.take(pa.array([1, 0, 2, 3, 4, 5])), hash_kept(kept), 0))
