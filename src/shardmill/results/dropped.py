"""The file in which a run names the items that it gave no row: it names all of them, and no other."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.errors import ShardmillError
from shardmill.results.report import Check
from shardmill.results.windows import Numbers
from shardmill.store import Store

_NAME = "duplicates"


class DroppedItems:
    """The items without a row, in source order: hashed as they come, as there may be many."""

    def __init__(self) -> None:
        self._hash, self._count, self._before = hashlib.sha256(), 0, 0

    def add(self, dropped: Numbers, items: int) -> None:
        """Add those of the next shard; `items` counts all of its items."""
        self._hash.update((dropped + self._before).astype("<i8").tobytes())
        self._count += len(dropped)
        self._before += items

    def check(self, store: Store, name: str) -> Check:
        """Compare with the file, which has them in source order, too."""
        named, count = hashlib.sha256(), 0
        try:
            with store.reader(name) as data, pq.ParquetFile(data, page_checksum_verification=True) as file:
                for batch in file.iter_batches(columns=["kept", "dropped"]):
                    kept, dropped = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
                    if np.any(kept >= dropped):
                        return Check(_NAME, False, f"{name} has an item that is like a later one")
                    named.update(dropped.astype("<i8").tobytes())
                    count += len(dropped)
        except FileNotFoundError:
            return Check(_NAME, False, f"{name} is missing: the same command writes it again")
        except (pa.ArrowException, OSError, ValueError, KeyError, ShardmillError) as error:
            why = str(error).partition("\n")[0]
            return Check(_NAME, False, f"{name} is damaged: {why}; the same command writes it again")
        if named.digest() != self._hash.digest():
            return Check(_NAME, False, f"{name} names {count:,} items, but not the {self._count:,} that have no row")
        return Check(_NAME, True, f"{count:,} items are in {name}, as many as have no row")
