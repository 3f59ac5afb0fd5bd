"""What each item of a part was made from and what it carries, so that a later edition of a run can take its rows over.

It is an appendix of the part: written, sealed and deleted with it. Design: docs/design/editions.md
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.hashing import Hashes
from shardmill.ledger import Commit, Ledger
from shardmill.store import Store
from shardmill.store.parts import read_appendix, readable

# Finds the lineage of a part that was written without one.
Recover = Callable[[Ledger, Commit], pa.RecordBatch | None]
# What is needed only until an edition is complete.
INDEX = "earlier/"

# One entry per item, in order. `made_from` is null for an item that failed or is not taken, so that it is tried again.
SCHEMA = pa.schema(
    [
        # A digest of its text, the task's own fields, parameters, model and code.
        pa.field("made_from", pa.binary(16)),
        # A hash of its id and kept columns.
        pa.field("carried", pa.uint64()),
        # A hash of each of its rows, whatever their place.
        pa.field("rows", pa.list_(pa.uint64())),
    ]
)
MADE_FROM, SEEN, CONTENT = "made_from", "seen", "content"
# Of rows of a query that tell when they changed.
SEEN_SCHEMA = pa.schema(
    [
        *SCHEMA,
        # A digest of its id and of what tells its change; null where `made_from` is.
        pa.field(SEEN, pa.binary(16)),
        # A hash of its text, id and kept columns, whatever its place.
        pa.field(CONTENT, pa.uint64()),
    ]
)


def make_lineage(
    made_from: pa.Array,
    carried: Hashes,
    items: NDArray[np.int64],
    rows: Hashes,
    without: NDArray[np.int64],
    *,
    seen: pa.Array | None = None,
    contents: Hashes | None = None,
) -> pa.RecordBatch:
    """The lineage of consecutive items. Each of the `rows`, in any order of items, belongs to the item beside it.

    Items that tell when they changed have what is `seen` of that, and hashes of their `contents`.
    """
    starts = np.zeros(len(carried) + 1, np.int32)
    np.cumsum(np.bincount(items, minlength=len(carried)), out=starts[1:])
    rows = rows[np.argsort(items, kind="stable")]
    known = np.ones(len(carried), bool)
    known[without] = False
    nothing = pa.scalar(None, pa.binary(16))
    made = pc.if_else(pa.array(known), made_from.cast(pa.binary(16)), nothing)
    lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(rows, pa.uint64()))
    columns = [made, pa.array(carried, pa.uint64()), lists]
    if seen is None or contents is None:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    columns += [pc.if_else(made.is_valid(), seen.cast(pa.binary(16)), nothing), pa.array(contents, pa.uint64())]
    return pa.RecordBatch.from_arrays(columns, schema=SEEN_SCHEMA)


def encode_lineage(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def read_lineage(file: IO[bytes]) -> pa.Table | None:
    """The lineage of a part or of kept rows; None if an earlier version wrote them, or none can be told."""
    return _decode(read_appendix(file))


class Lineages:
    """The lineages of the parts of a finished edition, `base`.

    Parts of earlier versions have none. It is recovered, if it can be, and kept in a folder of `store` for all workers.
    """

    def __init__(self, store: Store, base: Ledger, recover: Recover) -> None:
        self._store, self._base, self._recover = store, base, recover

    def read(self, commit: Commit) -> pa.Table | None:
        """None if it is not known."""
        with readable(f"{self._base.url}/{commit.part}"), self._base.store.reader(commit.part) as file:
            lineage = read_lineage(file)
        if lineage is not None:
            return lineage
        key = f"{INDEX}lineage-{commit.shard:06d}"
        try:
            return _decode(self._store.get(key))
        except FileNotFoundError:
            recovered = self._recover(self._base, commit)
            self._store.put(key, b"" if recovered is None else encode_lineage([recovered]))
        return None if recovered is None else pa.Table.from_batches([recovered])


def _decode(data: bytes | None) -> pa.Table | None:
    if not data:
        return None
    with pa.ipc.open_stream(data) as stream:
        found = stream.read_all()
    return found if found.schema in (SCHEMA, SEEN_SCHEMA) else None
