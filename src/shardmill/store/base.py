"""The contract of a store: objects by key, with two conditional writes that carry everything else."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Whether a server may be asked for just this version: not by a time, nor by a tag that it calls weak."""
    return bool(tag) and not tag.startswith((MODIFIED, "W/"))


class Store(Protocol):
    """What the ledger, the sources and the sinks ask of a store."""

    url: str

    def get(self, key: str) -> bytes: ...
    def get_tagged(self, key: str) -> tuple[bytes, str]: ...
    def get_range(self, key: str, start: int, stop: int, tag: str = "") -> bytes:
        """Bytes [start, stop), as far as there are any; StoreChanged if the object has another tag by now."""
        ...

    def head(self, key: str) -> Entry | None: ...
    def put(self, key: str, data: bytes) -> None: ...
    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool: ...
    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Everything whose key starts with `prefix` and comes after `after`; a folder in the order of its keys."""
        ...

    def delete(self, key: str) -> None: ...
    def writer(self, key: str) -> IO[bytes]: ...
    def reader(self, key: str) -> IO[bytes]: ...
