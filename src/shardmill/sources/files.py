"""Reads the raw bytes of one source file, and checks that the file has not changed since planning."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Sequence

from shardmill.core.errors import SourceError, StaleResume, StoreChanged, StoreError, is_passing
from shardmill.sources.base import SourceFile
from shardmill.store import Entry, RangeFile, ReadRange, is_exact, is_url, locate

BLOCK_BYTES = 4 << 20
WINDOW_BYTES = 64 << 10
SEEK_BUFFER_BYTES = 1 << 20
# The tag of a file that may grow: of what it was when it was planned, both edges are as they were.
GROWS = "grows"


def file_name(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2]


@contextlib.contextmanager
def open_packed(file: SourceFile) -> Iterator[ReadRange]:
    """Yield a function that reads [start, stop) of the file without decompressing; a local file is opened once."""
    if is_url(file.place):
        store, key = locate(file.place)

        def remote(start: int, stop: int) -> bytes:
            try:
                return _whole(file, store.get_range(key, start, stop, file.tag), start, stop)
            except FileNotFoundError:
                raise _gone(file.place) from None
            except StoreChanged as error:
                raise changed(file, "it was overwritten") from error

        yield remote
        return
    with readable(file.place), open(file.place, "rb", buffering=0) as handle:

        def local(start: int, stop: int) -> bytes:
            return _whole(file, _pread(handle.fileno(), start, stop), start, stop)

        yield local


@contextlib.contextmanager
def seekable(file: SourceFile) -> Iterator[str | io.BufferedReader]:
    """What pyarrow opens: the path of a local file, or a buffered file over the ranges of a remote one."""
    if not is_url(file.place):
        yield file.place
        return
    with open_packed(file) as read:
        yield io.BufferedReader(RangeFile(read, file.size_bytes), buffer_size=SEEK_BUFFER_BYTES)


def _pread(handle: int, start: int, stop: int) -> bytes:
    pieces: list[bytes] = []
    while start < stop and (piece := os.pread(handle, stop - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _whole(file: SourceFile, data: bytes, start: int, stop: int) -> bytes:
    if len(data) != stop - start:
        raise changed(file, f"it ends at byte {start + len(data)}")
    return data


def check_unchanged(file: SourceFile) -> None:
    """Refuse a file whose size or tag changed since planning. A copy that was verified when made has no tag."""
    found = stat_file(file.place)
    if found is None:
        raise _gone(file.place)
    if file.tag == GROWS:
        _check_beginning(file, found.size)
        return
    if found.size != file.size_bytes:
        raise changed(file, f"size {file.size_bytes} -> {found.size}")
    if file.tag and found.tag.strip('"') != file.tag.strip('"'):
        raise changed(file, f"tag {file.tag} -> {found.tag}")


def _check_beginning(file: SourceFile, size: int) -> None:
    if size < file.size_bytes:
        raise changed(file, f"size {file.size_bytes} -> {size}")
    with open_packed(file) as read:
        if digest_edges(read, file.size_bytes) != file.edges:
            raise changed(file, "it was followed, and its beginning was written again")


def digest_edges(read: ReadRange, size: int) -> str:
    """A digest of both edges of a file, up to a size."""
    digest = hashlib.sha256(read(0, min(WINDOW_BYTES, size)))
    digest.update(read(max(size - WINDOW_BYTES, 0), size))
    return digest.hexdigest()[:16]


def check_read(file: SourceFile) -> None:
    """Refuse a file that changed while it was read; with an exact tag, the store already checked every range."""
    if not is_url(file.place) or not is_exact(file.tag):
        check_unchanged(file)


def stat_file(place: str) -> Entry | None:
    with readable(place):
        store, key = locate(place)
        return store.head(key)


def read_object(place: str) -> bytes:
    """The whole of a small file."""
    with readable(place):
        store, key = locate(place)
        return store.get(key)


@contextlib.contextmanager
def readable(place: str) -> Iterator[None]:
    """Turn the errors of reading a local file into a SourceError, or a StoreError if they may pass."""
    try:
        yield
    except (FileNotFoundError, UnicodeEncodeError):
        # No file can have a name with half a surrogate.
        raise _gone(place) from None
    except OSError as error:
        raise _unreadable(place, error) from error
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and not is_url(place):
            raise _unreadable(place, error.__cause__) from error
        raise


def empty_source(files: Sequence[SourceFile]) -> SourceError:
    what = files[0].place if len(files) == 1 else f"all {len(files)} files"
    return SourceError(f"no rows in {what}.", hint="Check that the file was written completely.")


def _unreadable(place: str, error: OSError) -> SourceError | StoreError:
    if is_passing(error):
        return StoreError(
            f"{error.filename or place}: {error.strerror or error}.",
            hint="Check the disk or the network it is on, and run the same command again: it resumes.",
        )
    return SourceError(
        f"{error.filename or place}: {error.strerror or error}.",
        hint="Check that it exists and that you may read it, then run the same command again.",
    )


def _gone(place: str) -> SourceError:
    return SourceError(f"{place} is gone.", hint="Put it back and run the same command again: it resumes.")


def changed(file: SourceFile, how: str) -> StaleResume:
    return StaleResume(
        f"{file_name(file.place)} changed during the run: {how}.",
        hint="Start over with --fresh, so that the result comes from one version of the source.",
    )
