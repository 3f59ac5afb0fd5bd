"""Files below one folder, named by the content of a source: no name leads to a file outside it."""

from __future__ import annotations

import errno
import os
import stat as modes

from shardmill.core.errors import SourceError
from shardmill.sources.parsing import over_limit

# What is wrong with one name, and not with the disk.
_OF_ONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EISDIR}
_OF_ONE |= {errno.ENXIO, errno.EINVAL}


class BadPath(Exception):
    """A name without a file that may be read; the message says what is wrong with it."""


class Root:
    """A folder. A name with `..`, and a link that leads out of the folder, are refused before anything is opened."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._check()
        self._real = os.path.realpath(folder)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The content of a file with at most `limit_bytes`; raises BadPath."""
        if "\0" in name or not name.strip():
            raise BadPath("is no path")
        if ".." in name.split("/"):
            raise BadPath("has '..', which may lead out of the folder")
        path = os.path.realpath(os.path.join(self._real, name))
        if not path.startswith(f"{self._real.rstrip('/')}/"):
            raise BadPath(f"leads out of {self._folder}")
        try:
            return _read_file(path, limit_bytes)
        except OSError as error:
            self._check()
            if error.errno not in _OF_ONE:
                raise
            raise BadPath(f"cannot be read below {self._folder}: {error.strerror}") from None

    def _check(self) -> None:
        if not os.path.isdir(self._folder):
            raise SourceError(
                f"--root {self._folder}: no such folder here.",
                hint="Give the folder that the paths are below, as each machine with a worker sees it.",
            )


def _read_file(path: str, limit_bytes: int) -> bytes:
    # A pipe without a writer would be waited for.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        state = os.fstat(file.fileno())
        if not modes.S_ISREG(state.st_mode):
            raise BadPath("is not a file")
        if state.st_size > limit_bytes:
            raise BadPath(f"is too large: {over_limit('it', state.st_size, limit_bytes)}")
        return file.read(limit_bytes + 1)
