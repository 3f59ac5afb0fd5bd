"""The mark of a run folder whose parts were deleted, since there are newer editions."""

from __future__ import annotations

from shardmill.core.errors import EditionPruned
from shardmill.store import locate

PRUNED = "pruned.json"


def is_pruned(run: str) -> bool:
    store, key = locate(f"{run}/{PRUNED}")
    return store.head(key) is not None


def pruned(run: str) -> EditionPruned:
    return EditionPruned(
        f"{run} is an edition that was pruned.", hint="Run the same command again: it reads the newest edition."
    )
