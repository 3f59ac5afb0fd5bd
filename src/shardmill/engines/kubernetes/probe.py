"""What a pod of a check does: it looks at the store with the pod's own rights."""

from __future__ import annotations

import uuid

from shardmill.core.errors import StoreError
from shardmill.store import open_store


def probe_store(place: str) -> None:
    """Write an object, read it back and delete it; raises what the store says."""
    store, key, content = open_store(place), f"check-{uuid.uuid4().hex}", uuid.uuid4().bytes
    store.put(key, content)
    try:
        if store.get(key) != content:
            raise StoreError(f"{place}: an object that was written reads differently.")
    finally:
        store.delete_all([key])
