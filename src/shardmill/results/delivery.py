"""Delivers the committed rows of a run to another store, in lots, each exactly once.

Every process of the run stages lots that are free; the one that holds the step commits them, in order.

Design: docs/design/delivery.md
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from shardmill.core.console import Bar, say
from shardmill.core.devices import cores
from shardmill.core.errors import MissingExtra, StepFailed, StoreError, UsageError
from shardmill.ledger import DONE, FAILED, Commit, Ledger, Step
from shardmill.plan import WINDOW, Plan
from shardmill.plan.salt import salt_of
from shardmill.results.edition_rows import read_rows_of
from shardmill.results.holders import forget_others
from shardmill.results.merge import part_schema
from shardmill.results.pressure import Pressure, describe
from shardmill.results.turning import HeldEdition, Turning, find_edition, find_held, refuse_unfit
from shardmill.results.turning_points import PointTurning, find_delivered
from shardmill.results.windows import has_items
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.parquet import is_vector
from shardmill.sinks.points.base import PointDelivery
from shardmill.sources.ahead import ahead

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
    made_by = salt_of(plan).hex()[:16]
    return Shipment(plan=plan.id, generation=plan.generation, schema=schema, key=key, vector=vector, made_by=made_by)


@dataclass
class Courier:
    """One process at the delivery of a run to one store."""

    ledger: Ledger
    plan: Plan
    address: str
    worker: str = field(default_factory=lambda: f"courier-{uuid.uuid4().hex[:12]}")
    lease_s: float = 60.0
    # Looked up when it is made: a simulation has events of its own.
    stop: threading.Event = field(default_factory=lambda: threading.Event())
    quiet: bool = True
    # A store that does not count its lots gets all of them anew.
    again: bool = False

    def __post_init__(self) -> None:
        self._committing = Pressure()
        self._staging: dict[int, dict[str, Any]] = {}
        self._commits = self.ledger.commits.read_complete(self.plan)
        self._points: PointTurning | None = None
        self._is_partial = False
        self._shipment = shipment_of(self.ledger, self.plan)
        self._store: Delivery = open_delivery(self.address, self._shipment)
        # Those with which threads stage lots, each with one at a time.
        self._idle: deque[Delivery] = deque()
        self._failed = threading.Event()

    def close(self) -> None:
        self._store.close()
        while self._idle:
            self._idle.pop().close()

    def stage(self) -> None:
        """Stage the lots that nobody has staged and nobody is at; none if the store has another edition of the run."""
        self._find_points()
        if self._store.stages and find_held(self.ledger, self.plan, self._store) is None:
            for lot in self._lots()[self._store.count() :]:
                if self.stop.is_set():
                    return
                self._stage(lot, self._store)

    def commit(self) -> dict[str, Any]:
        """Commit all lots that the store does not have, staging those that are left."""
        self._find_points()
        lots, made, pause = self._lots(), 0, _FIRST_PAUSE_S
        if self.again and not self._store.counts:
            for lot in lots:
                self.ledger.lots.forget(self._name("lot", lot.number))
        self._store.prepare()
        turned = self._turn(len(lots))
        self._refuse_changed(lots[: self._store.count()])
        with Bar("delivering", quiet=self.quiet) as bar:
            while (there := self._store.count()) < len(lots) and not self.stop.is_set():
                bar.at(there / len(lots), self._said(there, len(lots)))
                ready = self._ready(lots[there : there + self._store.lots_at_once])
                if ready and self._commit(there, ready):
                    made += len(ready)
                    pause = _FIRST_PAUSE_S
                elif not ready:
                    self.stop.wait(pause)
                    pause = min(_LONGEST_PAUSE_S, pause * 1.5)
            bar.at(1.0, self._said(len(lots), len(lots)))
        if self._points is not None and isinstance(self._store, PointDelivery) and not self.stop.is_set():
            turned += self._points.delete_gone(self._store)
            self._points.forget(self.address)
        done: list[str] = []
        if not self.stop.is_set():
            done = self._store.finish([*map(self._recorded, lots)])
            forget_others(self.ledger, self.address)
        return {
            "delivered": made,
            "lots": len(lots),
            "rows": sum(c.rows_in_part for c in self._commits),
            "done": [*turned, *done],
            "pressure": self._pressure(),
        }

    def _find_points(self) -> None:
        """Find out which other editions a store may have that does not note it itself."""
        if not isinstance(self._store, PointDelivery) or not self._store.has_points():
            return
        if held := find_delivered(self.ledger, self.plan, self.address):
            for each in held:
                refuse_unfit(each, self._store)
            self._points = PointTurning(held, self.ledger, self.plan, self._shipment.key)

    def _turn(self, lots: int) -> list[str]:
        """Make this edition of another one that the store has; first that one, if it is becoming a third."""
        said: list[str] = []
        self._refuse_untold()
        while (held := find_held(self.ledger, self.plan, self._store)) is not None and not self.stop.is_set():
            refuse_unfit(held, self._store)
            if (other := held.holding.turns_to) not in ("", self.plan.id):
                third = find_edition(self.ledger, other)
                refuse_unfit(third, self._store)
                said += deliver_run(third.ledger, third.plan, self.address, lease_s=self.lease_s, quiet=self.quiet)[
                    "done"
                ]
                continue
            turning = Turning(held, self._shards_of(held), self.ledger, self.plan, self._store, lots, self.stop)
            said += turning.run(quiet=self.quiet)
        return said

    def _refuse_untold(self) -> None:
        """Refuse a store that counts lots and cannot tell which editions these are of, if it has another one."""
        if not self._store.counts or type(self._store).holdings is not Delivery.holdings or self._store.count():
            return
        if held := find_delivered(self.ledger, self.plan, self.address):
            raise UsageError(
                f"{self.address} has edition {held[0].number} of this run, which its sink cannot bring up to another.",
                hint="Load the run into a new table.",
            )

    def _shards_of(self, held: HeldEdition) -> int:
        """The shards of another edition whose rows the store has, by the lots that they were cut into."""
        seen = held.ledger.lots.find(self._name("cut"))
        stops = seen.result["stops"] if seen is not None and seen.state == DONE else None
        stops = stops or cut_lots(held.ledger.commits.read_complete(held.plan))
        return int(stops[min(held.holding.lots, len(stops)) - 1])

    def _commit(self, first: int, lots: list[Lot]) -> bool:
        with self._committing.working():
            return self._store.commit(first, [replace(lot, read=self._committing.timed(lot.read)) for lot in lots])

    def _pressure(self) -> dict[str, Any]:
        """What was waited for: at the commits of this process, and by whoever staged its lots."""
        total = Pressure()
        for each in (self._committing.to_json(), *self._staging.values()):
            total.add(each)
        return total.to_json()

    def _said(self, there: int, lots: int) -> str:
        return " · ".join(filter(None, (f"{there:,} of {lots:,} lots", describe(self._pressure()))))

    def _ready(self, lots: list[Lot]) -> list[Lot]:
        """Those of the lots that are staged, up to the first that another process is at."""
        ready = []
        for lot, staged in zip(lots, self._stage_all(lots), strict=False):
            if staged is None:
                break
            ready.append(replace(lot, staged=staged))
        return ready

    def _stage_all(self, lots: list[Lot]) -> Iterator[dict[str, Any] | None]:
        """Stage lots on all cores, if the store can be open more than once. If one fails, the others are left."""
        if not self._store.stages or cores() == 1:
            yield from (self._stage(lot, self._store) for lot in lots)
            return
        with ThreadPoolExecutor(cores(), "lots") as threads:
            waiting = [threads.submit(self._stage_apart, lot) for lot in lots]
            try:
                for each in waiting:
                    yield each.result()
            except (Exception, KeyboardInterrupt):
                self._failed.set()
                raise
            finally:
                for each in waiting:
                    each.cancel()

    def _stage_apart(self, lot: Lot) -> dict[str, Any] | None:
        try:
            store = self._idle.pop()
        except IndexError:
            store = open_delivery(self.address, self._shipment)
        try:
            return self._stage(lot, store)
        finally:
            self._idle.append(store)

    def _stage(self, lot: Lot, store: Delivery) -> dict[str, Any] | None:
        """Stage a lot, unless that was done; None while another process is at it."""
        records, name = self.ledger.lots, self._name("lot", lot.number)
        seen = records.take(name, self.worker, self.lease_s)
        if seen.state == DONE and not _is_usable(seen, lot, store):
            records.forget(name)
            seen = records.take(name, self.worker, self.lease_s)
        self._refuse_failed(seen, f"Lot {lot.number} of {self.address}")
        if seen.state != DONE and seen.worker == self.worker:
            spent = Pressure()
            try:
                with records.kept(name, self.worker, self.lease_s, self.stop), spent.working() as said:
                    made = store.stage(replace(lot, read=spent.timed(lot.read)))
                    said.update(made)
            except BaseException:
                records.release(name, self.worker)
                raise
            records.finish(name, self.worker, {"digest": lot.digest, "staged": made, "pressure": spent.to_json()})
            found = records.find(name)
            seen = found if found is not None else seen
        if seen.state != DONE:
            return None
        self._staging[lot.number] = seen.result.get("pressure", {})
        staged: dict[str, Any] = seen.result["staged"]
        return staged

    def _recorded(self, lot: Lot) -> Lot:
        seen = self.ledger.lots.find(self._name("lot", lot.number))
        return replace(lot, staged=seen.result["staged"]) if seen is not None and seen.state == DONE else lot

    def _lots(self) -> list[Lot]:
        """The lots of this delivery: cut by whoever comes first, and the same ever after."""
        records, name, pause = self.ledger.lots, self._name("cut"), _FIRST_PAUSE_S
        while (seen := records.take(name, self.worker, self.lease_s)).state != DONE:
            self._refuse_failed(seen, f"The lots of {self.address}")
            if seen.worker == self.worker:
                try:
                    self._store.prepare()
                    records.finish(name, self.worker, {"stops": cut_lots(self._commits), **self._from()})
                finally:
                    records.release(name, self.worker)
            elif self.stop.wait(pause):
                return []
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)
        stops = [int(stop) for stop in seen.result["stops"]]
        # Whoever has cut them may have found an empty store.
        self._is_partial = self._points is not None and self._points.is_partial and bool(seen.result.get("from"))
        return [self._lot(n, range(*span)) for n, span in enumerate(pairwise([0, *stops]))]

    def _lot(self, number: int, shards: range) -> Lot:
        commits = self._commits[shards.start : shards.stop]
        digest = hashlib.sha256("".join(c.rows_digest or c.digest for c in commits).encode()).hexdigest()[:16]
        if (points := self._points) is not None and self._is_partial:
            schema = self._shipment.schema
            return Lot(number, shards, digest, lambda: ahead(lambda: points.read(commits, schema)), whole=False)
        return Lot(number, shards, digest, lambda: ahead(lambda: self._read(commits)))

    def _from(self) -> dict[str, Any]:
        return {} if self._points is None else {"from": [held.number for held in self._points.held]}

    def _read(self, commits: Sequence[Commit]) -> Iterator[pa.RecordBatch]:
        for commit in commits:
            for batch in read_rows_of(self.ledger, commit):
                if self._failed.is_set():
                    raise StepFailed(f"The delivery to {self.address} was given up.")
                yield batch

    def _refuse_failed(self, seen: Step, what: str) -> None:
        """Say why something could not be done; whoever comes next tries it again."""
        if seen.state == FAILED:
            self.ledger.lots.forget(seen.step)
            raise StepFailed(f"{what}: {seen.error}", hint=seen.hint or "Run the same command again: it resumes.")

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


def cut_lots(commits: Sequence[Commit]) -> list[int]:
    """Where lots end: large enough for a data file, and not too many."""
    sizes = [commit.rows_bytes for commit in commits]
    most = max(_LOT_BYTES, sum(sizes) // _MOST_LOTS)
    stops, held = [], 0
    for shard, size in enumerate(sizes):
        held += size
        if held >= most or shard == len(sizes) - 1:
            stops.append(shard + 1)
            held = 0
    return stops


def _is_usable(seen: Step, lot: Lot, store: Delivery) -> bool:
    """Whether what was staged is of these rows, and still there."""
    return bool(seen.result["digest"] == lot.digest) and store.is_staged(seen.result["staged"])


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


def show_delivery(ledger: Ledger, plan: Plan, address: str, name: str) -> None:
    """Let readers of a store find what was delivered under this name."""
    store = open_delivery(address, shipment_of(ledger, plan))
    try:
        store.show_as(name)
    finally:
        store.close()


def tell_delivery(address: str, found: dict[str, Any]) -> None:
    """Say what a delivery has done beside adding rows, and what bounded it."""
    for line in filter(None, (*found["done"], describe(found["pressure"]))):
        say(f"At {address}: {line}")


def prepare_delivery(plan: Plan, schema: pa.Schema, address: str, *, opens: bool = True) -> None:
    """Create what the rows of a run will go into, or refuse it, before anything is computed.

    A store that cannot be opened from here is not: rows that its kind cannot hold are refused all the same.
    """
    try:
        store = open_delivery(address, make_shipment(plan, schema))
    except MissingExtra:
        if opens:
            raise
        return
    try:
        if opens:
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
