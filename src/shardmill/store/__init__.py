"""Objects by key: on a local disk (durable), in memory, in S3, GCS or Azure.

Design: docs/design/stores.md
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardmill.core.errors import UsageError
from shardmill.store.base import Entry, Store, is_exact
from shardmill.store.clients import SCHEMES
from shardmill.store.local import LocalStore, make_folder
from shardmill.store.rangefile import RangeFile, ReadRange
from shardmill.store.remote import ObjectStore, memory_store, object_store

__all__ = [
    "Entry",
    "LocalStore",
    "ObjectStore",
    "RangeFile",
    "ReadRange",
    "Store",
    "is_exact",
    "is_url",
    "list_folders",
    "locate",
    "make_folder",
    "open_store",
    "replacing",
]

_SCHEME = re.compile(r"^([a-z][a-z0-9+]*)://")


def is_url(place: str) -> bool:
    return bool(_SCHEME.match(place))


def open_store(place: str | os.PathLike[str]) -> Store:
    """Open the folder at a path or URL.

    >>> store = open_store("memory://example")
    >>> store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2"), store.get("a")
    (True, False, b'1')
    """
    place = os.fspath(place)
    match = _SCHEME.match(place)
    scheme = match.group(1) if match else "file"
    if scheme == "file":
        return LocalStore(Path(place.removeprefix("file://")))
    if scheme == "memory":
        return memory_store(place)
    if scheme in SCHEMES:
        return object_store(place)
    raise UsageError(
        f"{place}: {scheme}:// is not supported.",
        hint="Use a path, file://, s3://, gs://, az://, hf://, https:// or memory://.",
    )


def list_folders(place: str | os.PathLike[str]) -> list[str]:
    """The places of the folders in a folder, one level deep. FileNotFoundError if a path does not exist."""
    store = open_store(place)
    assert isinstance(store, LocalStore | ObjectStore)
    return [f"{store.url}/{name}" for name in store.folders()]


def locate(place: str | os.PathLike[str]) -> tuple[Store, str]:
    """The store that holds one object, and the object's key in it."""
    place = os.fspath(place)
    if not is_url(place) or place.startswith("file://"):
        path = Path(place.removeprefix("file://"))
        return LocalStore(path.parent), path.name
    parent, _, name = place.rpartition("/")
    return open_store(parent), name


@contextmanager
def replacing(place: str | os.PathLike[str], root: Store | None = None) -> Iterator[IO[bytes]]:
    """Write a file that takes its name only when it is complete; an existing file of that name stays until then.

    `place` is a key of `root`, if `root` is given. Otherwise it is a file that a user names, and what killed processes
    left of that file is removed.
    """
    store, key = (root, os.fspath(place)) if root is not None else locate(place)
    if not isinstance(store, LocalStore):
        # An upload that is never closed never creates its object.
        file = store.writer(key)
        yield file
        file.close()
        return
    if root is None:
        store.remove_partials(key)
    partial, file = store.partial(key)
    named = False
    try:
        yield file
        file.close()
        store.rename(partial, key)
        named = True
    finally:
        file.close()
        if not named:
            store.delete(partial)
