"""Items that an earlier attempt finished are read once more on the way to the others: they must be the same."""

from __future__ import annotations

from collections.abc import Iterable

from shardmill.core.errors import Cure, WorkerFailed
from shardmill.core.hashing import add_sums, sum_hashes
from shardmill.sinks.base import Staged
from shardmill.sinks.digests import hash_items, hash_kept
from shardmill.sources import ItemBatch


class ReadAgain:
    """The first items of a shard, as they are read now."""

    def __init__(self, shard: int, staged: Staged, keep: Iterable[str]) -> None:
        self._shard, self._staged, self._keep = shard, staged, list(keep)
        self._left = staged.done if staged.done_digest else 0
        self._digests: list[str] = []

    def skip(self, batch: ItemBatch, first: int) -> None:
        """Look at the finished items of a batch that begins at the item `first`; compare them after the last one."""
        rows = min(self._left, len(batch))
        if not rows:
            return
        kept = hash_kept(batch.kept.select(self._keep).slice(0, rows))
        taken = None if batch.taken is None else batch.taken[:rows]
        self._digests.append(sum_hashes(hash_items(batch.texts.slice(0, rows), kept, first, taken)))
        self._left -= rows
        if not self._left and add_sums(self._digests) != self._staged.done_digest:
            error = WorkerFailed(
                f"Shard {self._shard}: its first {self._staged.done} items, which an earlier attempt finished, "
                "are read differently now.",
                hint=self._staged.distrust(),
            )
            error.cure = Cure.HERE
            raise error
