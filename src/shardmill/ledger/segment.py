"""Roll-ups of many small records into a few objects. They save requests and prove nothing.

A segment has what a status or a limit needs of a thousand committed shards, so that a process that joins late reads a
segment instead of a thousand commits. Segments are numbered in the order they were written. Each lists its shards, in
no range: workers begin everywhere in a plan, so that ranges of it are complete only at the end of a run.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import check_record, read_object
from shardmill.ledger.branch import Branch
from shardmill.ledger.commit import Commits
from shardmill.ledger.folder import LISTED_AT_ONCE, Folder
from shardmill.ledger.record import DoneShard, encode

SEALED_AT_ONCE = 1000


class Series:
    """Objects of one kind, numbered from 0 and never changed. Each process reads each of them once."""

    def __init__(self, folder: Folder, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._seen: set[int] = set()
        self._all_seen_before = 0

    def reset(self) -> None:
        self._seen.clear()
        self._all_seen_before = 0

    def read_new(self) -> list[dict[str, Any]]:
        """The objects that were not read yet, also one that an earlier listing missed; nonsense is left out."""
        new = [n for n in self._folder.shards(self._kind, self._all_seen_before) if n not in self._seen]
        found = self._folder.ask_each(self._read, new)
        self._see(*new)
        return [content for content in found if content is not None]

    def read_last(self) -> dict[str, Any]:
        """The newest object; empty if there is none."""
        last = max(self._folder.shards(self._kind), default=None)
        return (self._read(last) if last is not None else None) or {}

    def add(self, content: dict[str, Any]) -> bool:
        """Write the next object; False if another process wrote one meanwhile, which must be read first."""
        number = max(self._seen, default=-1) + 1
        if not self._folder.store.put_if_absent(self._folder.key(self._kind, number), encode(content)):
            return False
        self._see(number)
        return True

    def _see(self, *numbers: int) -> None:
        self._seen.update(numbers)
        while self._all_seen_before in self._seen:
            self._all_seen_before += 1

    def _read(self, number: int) -> dict[str, Any] | None:
        key = self._folder.key(self._kind, number)
        with contextlib.suppress(FileNotFoundError, CorruptState):
            return read_object(self._folder.store.get(key), key)
        return None


class Segments:
    """Keeps the progress of committed shards: from segments, and from the commits that are in none yet."""

    def __init__(self, folder: Folder, commits: Commits, branch: Branch) -> None:
        self._folder, self._commits, self._branch = folder, commits, branch
        self._series = Series(folder, "segments")
        self._known: dict[int, DoneShard] = {}
        self._sealed: set[int] = set()

    def reset(self) -> None:
        """Forget what was read."""
        self._series.reset()
        self._known.clear()
        self._sealed.clear()

    def read(self, shards: int) -> Mapping[int, DoneShard]:
        """The progress of each committed shard of a plan with N `shards`.

        That all shards are done is never believed from segments: it is looked up.
        """
        for segment in self._series.read_new():
            self._take_in(segment, shards)
        left = set(self._commits.list_left(shards))
        if not left and not self._commits.is_complete(shards):
            left = set(self._commits.gaps(0, shards))
        for shard in self._known.keys() & left:
            del self._known[shard]
        new = sorted(set(range(shards)) - left - self._known.keys())
        for progress in filter(None, self._folder.ask_each(self._read_commit, new)):
            self._known[progress.shard] = progress
        return self._known

    def seal(self) -> None:
        """Write what was read into segments, of a thousand shards each; the rest waits. Commits of a branch move on."""
        if len(self._known) < len(self._sealed) + SEALED_AT_ONCE or self._branch.assignment() is not None:
            return
        unsealed = sorted(self._known.keys() - self._sealed)
        for first in range(0, len(unsealed) - SEALED_AT_ONCE + 1, SEALED_AT_ONCE):
            some = unsealed[first : first + SEALED_AT_ONCE]
            if not self._series.add(self._to_segment(some)):
                return
            self._sealed.update(some)

    def believe_full_windows(self, shards: int) -> None:
        """Let a worker that joins skip the windows that are sealed whole: the newest segment names them."""
        full = self._series.read_last().get("full") if shards >= SEALED_AT_ONCE else None
        if isinstance(full, list):
            for start in range(0, shards, LISTED_AT_ONCE):
                if start // LISTED_AT_ONCE in full:
                    self._commits.believe(range(start, min(shards, start + LISTED_AT_ONCE)))

    def is_turn(self, shards: int) -> bool:
        """Whether a worker that has just committed seals too: one in a thousand, so that together they keep up."""
        return shards >= SEALED_AT_ONCE and random.random() * SEALED_AT_ONCE < 1

    def catch_up(self, shards: int) -> None:
        """Seal the commits that are in no segment, and remember nothing of them."""
        own = Segments(self._folder, self._commits, self._branch)
        own.read(shards)
        own.seal()

    def _to_segment(self, some: list[int]) -> dict[str, Any]:
        windows = Counter(shard // LISTED_AT_ONCE for shard in (*self._sealed, *some))
        return {
            "generation": self._folder.generation,
            "full": sorted(window for window, count in windows.items() if count == LISTED_AT_ONCE),
            "fields": list(DoneShard.__slots__),
            "shards": [[getattr(self._known[shard], name) for name in DoneShard.__slots__] for shard in some],
        }

    def _take_in(self, segment: dict[str, Any], shards: int) -> None:
        with contextlib.suppress(KeyError, TypeError, CorruptState):
            rows = [dict(zip(segment["fields"], values, strict=False)) for values in segment["shards"]]
            found = [check_record(DoneShard, row, "a segment") for row in rows]
            found = [one for one in found if 0 <= one.shard < shards]
            self._known.update((one.shard, one) for one in found)
            self._sealed.update(one.shard for one in found)
            self._commits.believe(one.shard for one in found)

    def _read_commit(self, shard: int) -> DoneShard | None:
        """None if the commit is gone: a branch's is, once it was fetched."""
        with contextlib.suppress(FileNotFoundError):
            return DoneShard.of(self._commits.get(shard))
        return None
