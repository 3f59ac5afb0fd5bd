"""Where a search keeps what it has made of a result: in the run folder, or in the cache for a remote run."""

from __future__ import annotations

from pathlib import Path

from shardmill.core.cache import cache_folder
from shardmill.ledger import Ledger
from shardmill.store import LocalStore


def place_beside(ledger: Ledger, name: str, scratch: Path | None = None) -> Path:
    """The place of a file or folder. If `scratch` is given, what is not there yet belongs into that folder."""
    folder = ledger.store.root / "final" if isinstance(ledger.store, LocalStore) else cache_folder()
    path = folder / name
    return path if scratch is None or path.exists() else scratch / name
