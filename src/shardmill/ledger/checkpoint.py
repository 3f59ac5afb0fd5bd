"""Checkpoints of items that are worked on for hours: files, and one small record per item that names the whole ones.

An attempt first takes the record over, by compare-and-swap. From then on no earlier attempt can change it, however late
it wakes up. Files are written under names of their own, then the record is swapped. The checkpoint before is kept too,
for the case that a file of the last one is damaged; older ones are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from shardmill.core.errors import CorruptState, TaskError
from shardmill.core.records import read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import CheckpointRecord, encode
from shardmill.store import Store, replacing

KIND = "checkpoints"
_BLOCK_BYTES = 4 << 20
# None of these can run code when it is read.
_SUFFIXES = (".safetensors", ".json", ".jsonl", ".txt", ".md")
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_DAMAGED = "Delete it and resume: its item starts over."


class StoredCheckpoint:
    """A checkpoint in the run folder."""

    def __init__(self, store: Store, record: CheckpointRecord) -> None:
        self._store, self._record = store, record

    @property
    def step(self) -> int:
        return self._record.step

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._record.files)

    def read(self, name: str) -> bytes:
        """The content of one file."""
        key, _, digest = self._record.files[name]
        data = self._store.get(key)
        self._check(key, hashlib.sha256(data).hexdigest(), digest)
        return data

    def fetch(self, folder: Path) -> None:
        """Write all files into a folder."""
        for name, (key, _, digest) in self._record.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._store.reader(key) as data, open(target, "wb") as file:
                self._check(key, _copy(data, file)[1], digest)

    def has_sizes(self) -> bool:
        """Whether all files are there, each as long as it was written."""
        heads = ((self._store.head(key), size) for key, size, _ in self._record.files.values())
        return bool(self.names) and all(seen is not None and seen.size == size for seen, size in heads)

    def has_digests(self) -> bool:
        """Whether all files are as they were written: reads them."""
        for key, _, digest in self._record.files.values():
            with self._store.reader(key) as data:
                if _copy(data)[1] != digest:
                    return False
        return True

    def _check(self, key: str, seen: str, digest: str) -> None:
        if seen != digest:
            raise CorruptState(f"{self._store.url}/{key} is damaged: its digest is another.", hint=_DAMAGED)


class CheckpointRecords:
    """Keeps one record per item, and the files that it names."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock

    def take_over(self, shard: int, row: int, plan: str, attempt: str) -> ItemCheckpoints:
        """The checkpoints of an item, for one attempt: no earlier attempt can add any from now on.

        What dead attempts left unfinished is deleted.
        """
        start = self._start(shard, row)
        key = f"{start}.json"
        while True:
            found, tag = read_checkpoint(self._store, key)
            if found is not None and found.attempt == attempt:
                break
            if tag and (found is None or found.plan != plan):
                # A damaged record names nothing.
                found = None
            new = replace(found, attempt=attempt) if found else CheckpointRecord(shard, row, plan, attempt)
            if tag:
                self._store.replace_if_same(key, encode(new), tag)
            else:
                self._store.put_if_absent(key, encode(new))
        named = {key, *found.keys}
        self._store.delete_all([left for left in self._list(f"{start}.") if left not in named])
        return ItemCheckpoints(self._store, start, found, tag, self._clock)

    def find(self, shard: int, row: int = 0) -> StoredCheckpoint | None:
        """The last checkpoint of an item, for who does not work on it; None if there is none."""
        record = self._read(shard, row)
        return StoredCheckpoint(self._store, record) if record is not None and record.files else None

    def find_whole(self, shard: int, row: int = 0) -> StoredCheckpoint | None:
        """The last whole checkpoint of an item, for who works on it beside its holder."""
        record = self._read(shard, row)
        found = _choose_whole(self._store, record) if record is not None else None
        return StoredCheckpoint(self._store, found) if found is not None else None

    def delete(self, shard: int) -> None:
        """Delete the checkpoints of a shard that is done: the records first, as they name the files."""
        keys = list(self._list(f"{KIND}/{shard:06d}.{self._folder.known_generation()}."))
        self._store.delete_all(sorted(keys, key=lambda key: not key.endswith(".json")))

    def _read(self, shard: int, row: int) -> CheckpointRecord | None:
        return read_checkpoint(self._store, f"{self._start(shard, row)}.json")[0]

    def _list(self, start: str) -> Iterator[str]:
        for entry in self._store.list(f"{KIND}/", start):
            if not entry.key.startswith(start):
                return
            yield entry.key

    def _start(self, shard: int, row: int) -> str:
        return f"{KIND}/{shard:06d}.{self._folder.known_generation()}.{row:06d}"


