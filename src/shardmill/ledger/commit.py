"""Which shards are done. A commit is final, so one that was seen is not looked up again, except in a branch."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

from shardmill.core.errors import CorruptState, NotComplete
from shardmill.core.records import read_record
from shardmill.ledger.folder import LISTED_AT_ONCE, Folder
from shardmill.ledger.record import Commit, encode
from shardmill.ledger.state import started_over
from shardmill.plan import Plan
from shardmill.store import LocalStore
from shardmill.store.pruned import PRUNED, pruned

# What a byte of a shard says: nothing was seen of it, a segment says that it is done, its commit was seen.
_UNSEEN, _BELIEVED, _SEEN = 0, 1, 2


class Commits:
    """Keeps one commit per shard, the first, and remembers in one byte per shard what was seen done."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._store = folder, folder.store
        self._by_shard: dict[int, Commit] = {}
        self._seen_done = bytearray()

    def reset(self) -> None:
        """Forget what was seen."""
        self._by_shard.clear()
        self._seen_done.clear()

    def key(self, shard: int) -> str:
        return self._folder.key("commits", shard)

    def add(self, record: Commit) -> bool:
        """Add a commit; False if another attempt was first, which is not an error."""
        return self._store.put_if_absent(self.key(record.shard), encode(record))

    def shards(self) -> set[int]:
        """Which shards are committed."""
        return set(self._folder.shards("commits"))

    def read(self) -> dict[int, Commit]:
        """All commits by shard; only those not seen before are fetched.

        If one is gone before it is read, the run is another. It is not left out: a sweep would delete its part.
        """
        new = sorted(self.shards() - self._by_shard.keys())
        try:
            found = self._folder.ask_each(self.get, new)
        except FileNotFoundError:
            raise started_over(self._store.url) from None
        self._by_shard.update(zip(new, found, strict=True))
        return self._by_shard

    def get(self, shard: int) -> Commit:
        """The commit of a shard that is done."""
        place = f"{self._store.url}/{self.key(shard)}"
        hint = "Delete it and resume: its shard is run again."
        commit = read_record(Commit, self._store.get(self.key(shard)), place, hint)
        if commit.shard != shard:
            raise CorruptState(f"{place} is the commit of shard {commit.shard}.", hint=hint)
        return commit

    def read_complete(self, plan: Plan) -> list[Commit]:
        """One commit per shard, in source order; NotComplete while some are missing."""
        commits = self.read()
        missing = [s.index for s in plan.shards if s.index not in commits]
        if missing and self._store.head(PRUNED) is not None:
            raise pruned(self._store.url)
        if missing:
            raise NotComplete(
                f"{self._store.url}: {len(missing)} of {len(plan.shards)} shards are not done.",
                hint="Run the same command again: it resumes.",
            )
        return [commits[s.index] for s in plan.shards]

    def delete(self, shards: Collection[int]) -> None:
        """Delete the commits and parts of these shards from a branch: they were fetched, or are not wanted."""
        for shard in shards:
            with contextlib.suppress(FileNotFoundError):
                commit = self.get(shard)
                for key in filter(None, (commit.part, commit.errors_file)):
                    self._store.delete(key)
            self._store.delete(self.key(shard))
            self._by_shard.pop(shard, None)
        self.look_again(shards)

    # what was seen done

    def is_done(self, shard: int) -> bool:
        """Whether a shard is committed; asks the store unless the shard was seen done."""
        self._make_room(shard + 1)
        if self._seen_done[shard] == _SEEN:
            return True
        if self._store.head(self.key(shard)) is None:
            return False
        self._seen_done[shard] = _SEEN
        return True

    def believe(self, shards: Iterable[int]) -> None:
        """Take these shards for done, as a segment says; nothing is searched for there until all others are done."""
        for shard in shards:
            self._make_room(shard + 1)
            self._seen_done[shard] = self._seen_done[shard] or _BELIEVED

    def look_again(self, shards: Iterable[int]) -> None:
        """Forget that these shards were seen done: in a branch, home deletes the commits that it has or refuses."""
        for shard in shards:
            self._make_room(shard + 1)
            self._seen_done[shard] = _UNSEEN

    def saw_done(self, shard: int) -> bool:
        """Whether a shard was seen done, or is believed to be, without asking the store."""
        self._make_room(shard + 1)
        return bool(self._seen_done[shard])

    def count_seen(self) -> int:
        """How many shards were seen done, without asking the store."""
        return self._seen_done.count(1)

    def is_complete(self, shards: int) -> bool:
        """Whether all shards are committed; asks the store only about shards not seen done, the believed ones last."""
        self._make_room(shards)
        for doubt in (_UNSEEN, _BELIEVED):
            while (at := self._seen_done.find(doubt, 0, shards)) >= 0:
                stop = min(shards, (at // LISTED_AT_ONCE + 1) * LISTED_AT_ONCE)
                if doubt == _BELIEVED:
                    self.look_again(range(at, stop))
                self._look(at, stop)
                if self._find_gap(at, stop) >= 0:
                    return False
        return True

    def list_left(self, shards: int) -> list[int]:
        """All shards that are not done; windows without a gap are not listed. A disk lists all its files at once."""
        step = max(1, shards) if isinstance(self._store, LocalStore) else LISTED_AT_ONCE
        starts = range(0, shards, step)
        return [gap for start in starts for gap in self.look_for_gaps(start, min(shards, start + step))]

    def look_for_gaps(self, start: int, stop: int) -> list[int]:
        """The shards in [start, stop) that are not done; asks the store only about shards not seen done."""
        first = self._find_gap(start, stop)
        if first < 0:
            return []
        self._look(first, stop)
        return list(self.gaps(first, stop))

    def gaps(self, start: int, stop: int) -> Iterator[int]:
        """The shards in [start, stop) that were not seen done, without asking the store."""
        at = self._find_gap(start, stop)
        while at >= 0:
            yield at
            at = self._find_gap(at + 1, stop)

    def _find_gap(self, start: int, stop: int) -> int:
        self._make_room(stop)
        return self._seen_done.find(_UNSEEN, start, stop)

    def _look(self, start: int, stop: int) -> None:
        for shard in self._folder.shards("commits", start, stop):
            self._seen_done[shard] = _SEEN

    def _make_room(self, shards: int) -> None:
        if shards > len(self._seen_done):
            self._seen_done.extend(bytes(shards - len(self._seen_done)))
