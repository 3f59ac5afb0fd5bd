"""Gangs: several workers on one item. The holder of its shard leads; the folder says who belongs to it, and where.

Each worker writes a record of its own that expires. The leader writes who works together: a generation, with its
members in order and the address of the first. It is swapped, so that of two leaders one is refused. Nobody looks up a
name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.process import name_process, process_alive
from shardmill.ledger.record import Gang, GangMember, encode

KIND = "gangs"


class GangRecords:
    """Keeps one record per gang, and one per worker that belongs to it or would like to."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock

    # the workers

    def announce(self, shard: int, worker: str, since: float, lease_s: float) -> None:
        """Say that a worker is there, for as long as it goes on saying so."""
        member = GangMember(worker, name_process(), os.getpid(), since, self._clock() + lease_s)
        self._store.put(self._member_key(shard, worker), encode(member))

    def withdraw(self, shard: int, worker: str) -> None:
        self._store.delete(self._member_key(shard, worker))

    def present(self, shard: int) -> list[str]:
        """The workers that are there, those who came first in front."""
        found = self._folder.ask_each(self._read_member, list(self._list_members(shard)))
        here = [m for m in found if m is not None and m.until > self._clock()]
        living = [m for m in here if process_alive(m.process, m.pid) is not False]
        return [m.worker for m in sorted(living, key=lambda m: (m.since, m.worker))]

    # the gang

    def find(self, shard: int) -> Gang | None:
        """The gang of a shard; None if it has none."""
        return self._read(shard)[0]

    def list_open(self) -> Iterator[Gang]:
        """The gangs that others may join."""
        for shard in list(self._folder.shards(KIND)):
            gang = self.find(shard)
            if gang is not None and not gang.over:
                yield gang

    def call(self, shard: int, row: int, leader: str) -> None:
        """Begin to lead the gang of an item: others are called, and no earlier leader can form one any more."""
        self._swap(shard, lambda old: Gang(shard, row, (old.generation if old else 0) + 1, leader))

    def form(self, shard: int, leader: str, address: str, members: Sequence[str]) -> Gang | None:
        """Let these workers work together, the leader first; None if another leads now."""

        def next_one(old: Gang | None) -> Gang | None:
            if old is None or old.leader != leader:
                return None
            return replace(old, generation=old.generation + 1, address=address, members=tuple(members), over=False)

        return self._swap(shard, next_one)

    def close(self, shard: int, leader: str) -> None:
        """The item is done, set aside or given back: nobody needs to wait for a place any more."""
        self._swap(shard, lambda old: replace(old, over=True) if old and old.leader == leader else None)

    def _swap(self, shard: int, change: Callable[[Gang | None], Gang | None]) -> Gang | None:
        key = self._folder.key(KIND, shard)
        while True:
            old, tag = self._read(shard)
            new = change(old)
            if new is None:
                return None
            swapped = self._store.replace_if_same(key, encode(new), tag) if tag else self._put(key, new)
            if swapped:
                return new

    def _put(self, key: str, new: Gang) -> bool:
        return self._store.put_if_absent(key, encode(new))

    def _read(self, shard: int) -> tuple[Gang | None, str]:
        key = self._folder.key(KIND, shard)
        try:
            data, tag = self._store.get_tagged(key)
        except FileNotFoundError:
            return None, ""
        with contextlib.suppress(CorruptState):
            return read_record(Gang, data, key), tag
        return None, tag

    def _read_member(self, key: str) -> GangMember | None:
        with contextlib.suppress(FileNotFoundError, CorruptState):
            return read_record(GangMember, self._store.get(key), key)
        return None

    def _list_members(self, shard: int) -> Iterator[str]:
        start = f"{KIND}/{shard:06d}.{self._folder.known_generation()}"
        pattern = re.compile(re.escape(start) + r"\.(.+)\.json")
        for entry in self._store.list(f"{KIND}/", start):
            if not entry.key.startswith(f"{start}."):
                return
            if pattern.fullmatch(entry.key):
                yield entry.key

    def _member_key(self, shard: int, worker: str) -> str:
        return f"{KIND}/{shard:06d}.{self._folder.known_generation()}.{worker}.json"
