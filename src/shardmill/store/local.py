"""A folder on a disk as a store: durable, atomic, with a lock for compare-and-swap."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from shardmill.core.errors import CorruptState, Cure, StoreChanged, StoreError, StoreFull
from shardmill.store.base import Entry


class LocalStore:
    """A folder. Writes, including folder entries, are on the disk before a call returns."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.url = str(self.root)
        self._known: set[str] = {""}
        # Folders whose lock a paused process has.
        self._paused: set[Path] = set()

    def path(self, key: str) -> Path:
        """The file of a key. A key may come from a file that others wrote, so it must not leave the folder."""
        folder = key.rpartition("/")[0]
        if folder not in self._known or key.endswith(".."):
            self._check_inside(key, folder)
            self._known.add(folder)
        return self.root / key

    def _check_inside(self, key: str, folder: str) -> None:
        """Refuse a key that leads out of this folder by its name or through a link."""
        there = os.path.realpath(self.root / folder)
        within = os.path.commonpath([os.path.realpath(self.root), there]) == os.path.realpath(self.root)
        if key.startswith("/") or ".." in key.split("/") or not within:
            raise CorruptState(
                f"{self.root}: {key!r} leads out of this folder.",
                hint="Find out who wrote it. A folder inside it that is a link must become a folder.",
            )

    def get(self, key: str) -> bytes:
        with self._explained(key):
            return _read(self.path(key))

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        data = self.get(key)
        return data, _digest(data)

    def get_if_changed(self, key: str, tag: str) -> tuple[bytes, str] | None:
        """Opens the file to look at it: NFS may answer from its cache of attributes otherwise."""
        with self._explained(key), _open(self.path(key)) as file:
            seen = os.fstat(file.fileno())
            now = f"{_mtime_tag(seen)}-{seen.st_ino}"
            return None if now == tag else (file.read(), now)

    def get_range(self, key: str, start: int, stop: int, tag: str = "") -> bytes:
        with self._explained(key), _open(self.path(key)) as file:
            if tag and tag != _mtime_tag(os.fstat(file.fileno())):
                raise StoreChanged(f"{self.path(key)} has changed since it was first read.")
            file.seek(start)
            return file.read(stop - start)

    def head(self, key: str) -> Entry | None:
        with self._explained(key):
            try:
                seen = self.path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Entry(key, seen.st_size, _mtime_tag(seen))

    def put(self, key: str, data: bytes) -> None:
        with self._explained(key), self._staged(key, data) as staged:
            os.replace(staged, self.path(key))
            sync_folder(self.path(key).parent)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._explained(key), self._staged(key, data) as staged:
            try:
                os.link(staged, self.path(key))
            except FileExistsError:
                # NFS may resend a link request and then report our own write as existing.
                return self._holds(key, data)
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise _no_links(self.root) from error
                raise
            sync_folder(self.path(key).parent)
            return True

    def _holds(self, key: str, data: bytes) -> bool:
        """Whether an object has these bytes; an object deleted meanwhile has none."""
        try:
            return _read(self.path(key)) == data
        except FileNotFoundError:
            return False

    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool:
        # The disk is waited for without the lock: whoever is slow while it holds the lock holds up everybody.
        target = self.path(key)
        with self._explained(key), self._staged(key, data) as staged:
            while True:
                with _open(target.parent / _LOCK, "ab") as lock:
                    if not self._wait_for_lock(lock.fileno(), target.parent):
                        return self._swap(target, staged, tag)
                    locked = time.monotonic()
                    try:
                        current = _read(target)
                    except FileNotFoundError:
                        return False
                    if _digest(current) != tag:
                        return False
                    if time.monotonic() - locked > _PAUSED_S / 2:
                        continue  # This process was paused. Others may have gone on without the lock.
                    os.replace(staged, target)
                sync_folder(target.parent)
                return True

    def _wait_for_lock(self, file: int, folder: Path) -> bool:
        """Lock a file until it is closed. False on a mount without locks, or if the process that has it is paused."""
        until = time.monotonic() + (_PAUSED_S if folder not in self._paused else _BRIEFLY_S)
        pause_s = 0.0005
        while (locked := try_lock(file)) is False and time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _BRIEFLY_S / 10)
        (self._paused.add if locked is False else self._paused.discard)(folder)
        return bool(locked)

    def _swap(self, target: Path, staged: Path, tag: str) -> bool:
        """Replace an object without a lock: whoever renames it away may replace it. It is absent for a moment."""
        taken = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
        try:
            os.rename(target, taken)
        except FileNotFoundError:
            return False
        same = _digest(_read(taken)) == tag
        try:
            os.link(staged if same else taken, target)
        except FileExistsError:
            same = False
        sync_folder(target.parent)
        taken.unlink()
        return same

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        folder, _, start = prefix.rpartition("/")
        self.path(prefix)
        with self._explained(prefix):
            yield from self._walk(str(self.root / folder), start, after)

    def folders(self) -> Sequence[str]:
        """The names of the folders in this one."""
        with self._explained(""):
            found = [item.name for item in os.scandir(self.root) if item.is_dir() and not item.name.startswith(".")]
        return sorted(found)

    def _walk(self, folder: str, start: str, after: str) -> Iterator[Entry]:
        try:
            found = sorted(os.scandir(folder), key=lambda e: e.name)
        except FileNotFoundError:
            return
        top = f"{self.url.rstrip('/')}/"
        for item in found:
            if item.name.startswith(".") or not item.name.startswith(start):
                continue
            if item.is_dir():
                yield from self._walk(item.path, "", after)
                continue
            key = item.path.removeprefix(top)
            if key <= after:
                continue
            with contextlib.suppress(FileNotFoundError):
                seen = item.stat()
                yield Entry(key, seen.st_size, _mtime_tag(seen))

    def delete(self, key: str) -> None:
        with self._explained(key), contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as held:
            # A replacement under way would bring the object back.
            with contextlib.suppress(FileNotFoundError):
                lock = held.enter_context(_open(self.path(key).parent / _LOCK, "rb+"))
                self._wait_for_lock(lock.fileno(), self.path(key).parent)
            self.path(key).unlink()

    def delete_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def writer(self, key: str) -> IO[bytes]:
        with self._explained(key):
            make_folder(self.path(key).parent)
            return _DurableFile(self, key)

    def partial(self, key: str) -> tuple[str, IO[bytes]]:
        """Open a hidden file beside `key`, to be renamed once complete, and its key; it is locked while it is open."""
        folder, slash, name = key.rpartition("/")
        with self._explained(key):
            make_folder(self.path(key).parent)
            while True:
                partial = f"{folder}{slash}.{name}.{uuid.uuid4().hex}.partial"
                file = _DurableFile(self, partial, renamed=True)
                try_lock(file.fileno())
                # Another process may have removed it before it was locked.
                if self.path(partial).exists():
                    return partial, file
                file.close()

    def remove_partials(self, key: str) -> None:
        """Remove what killed processes left of a file, or of all files under `key/`: partial files without a lock."""
        target = self.path(key)
        names = f".{glob.escape(target.name)}.*.partial"
        for left in target.rglob(".*.partial") if key.endswith("/") else target.parent.glob(names):
            with contextlib.suppress(OSError), open(left, "rb+") as file:
                if try_lock(file.fileno()):
                    left.unlink()

    def reader(self, key: str) -> IO[bytes]:
        with self._explained(key):
            return _open(self.path(key))

    def rename(self, key: str, new: str) -> None:
        """Rename an object within its folder, durably; replaces an object of that name."""
        with self._explained(new):
            os.replace(self.path(key), self.path(new))
            sync_folder(self.path(new).parent)

    @contextlib.contextmanager
    def _staged(self, key: str, data: bytes) -> Iterator[Path]:
        target = self.path(key)
        make_folder(target.parent)
        staged = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
        try:
            with open(staged, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield staged
        finally:
            staged.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise explain_os_error(error, str(self.path(key))) from error


# What flock says on a mount without locks, such as Lustre without `-o flock`.
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}

