"""Keys and listings of a run folder, for one generation of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from shardmill.core.errors import CorruptState
from shardmill.plan import Plan
from shardmill.store import LocalStore, Store, make_folder

# How many keys an object store lists in one answer.
LISTED_AT_ONCE = 1000
_ASKED_AT_ONCE = 16
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class Folder:
    """Gives the other parts keys and listings, of the generation known here and no other."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # "" until a plan is read
        self.generation = ""

    def read_plan(self) -> Plan | None:
        """The plan as it was written; None if there is none."""
        try:
            return Plan.from_json(self.store.get("plan.json"))
        except FileNotFoundError:
            return None

    def key(self, kind: str, shard: int) -> str:
        """The key of a shard's record of this kind."""
        return f"{kind}/{shard:06d}.{self.known_generation()}.json"

    def shards(self, kind: str, start: int = 0, stop: int | None = None) -> Iterator[int]:
        """The shards in [start, stop) that have a record of this kind, in this generation of the run."""
        ending = f".{self.known_generation()}.json"
        head, tail = len(kind) + 1, -len(ending)
        last = f"{kind}/{stop - 1:06d}/" if stop else ""
        for entry in self.store.list(f"{kind}/", f"{kind}/{start:06d}" if start else ""):
            key = entry.key
            if last and key > last:
                return
            if key.endswith(ending) and key[head:tail].isdecimal():
                shard = int(key[head:tail])
                if shard >= start and (stop is None or shard < stop):
                    yield shard

    def ask_each(self, ask: Callable[[_Asked], _Answer], asked: Sequence[_Asked]) -> list[_Answer]:
        """The answers in order; requests to a server run in parallel."""
        if len(asked) <= 2 * _ASKED_AT_ONCE or isinstance(self.store, LocalStore):
            return [ask(one) for one in asked]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            return list(pool.map(ask, asked))

    def log_path(self, name: str) -> Path | None:
        """Where a process on this machine may write its log; None if the run is in an object store."""
        if not isinstance(self.store, LocalStore):
            return None
        path = self.store.path(f"logs/{name}.log")
        if path.is_symlink():
            raise CorruptState(f"{path} is a link.", hint="Remove it: a log is a file of the run folder.")
        make_folder(path.parent)
        return path

    def known_generation(self) -> str:
        """The generation known here; it is read from the plan if no plan was read before."""
        if not self.generation and (plan := self.read_plan()) is not None:
            self.generation = plan.generation
        return self.generation
