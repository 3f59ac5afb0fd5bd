"""The contract of a store: objects by key, with two conditional writes that everything else relies on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: its key in the store, its size, and a tag that changes whenever its content does."""

    key: str
    size: int
    tag: str


MODIFIED = "modified-"


def is_exact(tag: str) -> bool:
    """Whether a server can be asked for exactly this version: not with a modification time or a weak tag."""
    return bool(tag) and not tag.startswith((MODIFIED, "W/"))


class Store(Protocol):
    """The operations that the ledger, the sources and the sinks need."""

    url: str

    def get(self, key: str) -> bytes: ...
    def get_tagged(self, key: str) -> tuple[bytes, str]: ...
    def get_if_changed(self, key: str, tag: str) -> tuple[bytes, str] | None:
        """The object and the tag for the next call, in one request; None if it still has the tag of an earlier call."""
        ...

    def get_range(self, key: str, start: int, stop: int, tag: str = "") -> bytes:
        """Read bytes [start, stop), at most to the end; StoreChanged if the object has another tag now."""
        ...

    def head(self, key: str) -> Entry | None: ...
    def put(self, key: str, data: bytes) -> None: ...
    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool: ...
    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """List objects whose key starts with `prefix` and sorts after `after`; within a folder, in key order."""
        ...

    def delete(self, key: str) -> None: ...
    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete many objects in few requests; those that do not exist are skipped."""
        ...

    def writer(self, key: str) -> IO[bytes]: ...
    def reader(self, key: str) -> IO[bytes]: ...
