"""Models in a store: fetched once per machine into the user's cache, whole and checked, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from shardmill.core.cache import cache_folder
from shardmill.core.console import Bar
from shardmill.core.errors import ModelError, StoreError
from shardmill.models.fingerprint import digest_folder
from shardmill.store import Entry, Store, open_store

_PIECE_BYTES = 8 << 20
# Hidden, so that it is no part of the model.
_RECORD = ".fetched.json"


def fetch_model(url: str, wanted_of: Callable[[list[str], str], Collection[str]]) -> Path:
    """The folder in the cache with a model's files; what is missing or damaged is fetched.

    `wanted_of` chooses the files that are used, from the names of all of them and the model's name.

    A model that was changed in the store has other tags, and so another folder.
    """
    store = open_store(url)
    name = PurePosixPath(url.rstrip("/")).name
    stored = {entry.key: entry for entry in store.list("")}
    entries = [stored[key] for key in sorted(set(wanted_of(list(stored), name)))]
    if not any(e.key in ("config.json", "modules.json", "adapter_config.json") for e in entries):
        raise ModelError(f"{url} holds no model: it has no config.json.", hint="Pass the URL of a model folder.")
    version = hashlib.sha256(repr((url, [(e.key, e.size, e.tag) for e in entries])).encode()).hexdigest()[:16]
    folder = cache_folder() / "models" / version / name
    keep_folder(folder, lambda partial: _fetch(store, entries, partial), store.url)
    return folder


def keep_folder(folder: Path, write: Callable[[Path], None], origin: str) -> None:
    """Have `write` make a model's folder in the cache, unless it is there and whole."""
    if not _is_whole(folder):
        with _alone(folder.parent):
            if not _is_whole(folder):
                _make(folder, write, origin)


def _is_whole(folder: Path) -> bool:
    """Whether a folder is as it was fetched, by its files' digests."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        sizes = {key: (folder / key).stat().st_size for key in record["sizes"]}
        return bool(sizes == record["sizes"] and digest_folder(folder) == record["digests"])
    except (OSError, LookupError, TypeError, ValueError):
        return False


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of this machine fetch at a time. Without locks both fetch, and one result is kept."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "ab")  # noqa: SIM115
    except OSError as error:
        raise StoreError(
            f"{folder}: the model cannot be kept ({error.strerror}).", hint="Set XDG_CACHE_HOME to another folder."
        ) from error
    with lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, write: Callable[[Path], None], origin: str) -> None:
    """Write into a folder of another name, which takes its name once all is on disk."""
    for left in (p for p in folder.parent.iterdir() if p.name.endswith(".partial")):
        shutil.rmtree(left, ignore_errors=True)
    partial = folder.parent / f"{uuid.uuid4().hex}.partial"
    try:
        write(partial)
        sizes = {p.relative_to(partial).as_posix(): p.stat().st_size for p in partial.rglob("*") if p.is_file()}
        record = {"sizes": sizes, "digests": digest_folder(partial), "url": origin}
        (partial / _RECORD).write_text(json.dumps(record))
        if folder.exists():
            shutil.rmtree(folder)
        try:
            os.rename(partial, folder)
        except OSError:
            # Another process, which this one could not lock out, was first.
            if not _is_whole(folder):
                raise
    except OSError as error:
        raise StoreError(f"{folder}: the model cannot be written ({error.strerror}).") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch(store: Store, entries: Sequence[Entry], into: Path) -> None:
    total, done = sum(entry.size for entry in entries), 0
    with Bar(f"fetching {store.url}") as bar:
        for entry in entries:
            for count in _copy(store, entry, into):
                done += count
                bar.count(done, total, "bytes")


def _copy(store: Store, entry: Entry, into: Path) -> Iterator[int]:
    """Copy one file by ranges of one version; yields the bytes of each."""
    if any(part in ("", ".", "..") for part in entry.key.split("/")):
        raise ModelError(f"{store.url}: the name {entry.key!r} is not that of a model's file.")
    path = into / entry.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, entry.size, _PIECE_BYTES):
            piece = store.get_range(entry.key, start, min(entry.size, start + _PIECE_BYTES), entry.tag)
            file.write(piece)
            yield len(piece)
        file.flush()
        os.fsync(file.fileno())
    if (size := path.stat().st_size) != entry.size:
        raise StoreError(f"{store.url}/{entry.key}: {size:,} of {entry.size:,} bytes came.")
