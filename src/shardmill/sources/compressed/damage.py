"""Errors for a compressed file that is damaged or truncated."""

from __future__ import annotations

import contextlib
import lzma
from collections.abc import Callable, Iterator
from typing import Protocol

from shardmill.core.errors import ShardmillError, SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.files import file_name
from shardmill.store import RangeFile

_CHECKS = {"gzip": "gzip -t", "zstd": "zstd -t", "bzip2": "bzip2 -t", "xz": "xz -t"}


class Stream(Protocol):
    def read(self, size: int) -> bytes: ...


@contextlib.contextmanager
def explained(file: SourceFile, source: RangeFile, at: Callable[[], int]) -> Iterator[None]:
    """Report which file is damaged and where; an error of the read itself takes precedence."""
    try:
        yield
    except ShardmillError:
        raise
    except (OSError, EOFError, lzma.LZMAError) as error:
        if source.error is not None:
            raise source.error from None
        raise damaged(file, str(error).partition("\n")[0].rstrip("."), at()) from error


def damaged(file: SourceFile, reason: str, at: int) -> SourceError:
    return SourceError(
        f"{file_name(file.place)} is damaged or truncated somewhere after byte {at:,} of its content: {reason}.",
        hint=f"Fetch or write it again; `{_CHECKS[file.compression]}` checks it. Committed shards are kept.",
    )
