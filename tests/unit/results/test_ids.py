"""Ids that occur twice are found, however many there are and wherever their hashes are kept."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.core.errors import ShardmillError
from shardmill.results.ids import IdHashes, hash_ids

KINDS = {
    "string": (pa.string(), st.text(max_size=20) | st.text("ab", min_size=250, max_size=265)),
    "large_string": (pa.large_string(), st.text("ab\0", max_size=18)),
    "binary": (pa.binary(), st.binary(max_size=18)),
    "int64": (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_hashes_are_equal_where_ids_are(kind: str, data: st.DataObject) -> None:
    """In any slice of a column, in any batch; and only there."""
    arrow, values = KINDS[kind]
    rows = data.draw(st.lists(st.tuples(st.none() | values, st.none() | st.integers(0, 2)), min_size=1, max_size=30))
    skip = data.draw(st.integers(0, len(rows) - 1))
    first, second = (
        pa.array(column, t) for column, t in zip(zip(*rows, strict=True), (arrow, pa.int32()), strict=True)
    )
    batch = pa.RecordBatch.from_arrays([first, second], names=["a", "b"])
    where, hashes = hash_ids(batch)
    assert where.tolist() == [i for i, row in enumerate(rows) if row != (None, None)]
    found: dict[Any, set[int]] = {}
    for row, value in zip(where, hashes.tolist(), strict=True):
        found.setdefault(repr(rows[row]), set()).add(value)
    assert all(len(own) == 1 for own in found.values())
    assert len({next(iter(own)) for own in found.values()}) == len(found)
    again, sliced = hash_ids(batch.slice(skip))
    assert sliced.tolist() == hashes[where >= skip].tolist()
    assert (again + skip).tolist() == where[where >= skip].tolist()


def repeated(hashes: IdHashes) -> list[int]:
    return sorted(value for some in hashes.repeated() for value in some.tolist())


@pytest.mark.parametrize("held_bytes", [80, 800, 64 << 20])
def test_repeated_hashes_are_found_in_memory_and_on_disk(held_bytes: int) -> None:
    chosen = np.random.default_rng(3)
    every = chosen.integers(0, 2**64, 3_000, np.uint64)
    twice, thrice = every[100:140], every[200:210]
    with IdHashes(held_bytes) as hashes:
        for part in np.array_split(chosen.permutation(np.concatenate([every, twice, thrice, thrice])), 7):
            hashes.add(part)
        assert repeated(hashes) == sorted([*twice.tolist(), *thrice.tolist()])


def test_no_more_is_held_than_allowed_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with IdHashes(8_000) as hashes:
        hashes.add(np.arange(900, dtype=np.uint64))
        assert not list(tmp_path.iterdir())
        hashes.add(np.arange(5_000, dtype=np.uint64) << np.uint64(50))
        (folder,) = tmp_path.iterdir()
        assert sum(file.stat().st_size for file in folder.iterdir()) == 8 * 5_000
        assert repeated(hashes) == [0]
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with IdHashes(8) as hashes, pytest.raises(ShardmillError, match="cannot be written") as refused:
        hashes.add(np.arange(3, dtype=np.uint64))
    assert "TMPDIR" in str(refused.value.hint)
