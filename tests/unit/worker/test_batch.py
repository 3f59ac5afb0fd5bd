"""Inputs of several blocks in one batch: whichever way they lie, each goes with its own block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.ledger import Claim
from shardmill.tasks.base import Prepared
from shardmill.verbs.augment.task import AugmentTask
from shardmill.worker.batch import Batch
from shardmill.worker.block import Block


def block(inputs: Any) -> Block:
    size = len(inputs)
    prepared = Prepared(inputs, np.asarray(inputs, np.int64) % 7)
    claim = Claim(0, "")
    return Block(claim, 0, pa.record_batch({}), range(1, size + 1), size, size, prepared, {})


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 99), listed=st.integers(0, 5))
def test_inputs_costs_and_parts_are_those_of_the_blocks(sizes: list[int], seed: int, listed: int) -> None:
    values = [np.arange(100 * i, 100 * i + size) for i, size in enumerate(sizes)]
    blocks = [block(v.tolist() if i == listed else v) for i, v in enumerate(values)]
    whole = Batch.of([(b, np.arange(len(b))) for b in blocks])
    order = np.random.default_rng(seed).permutation(len(whole))[: 1 + seed % len(whole)]
    batch = whole.take(order)
    expected = np.concatenate(values)[order]
    assert np.asarray(batch.inputs()).tolist() == expected.tolist()
    assert isinstance(batch.inputs(), list) == any(isinstance(b.prepared.inputs, list) for b, _, _ in batch.parts())
    assert batch.costs().tolist() == (expected % 7).tolist()
    seen = {}
    for owner, places, rows in batch.parts():
        assert (np.diff(places) > 0).all()
        seen |= {int(place): owner.prepared.inputs[row] for place, row in zip(places, rows, strict=True)}
    assert [seen[i] for i in range(len(batch))] == expected.tolist()
    odd = batch.where(lambda owner, row: owner.prepared.inputs[row] % 2 == 1)
    assert np.asarray(odd.inputs()).tolist() == [v for v in expected.tolist() if v % 2]


def test_a_batch_of_nothing_has_nothing() -> None:
    assert len(Batch.of([])) == 0
    assert list(Batch.of([]).parts()) == []
    assert Batch.of([]).costs().tolist() == []


@pytest.mark.parametrize(
    ("texts", "ids", "bad"),
    [
        (["0", "007", "18446744073709551615"], [0, 7, 2**64 - 1], []),
        (["5", None, "6"], [5, 0, 6], []),
        ([None, None], [0, 0], []),
        ([], [], []),
        (["1", "0x10", "2"], [1, 0, 2], [1]),
        (["1", "18446744073709551616", "-1", "+1", " 1", "1.0", "", "one", "2"], [1, *[0] * 7, 2], list(range(1, 8))),
        (["٣", "4"], [3, 4], []),
    ],
)
def test_texts_are_ids_or_set_aside(texts: list[str | None], ids: list[int], bad: list[int]) -> None:
    prepared = AugmentTask().prepare(texts)
    assert [int(i) for i in prepared.inputs] == ids
    assert sorted(prepared.bad) == bad
    assert len(prepared.costs) == len(texts)
