"""What vector databases share: a point for each row, with an id made of the collection, the row's id and its window.

The id does not depend on the run, so that delivering a row again, or a later run with the same ids, replaces it.
Workers upsert whole lots; there is nothing to commit. A store that cannot order the writes of a worker that was taken
for dead is repeatable, and repaired by verify: such a worker writes what its run has, which differs only from rows
that a later run delivered meanwhile.

Design: docs/design/delivery.md
"""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.arrowtypes import numpy_dtype
from shardmill.core.errors import DatabaseError, ShardmillError, StoreError, UsageError
from shardmill.core.hashing import hash_rows
from shardmill.core.passwords import redact
from shardmill.plan import WINDOW
from shardmill.sinks.base import Delivery, Lot, Shipment, how_to_go_on, is_full
from shardmill.sinks.parquet import vectors
from shardmill.sinks.points.patience import RequestPace, TooLarge, Trouble
from shardmill.sinks.points.payload import DIGEST, decode, encode, hash_payloads, is_held, to_json

# The name under which a scan gives the id of a point, beside the columns of the rows.
POINT = "shardmill_point"
METRIC = "cosine"
_NAMESPACE = uuid.UUID("f56dcbf9-40ab-5260-8d12-cd4d8a9cd747")
_BATCH_BYTES = 4 << 20
# How far the cosine of a vector that came back may be from 1.
_TOLERANCE = 1e-4
_START_PATIENCE_S, _PATIENCE_S = 15.0, 300.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Point:
    """A row as a vector database has it."""

    id: str
    vector: NDArray[np.float32]
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Collection:
    """What a store says of a collection; a metric or maker that it does not tell is ""."""

    dims: int
    metric: str
    made_by: str


