"""Standard output as a file that a result is written to."""

from __future__ import annotations

import io
import sys
from typing import IO, Any, BinaryIO

from shardmill.core.errors import UsageError

PIPE = "-"


def open_stdout() -> PipeFile:
    # A shell may start a program without one.
    if sys.stdout is None:
        raise UsageError("--out -: standard output is closed.", hint="Name a file with --out.")
    return PipeFile(sys.stdout.buffer)


class PipeFile(io.RawIOBase, BinaryIO):
    """Counts the bytes of a pipe, which cannot tell where it is, and leaves it open."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._at = pipe, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._pipe.write(view)
        self._at += len(view)
        return len(view)

    def flush(self) -> None:
        self._pipe.flush()
