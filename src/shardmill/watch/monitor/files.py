"""What others left in a run folder is read with distrust: texts, the last lines of a log, pages."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from shardmill.core.console import clean
from shardmill.core.errors import CorruptState, UsageError
from shardmill.store import LocalStore, Store

_TAIL_BYTES, _TAIL_LINES = 32 << 10, 200
_PIECE_BYTES = 1 << 20
# Colours and other sequences for terminals.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


_LONGEST = 400


def shorten(text: Any, longest: int = _LONGEST) -> str:
    """A text from data: without controls of terminals or of the direction of writing, and not too long."""
    said = str(text)
    return clean(said[:longest]) + ("…" if len(said) > longest else "")


def read_tail(store: Store, key: str) -> str:
    """The last lines of a log, without what controls a terminal."""
    _refuse_link(store, key)
    entry = store.head(key)
    if entry is None:
        raise UsageError("The log is gone.")
    start = max(0, entry.size - _TAIL_BYTES)
    text = store.get_range(key, start, entry.size).decode("utf-8", "replace") if entry.size else ""
    # Of what a progress bar wrote over itself, the last is kept.
    lines = [clean(_ESCAPES.sub("", line.rpartition("\r")[2])) for line in text.split("\n")]
    return "\n".join(lines[1 if start else 0 :][-_TAIL_LINES:]).strip("\n")


class OpenPage:
    """A page of HTML of any size: it is sent piece by piece, and all pieces are of the version that was opened."""

    def __init__(self, store: Store, key: str) -> None:
        _refuse_link(store, key)
        try:
            self._file = store.reader(key)
        except FileNotFoundError:
            raise UsageError(f"The run has no {key}.") from None
        self.size = self._file.seek(0, io.SEEK_END)
        self._file.seek(0)

    def pieces(self) -> Iterator[bytes]:
        """Read it once, to its end."""
        with self._file:
            while piece := self._file.read(_PIECE_BYTES):
                yield piece

    def close(self) -> None:
        self._file.close()


def _refuse_link(store: Store, key: str) -> None:
    if isinstance(store, LocalStore) and store.path(key).is_symlink():
        raise CorruptState(f"{key} is a link, which is not followed.")
