"""Known bugs, planted to show that the simulation finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from shardmill.ledger import Ledger
from shardmill.ledger.commit import Commits
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode
from shardmill.sinks.parquet import StagedPart
from shardmill.store import LocalStore, ObjectStore
from shardmill.worker.writer import Writer


def commit_by_put(self: Commits, record: Any) -> bool:
    """The last commit wins instead of the first."""
    self._store.put(self.key(record.shard), encode(record))
    return True


def lost_answer(self: ObjectStore, key: str, data: bytes) -> bool:
    """A refused write is another's, though it may be one's own, sent twice."""
    return False


def abandon_committing(self: StagedPart) -> None:
    """A part is deleted although a commit that names it may exist."""
    self._ledger.store.delete(self._key)


def one_generation(self: Folder, kind: str, shard: int) -> str:
    """A worker of a deleted run commits into the one that follows."""
    return f"{kind}/{shard:06d}.x.json"


def one_generation_shards(self: Folder, kind: str, start: int = 0, stop: int | None = None) -> Iterator[int]:
    for entry in self.store.list(f"{kind}/"):
        yield int(entry.key[len(kind) + 1 :].partition(".")[0])


def commit_before_seal(seal: Callable[..., Any]) -> Callable[..., Any]:
    raise NotImplementedError


MUTATIONS: dict[str, list[tuple[Any, str, Any]]] = {"": []}
MUTATIONS |= {
    "commit-by-put": [(Commits, "add", commit_by_put)],
    "lost-answer": [(ObjectStore, "_holds", lost_answer)],
    "abandon-committing": [(StagedPart, "abandon", abandon_committing)],
    "one-generation": [(Folder, "key", one_generation), (Folder, "shards", one_generation_shards)],
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug; none if the name is empty."""
    with contextlib.ExitStack() as stack:
        for owner, attribute, wrong in MUTATIONS[name]:
            stack.enter_context(patch.object(owner, attribute, wrong))
        yield
