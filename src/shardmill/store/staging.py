"""Objects whose key is known only when they are complete, such as those that are named by a digest of their content."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from shardmill.store.base import Store
from shardmill.store.local import LocalStore

_COPIED_BYTES = 4 << 20


@dataclass(slots=True)
class StagedObject:
    """A file to write; `key` is set when all is written."""

    file: IO[bytes]
    key: str = ""


@contextlib.contextmanager
def staging(store: Store, folder: str) -> Iterator[StagedObject]:
    """Write an object of a folder, and name it at the end; one of that name that exists stays as it is.

    On a disk it is written in the folder itself and renamed. For other stores it waits in a temporary file. An error
    leaves nothing.
    """
    if isinstance(store, LocalStore):
        with _renaming(store, folder) as staged:
            yield staged
        return
    with io.BytesIO() if store.url.startswith("memory:") else tempfile.TemporaryFile() as file:
        yield (staged := StagedObject(file))
        if store.head(staged.key) is None:
            file.seek(0)
            upload = store.writer(staged.key)
            shutil.copyfileobj(file, upload, _COPIED_BYTES)
            upload.close()


@contextlib.contextmanager
def _renaming(store: LocalStore, folder: str) -> Iterator[StagedObject]:
    name, is_new = f"{folder}staged", not store.root.exists()
    store.remove_partials(name)
    partial, file = store.partial(name)
    try:
        yield (staged := StagedObject(file))
        file.close()
        if store.head(staged.key) is None:
            store.rename(partial, staged.key)
    finally:
        file.close()
        store.delete(partial)
        # They are empty if nothing was named.
        with contextlib.suppress(OSError):
            os.rmdir(store.path(folder))
            if is_new:
                os.rmdir(store.root)
