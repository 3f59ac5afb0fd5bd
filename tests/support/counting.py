"""A store that counts what is asked of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.store import Entry, open_store


class CountingStore:
    """Counts requests by kind and first folder of their key, such as `get leases`, and the bytes that were fetched."""

    def __init__(self, place: str) -> None:
        self._store: Any = open_store(place)
        self.url = self._store.url
        self.requests: Counter[str] = Counter()
        self.fetched_bytes = 0

    def __getattr__(self, kind: str) -> Any:
        ask = getattr(self._store, kind)

        def counted(key: str, *args: Any) -> Any:
            self._count(kind, key)
            answer = ask(key, *args)
            data = answer[0] if isinstance(answer, tuple) else answer
            self.fetched_bytes += len(data) if isinstance(data, bytes) else 0
            return answer

        return counted

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        self._count("list", prefix)
        yield from self._store.list(prefix, after)

    def delete_all(self, keys: Iterable[str]) -> None:
        every = [*keys]
        for first in range(0, len(every), 1000):
            self._count("delete_all", every[first])
        self._store.delete_all(every)

    def _count(self, kind: str, key: str) -> None:
        self.requests[f"{kind} {key.partition('/')[0]}"] += 1

    def reset(self) -> None:
        self.requests.clear()
        self.fetched_bytes = 0


class CutShort(Exception):
    """The process ends here."""


class CutShortStore(CountingStore):
    """Answers a number of requests; before the next one its process dies."""

    def __init__(self, place: str, requests: int) -> None:
        super().__init__(place)
        self._left = requests

    def delete_all(self, keys: Iterable[str]) -> None:
        """A bulk deletion may end in the middle too."""
        for key in keys:
            self.delete(key)

    def _count(self, kind: str, key: str) -> None:
        if not self._left:
            raise CutShort(f"{kind} {key}")
        self._left -= 1
