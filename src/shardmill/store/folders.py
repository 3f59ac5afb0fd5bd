"""Folders of files that a user names, complete or not there."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from shardmill.core.errors import UsageError
from shardmill.store import Store, open_store
from shardmill.store.local import LocalStore, explain_os_error, make_folder, sync_folder, try_lock

# In a folder of objects that is being written, or whose writer was killed.
PARTIAL = "_PARTIAL"


@contextlib.contextmanager
def filling(place: str) -> Iterator[Store]:
    """Write the files of a new folder. A folder that has something in it is refused.

    On a disk, the folder takes its name when all are written, and what killed processes left of it is removed. In other
    stores, it has the object `_PARTIAL` until then.
    """
    store = open_store(place)
    if isinstance(store, LocalStore):
        with _filling_on_disk(store.root, place) as staged:
            yield staged
        return
    if next(iter(store.list()), None) is not None or not store.put_if_absent(PARTIAL, uuid.uuid4().hex.encode()):
        begun = store.head(PARTIAL) is not None
        raise _refuse(place, f"has files of a write that was not completed: it has {PARTIAL}" if begun else "has files")
    yield store
    store.delete(PARTIAL)


@contextlib.contextmanager
def _filling_on_disk(folder: Path, place: str) -> Iterator[Store]:
    if folder.is_file():
        raise _refuse(place, "is a file")
    if folder.is_dir() and any(folder.iterdir()):
        raise _refuse(place, "has files")
    _remove_partials(folder)
    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.partial"
    make_folder(staged)
    handle = os.open(staged, os.O_RDONLY)
    try:
        try_lock(handle)
        yield LocalStore(staged)
        try:
            os.rename(staged, folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise explain_os_error(error, place) from error
    finally:
        os.close(handle)
        shutil.rmtree(staged, ignore_errors=True)


def _remove_partials(folder: Path) -> None:
    """Remove what killed processes left: folders that nobody has locked."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"):
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if try_lock(handle):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def _refuse(place: str, why: str) -> UsageError:
    return UsageError(f"{place} {why}.", hint="Choose another place with --out, or delete it.")
