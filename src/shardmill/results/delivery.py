"""Delivers the committed rows of a run to another store, in lots, each exactly once.

Every process of the run stages lots that are free; the one that holds the step commits them, in order.

Design: docs/design/delivery.md
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from shardmill.core.console import Bar
from shardmill.core.errors import StepFailed, StoreError, UsageError
from shardmill.ledger import DONE, FAILED, Commit, Ledger, Step
from shardmill.plan import ITEM, WINDOW, Plan
from shardmill.results.merge import part_schema
from shardmill.results.windows import has_items
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.digests import make_salt
from shardmill.sinks.parquet import is_vector, read_part

# About the size of a data file that query engines like; a lot is at least a shard.
_LOT_BYTES = 128 << 20
_MOST_LOTS = 4096
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


def shipment_of(ledger: Ledger, plan: Plan) -> Shipment:
    """What a run delivers."""
    return make_shipment(plan, part_schema(ledger, plan))


def make_shipment(plan: Plan, schema: pa.Schema) -> Shipment:
    """What a run with these columns delivers, or will."""
    vector = next((f.name for f in schema if is_vector(f.type) and f.name not in plan.kept), "")
    several = has_items(plan, schema)
    key = () if several or not plan.work.id else (*plan.work.id, *([WINDOW] if WINDOW in schema.names else []))
    made_by = make_salt(plan.work.task, plan.work.params, plan.fingerprint).hex()[:16]
    return Shipment(plan=plan.id, generation=plan.generation, schema=schema, key=key, vector=vector, made_by=made_by)


def read_rows_of(ledger: Ledger, commit: Commit) -> Iterator[pa.RecordBatch]:
    """The rows of a shard, without the number of an item in it."""
    for batch in read_part(ledger.store, commit):
        at = batch.schema.get_field_index(ITEM)
        yield batch if at < 0 else batch.remove_column(at)


@dataclass
class Courier:
    """One process at the delivery of a run to one store."""

    ledger: Ledger
    plan: Plan
    address: str
    worker: str = field(default_factory=lambda: f"courier-{uuid.uuid4().hex[:12]}")
    lease_s: float = 60.0
    stop: threading.Event = field(default_factory=threading.Event)
    quiet: bool = True
    # A store that does not count its lots gets all of them anew.
    again: bool = False

    def __post_init__(self) -> None:
        self._commits = self.ledger.commits.read_complete(self.plan)
        self._store: Delivery = open_delivery(self.address, shipment_of(self.ledger, self.plan))

    def close(self) -> None:
        self._store.close()

    def stage(self) -> None:
        """Stage the lots that nobody has staged and nobody is at."""
        if self._store.stages:
            for lot in self._lots()[self._store.count() :]:
                if self.stop.is_set():
                    return
                self._stage(lot)

    def commit(self) -> dict[str, Any]:
        """Commit all lots that the store does not have, staging those that are left."""
        lots, made, pause = self._lots(), 0, _FIRST_PAUSE_S
        if self.again and not self._store.counts:
            for lot in lots:
                self.ledger.lots.forget(self._name("lot", lot.number))
        self._store.prepare()
        self._refuse_changed(lots[: self._store.count()])
        with Bar("delivering", quiet=self.quiet) as bar:
            while (there := self._store.count()) < len(lots) and not self.stop.is_set():
                bar.at(there / len(lots), f"{there:,} of {len(lots):,} lots")
                ready = self._ready(lots[there : there + self._store.lots_at_once])
                if ready and self._store.commit(there, ready):
                    made += len(ready)
                    pause = _FIRST_PAUSE_S
                elif not ready:
                    self.stop.wait(pause)
                    pause = min(_LONGEST_PAUSE_S, pause * 1.5)
            bar.at(1.0, f"{len(lots):,} of {len(lots):,} lots")
        done = [] if self.stop.is_set() else self._store.finish([*map(self._recorded, lots)])
        return {"delivered": made, "lots": len(lots), "rows": sum(c.rows_in_part for c in self._commits), "done": done}

    def _ready(self, lots: list[Lot]) -> list[Lot]:
        """Those of the lots that are staged, up to the first that another process is at."""
        ready = []
        for lot in lots:
            if (staged := self._stage(lot)) is None:
                break
            ready.append(replace(lot, staged=staged))
        return ready

    def _stage(self, lot: Lot) -> dict[str, Any] | None:
        """Stage a lot, unless that was done; None while another process is at it."""
        records, name = self.ledger.lots, self._name("lot", lot.number)
        seen = records.take(name, self.worker, self.lease_s)
        if seen.state == DONE and not self._is_usable(seen, lot):
            records.forget(name)
            seen = records.take(name, self.worker, self.lease_s)
        if seen.state == FAILED:
            records.forget(name)
            raise StepFailed(f"Lot {lot.number} of {self.address}: {seen.error}", hint=seen.hint)
        if seen.state != DONE and seen.worker == self.worker:
            try:
                with records.kept(name, self.worker, self.lease_s, self.stop):
                    staged = self._store.stage(lot)
            except BaseException:
                records.release(name, self.worker)
                raise
            records.finish(name, self.worker, {"digest": lot.digest, "staged": staged})
            found = records.find(name)
            seen = found if found is not None else seen
        return seen.result["staged"] if seen.state == DONE else None

    def _is_usable(self, seen: Step, lot: Lot) -> bool:
        """Whether what was staged is of these rows, and still there."""
        return bool(seen.result["digest"] == lot.digest) and self._store.is_staged(seen.result["staged"])

    def _recorded(self, lot: Lot) -> Lot:
        seen = self.ledger.lots.find(self._name("lot", lot.number))
        return replace(lot, staged=seen.result["staged"]) if seen is not None and seen.state == DONE else lot

    def _lots(self) -> list[Lot]:
        """The lots of this delivery: cut by whoever comes first, and the same ever after."""
        records, name, pause = self.ledger.lots, self._name("cut"), _FIRST_PAUSE_S
        while (seen := records.take(name, self.worker, self.lease_s)).state != DONE:
            if seen.worker == self.worker:
                try:
                    self._store.prepare()
                    records.finish(name, self.worker, {"stops": self._cut()})
                finally:
                    records.release(name, self.worker)
            elif self.stop.wait(pause):
                return []
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)
        stops = [int(stop) for stop in seen.result["stops"]]
        return [self._lot(n, range(*span)) for n, span in enumerate(pairwise([0, *stops]))]

    def _cut(self) -> list[int]:
        """Where lots end: large enough for a data file, and not too many."""
        sizes = [commit.part_bytes for commit in self._commits]
        most = max(_LOT_BYTES, sum(sizes) // _MOST_LOTS)
        stops, held = [], 0
        for shard, size in enumerate(sizes):
            held += size
            if held >= most or shard == len(sizes) - 1:
                stops.append(shard + 1)
                held = 0
        return stops

    def _lot(self, number: int, shards: range) -> Lot:
        commits = self._commits[shards.start : shards.stop]
        digest = hashlib.sha256("".join(c.rows_digest or c.digest for c in commits).encode()).hexdigest()[:16]
        return Lot(number, shards, digest, lambda: (b for c in commits for b in read_rows_of(self.ledger, c)))

    def _refuse_changed(self, lots: list[Lot]) -> None:
        """Refuse to go on if rows that were delivered have been made again since, and are others now."""
        for lot in lots:
            seen = self.ledger.lots.find(self._name("lot", lot.number))
            if seen is not None and seen.state == DONE and seen.result["digest"] != lot.digest:
                raise UsageError(
                    f"Shards {lot.shards.start} to {lot.shards.stop - 1} were made again after they had been delivered "
                    f"to {self.address}.",
                    hint="Deliver the run to another place, or delete what is there first.",
                )

    def _name(self, kind: str, number: int | None = None) -> str:
        return f"{kind}:{self.address}" + ("" if number is None else f"#{number}")


def stage_lots(ledger: Ledger, plan: Plan, address: str, worker: str, *, lease_s: float, stop: threading.Event) -> None:
    """Stage what no other process is at, for whoever commits it."""
    courier = Courier(ledger, plan, address, worker=worker, lease_s=lease_s, stop=stop)
    try:
        courier.stage()
    finally:
        courier.close()


def deliver_run(
    ledger: Ledger, plan: Plan, address: str, *, lease_s: float = 60.0, again: bool = False, quiet: bool = True
) -> dict[str, Any]:
    """Deliver everything that the store does not have. After a kill, the rest is delivered.

    A store that replaces rows by their ids gets all of them `again`, which repairs it.
    """
    courier = Courier(ledger, plan, address, lease_s=lease_s, quiet=quiet, again=again)
    try:
        return courier.commit()
    finally:
        courier.close()


def prepare_delivery(plan: Plan, schema: pa.Schema, address: str) -> None:
    """Create what the rows of a run will go into, or refuse it, before anything is computed."""
    store = open_delivery(address, make_shipment(plan, schema))
    try:
        store.prepare()
    finally:
        store.close()


def deliveries_of(settings: dict[str, Any]) -> list[str]:
    """Where a run is delivered to, by its settings, which may be of an earlier version."""
    into = settings.get("into") or ()
    return [into] if isinstance(into, str) else list(map(str, into))


def remember_delivery(ledger: Ledger, address: str) -> None:
    """Note in the settings of a finished run where it was delivered to; a folder that cannot be written stays so."""
    settings = ledger.execution()
    if address not in (there := deliveries_of(settings)):
        with contextlib.suppress(StoreError):
            ledger.put_execution({**settings, "into": [*there, address]})