class PointDelivery(Delivery):
    """A collection of a vector database."""

    stages = True
    counts = False
    # What the store is called in messages, how its addresses are written, and the most bytes of a row's payload.
    store = ""
    usage = ""
    payload_bytes = 1 << 25
    # The rows that are read, looked for or deleted by one request.
    page_rows = 1000
    # Whether the store keeps a vector with its length; else only its direction comes back.
    exact = False
    # How long to wait for a server that is away: at the start, and later.
    start_patience_s, patience_s = _START_PATIENCE_S, _PATIENCE_S

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        self.collection = self.find_collection()
        if not self.collection:
            raise UsageError(f"{address} names no collection.", hint=f"Write: {self.usage}")
        if not shipment.vector:
            raise UsageError(
                f"The rows have no vector, which {self.store} needs.",
                hint="Deliver a run that makes vectors, or write files: shardmill merge RUN --out FILE",
            )
        if not shipment.key:
            raise UsageError(
                f"Nothing identifies the rows, by which {self.store} replaces them.",
                hint="Run it with --id COLUMN. Rows of a task that makes any number of them for an item have no id.",
            )
        schema = shipment.schema
        self.dims: int = schema.field(shipment.vector).type.list_size
        others = [field for field in schema if field.name != shipment.vector]
        self.columns = [f.name for f in others if is_held(f.type) and self.takes_name(f.name)]
        self.left_out = [f"{f.name} ({f.type})" for f in others if f.name not in self.columns]
        self._items = [name for name in shipment.key if name != WINDOW]
        self._committed = 0
        self._pace = RequestPace(_BATCH_BYTES)
        self._client: Any = None

    @abstractmethod
    def find_collection(self) -> str:
        """The name of the collection, by the address."""

    @abstractmethod
    def connect(self) -> Any:
        """A client of the store."""

    @abstractmethod
    def judge(self, error: Exception) -> Trouble:
        """What an error of the client means."""

    @abstractmethod
    def describe(self) -> Collection | None:
        """The collection; None if there is none."""

    @abstractmethod
    def create(self) -> None:
        """Create the collection for cosines; another process may do so at the same time."""

    @abstractmethod
    def upsert(self, points: Sequence[Point]) -> None:
        """Write points, and replace those with the same ids."""

    @abstractmethod
    def find(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that it has."""

    @abstractmethod
    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """The points that it has of these."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Delete the points that it has of these."""

    @abstractmethod
    def pages(self) -> Iterator[list[Point]]:
        """All points, some at a time, each request through `ask`."""

    def settle(self) -> None:
        """Have the store write to its disk what it has taken."""

    def takes_name(self, name: str) -> bool:
        return name != DIGEST

    def reason(self, error: Exception) -> str:
        """What the client says, in a line."""
        return str(error) or type(error).__name__

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self.connect()
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, call: Callable[[], _Answer], *, at_start: bool = False) -> _Answer:
        """The answer of the server, for which it may have to come back first."""
        patience_s = self.start_patience_s if at_start else self.patience_s
        give_up = partial(self._give_up, at_start)
        return self._pace.ask(call, self._judge, patience_s, give_up)

    def _judge(self, error: Exception) -> Trouble:
        """A server whose disk is full may say that it is busy."""
        return Trouble.FINAL if is_full(self.reason(error)) else self.judge(error)

    def prepare(self) -> None:
        found = self.ask(self.describe, at_start=True)
        if found is None:
            self.ask(self.create, at_start=True)
            found = self.ask(self.describe, at_start=True)
        if found is None:
            return
        if found.dims not in (0, self.dims):
            raise unfit(self.address, f"its vectors have {found.dims} dimensions, and those of the result {self.dims}")
        if found.metric not in ("", METRIC):
            raise unfit(self.address, f"its metric is {found.metric}, and vectors are compared by {METRIC}")
        if found.made_by not in ("", self.shipment.made_by):
            raise UsageError(
                f"{self.address} has rows that another model, or other parameters, made.",
                hint="Choose another name for these: vectors of two models cannot be compared.",
            )

    def has_points(self) -> bool:
        """Whether the collection has any: it may have been dropped, or emptied."""
        return self.ask(self.describe, at_start=True) is not None and any(self.pages())

    def count(self) -> int:
        """The lots that this object has seen staged: the ledger's records of them say which are there."""
        return self._committed

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        if first != self._committed:
            return False
        self._committed += len(lots)
        return True

    def stage(self, lot: Lot) -> dict[str, Any]:
        """Upsert the rows of a lot, and delete those of its items that the store has and the lot has not."""
        before, rows, without = self._spent(), 0, 0
        waiting: list[Point] = []
        held = 0
        gone = _Gone(self, windows=lot.whole and WINDOW in self.shipment.key)
        for batch in lot.read():
            for point, key, window in self.points(batch):
                if point.vector.size:
                    rows += 1
                    waiting.append(point)
                    held += self._size(point)
                    if held >= self._pace.bytes:
                        self._send(waiting)
                        waiting, held = [], 0
                else:
                    without += 1
                    gone.without.append(point.id)
                gone.saw(key, window)
        self._send(waiting)
        gone.finish()
        self.ask(self.settle)
        spent = {name: round(now - before[name], 3) for name, now in self._spent().items()}
        return {"rows": rows, "without_vector": without, **spent}

    def _spent(self) -> dict[str, float]:
        return {"asked_s": self._pace.asked_s, "waited_s": self._pace.waited_s, "busy": self._pace.busy}

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        lines = []
        if without := sum(lot.staged.get("without_vector", 0) for lot in lots):
            lines.append(f"{without:,} rows have no vector and are not stored")
        if self.left_out:
            lines.append(f"{self.store} cannot hold {', '.join(self.left_out)}: not stored")
        return lines

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All points, with the columns of the rows, the digest beside each and its id."""
        schema = self.shipment.schema
        whole = schema.append(pa.field(DIGEST, pa.string())).append(pa.field(POINT, pa.string()))
        for page in self.pages():
            columns = [
                self._vectors(page, field.type)
                if field.name == self.shipment.vector
                else decode([p.payload.get(field.name) for p in page], field.type)
                for field in schema
            ]
            digests = decode([p.payload.get(DIGEST) for p in page], pa.string())
            yield pa.RecordBatch.from_arrays([*columns, digests, pa.array([p.id for p in page])], schema=whole)

    def delete(self, keys: pa.RecordBatch) -> None:
        ids = [self.point_id(*self._split(row)) for row in keys.to_pylist()]
        for at in range(0, len(ids), self.page_rows):
            self.ask(partial(self.remove, ids[at : at + self.page_rows]))

    def remove_unchanged(self, rows: pa.RecordBatch) -> int:
        """Delete the points of these rows while they are as they were delivered; returns how many are not."""
        points, alone = [point for point, _, _ in self.points(rows)], 0
        for at in range(0, len(points), self.page_rows):
            some = {point.id: point for point in points[at : at + self.page_rows]}
            there = self.ask(partial(self.fetch, list(some)))
            same = [point.id for point in there if self._is_same(point, some[point.id])]
            alone += len(there) - len(same)
            if same:
                self.ask(partial(self.remove, same))
        return alone

    def own(self, payload: dict[str, Any]) -> dict[str, Any]:
        """What the run says of a row; further fields are those of other programs."""
        return {name: payload[name] for name in (*self.columns, DIGEST) if name in payload}

    def _is_same(self, there: Point, delivered: Point) -> bool:
        """A vector may come back with another length."""
        if there.vector.shape != delivered.vector.shape:
            return False
        payloads = hash_payloads([self.own(there.payload), self.own(delivered.payload)])
        lengths = float(np.linalg.norm(there.vector) * np.linalg.norm(delivered.vector))
        is_near = float(there.vector @ delivered.vector) >= (1 - _TOLERANCE) * lengths
        return bool(payloads[0] == payloads[1]) and is_near

    def point_id(self, item: Sequence[Any], window: int) -> str:
        """The id of a row: the same for every run."""
        return str(uuid.uuid5(_NAMESPACE, json.dumps([self.collection, *item, window], default=str)))

    def points(self, rows: pa.RecordBatch) -> Iterator[tuple[Point, tuple[Any, ...], int]]:
        """A point for each row, with the id of its item and its window; its vector is empty if it cannot be stored."""
        kept = [(name, encode(rows.column(name))) for name in self.columns]
        digests = [f"{int(value):016x}" for value in hash_rows(rows)]
        matrix = vectors(rows.column(self.shipment.vector)).astype(np.float32, copy=False)
        usable = np.asarray(np.isfinite(matrix).all(axis=1))
        empty = np.zeros(0, np.float32)
        for i, row in enumerate(rows.select(list(self.shipment.key)).to_pylist()):
            payload = {name: values[i] for name, values in kept if values[i] is not None}
            item, window = self._split(row)
            payload[DIGEST] = digests[i]
            yield Point(self.point_id(item, window), matrix[i] if usable[i] else empty, payload), item, window

    def _split(self, row: dict[str, Any]) -> tuple[tuple[Any, ...], int]:
        return tuple(row[name] for name in self._items), int(row.get(WINDOW) or 0) if WINDOW in self.shipment.key else 0

    def _size(self, point: Point) -> int:
        size = len(to_json(point.payload).encode())
        if size > self.payload_bytes:
            raise UsageError(
                f"{self.address}: the row {self._name(point)} has {size:,} bytes beside its vector; {self.store} takes "
                f"{self.payload_bytes:,}.",
                hint="Keep fewer columns, or deliver the run to files: shardmill merge RUN --out FILE.parquet",
            )
        return size + 4 * self.dims

    def _send(self, points: list[Point]) -> None:
        """Upsert points, in smaller requests if the server does not take as many at once; of an id, the last one."""
        points = [*{point.id: point for point in points}.values()]
        if not points:
            return
        try:
            self.ask(lambda: self.upsert(points))
        except TooLarge as error:
            if len(points) == 1:
                raise UsageError(
                    f"{self.address}: the row {self._name(points[0])} is larger than the server takes.",
                    hint="Keep fewer columns, or raise the limit of the server.",
                ) from error
            self._pace.refused()
            for half in (points[: len(points) // 2], points[len(points) // 2 :]):
                self._send(half)
        else:
            self._pace.taken()

    def _name(self, point: Point) -> str:
        return "/".join(str(point.payload.get(name, "")) for name in self.shipment.key)

    def _vectors(self, page: Sequence[Point], kind: pa.DataType) -> pa.Array:
        fits = [len(p.vector) == self.dims for p in page]
        rows = [p.vector if fit else np.zeros(self.dims, np.float32) for p, fit in zip(page, fits, strict=True)]
        flat = pa.array(np.concatenate(rows).astype(numpy_dtype(kind.value_type)))
        return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=pa.array([not fit for fit in fits]))

    def _give_up(self, at_start: bool, error: Exception, trouble: Trouble) -> ShardmillError:
        reason = redact(" ".join(self.reason(error).split()))[:300].rstrip(".")
        if trouble is Trouble.FINAL:
            return DatabaseError(f"{self.address}: {reason}.", hint=how_to_go_on(reason))
        if at_start:
            return DatabaseError(
                f"{self.address} cannot be reached: {reason}.",
                hint="Check host and port, and that the server is up and accepts connections from this machine.",
            )
        return StoreError(f"{self.address} does not answer: {reason}.", hint="Run the same command again: it resumes.")


class _Gone:
    """Finds and deletes points of items that a lot has no rows for any more: windows after the last, failed rows."""

    def __init__(self, store: PointDelivery, *, windows: bool) -> None:
        self._store, self._windows = store, windows
        self._last: dict[tuple[Any, ...], int] = {}
        self.without: list[str] = []

    def saw(self, item: tuple[Any, ...], window: int) -> None:
        """The rows of an item follow one another."""
        if self._windows:
            if len(self._last) >= self._store.page_rows and item not in self._last:
                self._delete_later_windows()
            self._last[item] = max(window, self._last.get(item, 0))
        elif len(self.without) >= self._store.page_rows:
            self._delete_without()

    def finish(self) -> None:
        self._delete_later_windows()
        self._delete_without()

    def _delete_later_windows(self) -> None:
        """From the last one on: after a kill, those that are left still follow the last that is wanted."""
        levels = []
        asked = {self._store.point_id(item, last + 1): (item, last + 1) for item, last in self._last.items()}
        while asked:
            there = self._found(list(asked))
            levels.append(there)
            following = [(item, window + 1) for point, (item, window) in asked.items() if point in there]
            asked = {self._store.point_id(item, window): (item, window) for item, window in following}
        for there in reversed(levels):
            self._remove(there)
        self._last.clear()

    def _delete_without(self) -> None:
        self._remove(self.without)
        self.without.clear()

    def _found(self, ids: list[str]) -> set[str]:
        return self._store.ask(lambda: self._store.find(ids))

    def _remove(self, ids: Iterable[str]) -> None:
        if listed := list(ids):
            self._store.ask(lambda: self._store.remove(listed))


def unfit(address: str, why: str) -> UsageError:
    """A collection that cannot take the rows."""
    return UsageError(f"{address} does not fit the rows: {why}.", hint="Choose another name: it is created.")