class ItemCheckpoints:
    """The checkpoints of one item, for the attempt that took them over."""

    def __init__(
        self, store: Store, start: str, record: CheckpointRecord, tag: str, clock: Callable[[], float]
    ) -> None:
        self._store, self._start, self._record, self._tag, self._clock = store, start, record, tag, clock
        self._whole: CheckpointRecord | None = None

    @property
    def step(self) -> int | None:
        """The step of the last checkpoint; None if there is none."""
        return self._record.step if self._record.files else None

    @property
    def newest(self) -> StoredCheckpoint | None:
        """The last whole checkpoint; None if there is none."""
        self._whole = self._whole or _choose_whole(self._store, self._record)
        return StoredCheckpoint(self._store, self._whole) if self._whole is not None else None

    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> bool:
        """Add a checkpoint; False if a later attempt has taken the item over."""
        check_names(files)
        key, before, mark = f"{self._start}.json", self._whole or self._record, uuid.uuid4().hex[:8]
        staged = {
            name: self._stage(f"{self._start}.{mark}.{i:04d}", content)
            for i, (name, content) in enumerate(files.items())
        }
        new = replace(before, step=step, at=self._clock(), files=staged)
        new = replace(new, before_step=before.step, before_files=before.files)
        if not self._store.replace_if_same(key, encode(new), self._tag):
            self._delete_unnamed(key, staged)
            return False
        unnamed = self._record.keys - new.keys
        self._record, self._whole = new, None
        data, self._tag = self._store.get_tagged(key)
        self._store.delete_all(sorted(unnamed))
        return data == encode(new)

    def _delete_unnamed(self, key: str, staged: Mapping[str, tuple[str, int, str]]) -> None:
        """Delete files that came too late; the swap may have arrived though its answer did not."""
        found, _ = read_checkpoint(self._store, key)
        named = found.keys if found is not None else set()
        self._store.delete_all([stored for stored, _, _ in staged.values() if stored not in named])

    def _stage(self, key: str, content: Path | bytes) -> tuple[str, int, str]:
        if isinstance(content, bytes):
            self._store.put(key, content)
            return key, len(content), hashlib.sha256(content).hexdigest()
        with open(content, "rb") as data, replacing(key, self._store) as file:
            size, digest = _copy(data, file)
        return key, size, digest


def read_checkpoint(store: Store, key: str) -> tuple[CheckpointRecord | None, str]:
    """A record and its tag; None if it is damaged or missing, and no tag if it is missing."""
    try:
        data, tag = store.get_tagged(key)
    except FileNotFoundError:
        return None, ""
    with contextlib.suppress(CorruptState):
        record = read_record(CheckpointRecord, data, key)
        names = [*record.files, *record.before_files]
        if all(map(_NAME.fullmatch, names)) and all(stored.startswith(f"{KIND}/") for stored in record.keys):
            return record, tag
    return None, tag


def _choose_whole(store: Store, record: CheckpointRecord) -> CheckpointRecord | None:
    """The last checkpoint or the one before it, whichever is whole; None if files of both are gone.

    The one before is not read here: if it is damaged too, whoever reads it is told.
    """
    there = [each for each in (record, record.before) if StoredCheckpoint(store, each).has_sizes()]
    if len(there) == 2 and not StoredCheckpoint(store, record).has_digests():
        return there[1]
    return there[0] if there else None


def check_names(files: Mapping[str, Any]) -> None:
    """Refuse a checkpoint without files, and files that could run code when they are read."""
    for name in files:
        if not _NAME.fullmatch(name) or not name.endswith(_SUFFIXES):
            raise TaskError(
                f"A checkpoint cannot have a file {name!r}.", hint=f"Its files end in {', '.join(_SUFFIXES)}."
            )
    if not files:
        raise TaskError("A checkpoint needs a file.", hint="Call `report` to say how far the item is.")


def _copy(data: IO[bytes], file: IO[bytes] | None = None) -> tuple[int, str]:
    """Copy a stream, or only read it; returns its size and digest."""
    size, digest = 0, hashlib.sha256()
    while block := data.read(_BLOCK_BYTES):
        if file is not None:
            file.write(block)
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()