# What link says on a mount without hard links, such as exFAT or many of FUSE. The file is our own, and the folder was
# written a moment before.
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}

_LOCK = ".lock"
# A lock is held for a moment. Who has it for this long is paused, and the others go on as if there were no locks. While
# that lasts, each waits briefly.
_PAUSED_S, _BRIEFLY_S = 5.0, 0.2

# On ext4, one write of 2 MiB took four times as long as eight of these, because it uses one huge page.
_WRITE_BYTES = 256 << 10


class _DurableFile(io.FileIO):
    """A file that is durable once it is closed, including its name unless it is `renamed` later."""

    def __init__(self, store: LocalStore, key: str, renamed: bool = False) -> None:
        super().__init__(store.path(key), "wb")
        self._store, self._key, self._renamed = store, key, renamed

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        with self._store._explained(self._key):
            at = 0
            while at < len(view):
                at += super().write(view[at : at + _WRITE_BYTES]) or 0
        return len(view)

    def close(self) -> None:
        if not self.closed:
            try:
                with self._store._explained(self._key):
                    os.fsync(self.fileno())
                    if not self._renamed:
                        sync_folder(self._store.path(self._key).parent)
            finally:
                super().close()


def make_folder(folder: Path) -> None:
    """Create a folder and the folders above it, durably."""
    missing = [f for f in (folder, *folder.parents) if not f.is_dir()]
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for made in missing:
                sync_folder(made.parent)
        except OSError as error:
            explained = explain_os_error(error, f"{folder} cannot be created")
            if error.errno in _WRONG_PLACE:
                explained.hint = "Check that you may write there, or choose another with --out."
            raise explained from error


_WRONG_PLACE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
)


def explain_os_error(error: OSError, place: str) -> StoreError:
    """Turn the errno of the system into an error about a place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"{place}: no space left on the disk.", hint="Free some space and run the same command again: it resumes."
        )
    explained = StoreError(f"{place}: {error.strerror or error}.")
    if error.errno in _WRONG_PLACE:
        explained.cure = Cure.FINAL
        explained.hint = "Check that you may read this folder, and write to it if it is the --out of a run."
    return explained


def _no_links(folder: Path) -> StoreError:
    error = StoreError(
        f"{folder}: this file system has no hard links, and without them two workers could commit the same shard.",
        hint="Choose a folder on another file system with --out (ext4, XFS, ZFS, NFS and Lustre have them), or s3://.",
    )
    error.cure = Cure.FINAL
    return error


def _open(path: Path, mode: str = "rb") -> IO[bytes]:
    """Open a file without waiting for anybody. Others may write this folder, and a FIFO in it waits for its writer."""
    return open(path, mode, opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    refused = CorruptState(f"{path} is not a regular file.", hint="Find out who put it there, and remove it.")
    try:
        handle = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        # A socket, or a FIFO that nobody reads.
        raise refused if error.errno == errno.ENXIO else error from error
    # Python refuses a folder by itself.
    if stat.S_IFMT(os.fstat(handle).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
        return handle
    os.close(handle)
    raise refused


def _read(path: Path) -> bytes:
    with _open(path) as file:
        return file.read()


def try_lock(handle: int) -> bool | None:
    """Lock a file until it is closed; False if another process has it, None if the mount has no locks."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _mtime_tag(seen: os.stat_result) -> str:
    return f"mtime-{seen.st_mtime_ns}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
