"""The frame of a run folder: its plan, its settings, and the names of what lies in it."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from shardmill.errors import UsageError
from shardmill.ledger.records import RunForecast, encode
from shardmill.plan import Plan
from shardmill.store import LocalStore, Store, locate, open_store

_AT_ONCE = 16
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class Folder:
    """A run folder in a store, and the life of the run that is known here."""

    def __init__(self, place: str | os.PathLike[str] | Store, clock: Callable[[], float] = time.time) -> None:
        self.store: Store = open_store(place) if isinstance(place, str | os.PathLike) else place
        self.clock = clock
        self._generation = ""

    @property
    def url(self) -> str:
        return self.store.url

    def _forget(self) -> None:
        """Drop what was known of another life of the run."""
        self._generation = ""

    def create(self, plan: Plan) -> Plan:
        """Write the plan if none is there; the plan that stands there afterwards is returned."""
        plan = plan.indexed_at([self._keep_index(i, f.index) for i, f in enumerate(plan.stat.files)])
        self.store.put_if_absent("plan.json", replace(plan, generation=uuid.uuid4().hex[:8]).encode())
        return self.plan()

    def _keep_index(self, file: int, place: str) -> str:
        """Copy a file's index into the run, for workers elsewhere; the key is told apart by content."""
        if not place:
            return ""
        store, name = locate(place)
        data = store.get(name)
        key = f"index/{file:06d}.{hashlib.sha256(data).hexdigest()[:8]}"
        self.store.put(key, data)
        return key

    def plan(self) -> Plan:
        found = self.find_plan()
        if found is None:
            raise UsageError(f"{self.url}: no run is here.", hint="Give the folder that was --out when it was started.")
        return found

    def find_plan(self) -> Plan | None:
        try:
            plan = Plan.from_json(self.store.get("plan.json"))
        except FileNotFoundError:
            return None
        if plan.generation != self._generation:
            self._forget()
            self._generation = plan.generation
        plan = plan.indexed_at([f.index and f"{self.url}/{f.index}" for f in plan.stat.files])
        now = self.execution()
        return plan.relocated(now.get("places", ()), now.get("to_url", ""))

    def put_execution(self, settings: dict[str, Any]) -> None:
        self.store.put("execution.json", encode({"generation": self._generation, "settings": settings}))

    def execution(self) -> dict[str, Any]:
        return dict(self._execution().get("settings", {}))

    def is_current(self) -> bool:
        """Whether the run is still the one whose plan was read here, and not wiped or begun anew since."""
        return bool(self._execution().get("generation") == self._generation)

    def _execution(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.store.get("execution.json")))
        except FileNotFoundError:
            return {}

    def put_forecast(self, forecast: RunForecast) -> None:
        """Keep the first forecast of a run; later ones would be of what was left."""
        self.store.put_if_absent("forecast.json", encode(forecast))

    def put_placement(self, line: str) -> None:
        """What an engine has to say of workers that are not here yet, for who looks at the run; "" when nothing."""
        self.store.put("placement.json", encode({"at": self.clock(), "line": line}))

    def placement(self) -> tuple[str, float]:
        """What an engine said last of its workers, and when."""
        try:
            said = json.loads(self.store.get("placement.json"))
            return str(said["line"]), float(said["at"])
        except FileNotFoundError:
            return "", 0.0

    def forecast(self) -> RunForecast | None:
        try:
            return RunForecast(**json.loads(self.store.get("forecast.json")))
        except FileNotFoundError:
            return None

    def _each(self, ask: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> list[_Answer]:
        """The answers in order; many requests to a server are under way at once."""
        if len(asked) <= 2 * _AT_ONCE or isinstance(self.store, LocalStore):
            return [ask(one) for one in asked]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(ask, asked))

    def _key(self, folder: str, shard: int) -> str:
        return f"{folder}/{shard:06d}.{self._known_generation()}.json"

    def _indices(self, folder: str, start: int = 0, stop: int | None = None) -> Iterator[int]:
        """The shards in [start, stop) that have something in a folder, in this life of the run."""
        ending = f".{self._known_generation()}.json"
        head, tail = len(folder) + 1, -len(ending)
        last = f"{folder}/{stop - 1:06d}/" if stop else ""
        for entry in self.store.list(f"{folder}/", f"{folder}/{start:06d}" if start else ""):
            key = entry.key
            if last and key > last:
                return
            if key.endswith(ending):
                shard = int(key[head:tail])
                if shard >= start and (stop is None or shard < stop):
                    yield shard

    def _known_generation(self) -> str:
        if not self._generation:
            self.find_plan()
        return self._generation
