"""What a database has to be able to do to be a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shardmill.plan import KeyValue

Rows = list[tuple[Any, ...]]
BINARY = "binary"
UNKNOWN = ""


class QuerySession(Protocol):
    """One connection in one snapshot."""

    def identify(self) -> str:
        """What tells this database from another, by whatever address it is reached."""

    def describe(self, query: str) -> list[tuple[str, str]]:
        """The columns of a query with their Arrow types; UNKNOWN where only the values tell."""

    def expression(self, name: str, kind: str) -> str:
        """What selects a column as values of that type, or as texts."""

    def key_expression(self, name: str) -> str:
        """What selects a key as a value that JSON holds and `rows` takes back."""

    def rows(self, sql: str, values: Sequence[KeyValue] = (), most: Callable[[], int] = lambda: 1000) -> Iterator[Rows]:
        """The rows of a statement, streamed, at most so many at a time."""

    def can_seek(self, sql: str, values: Sequence[KeyValue]) -> bool | None:
        """Whether an index helps to find the rows; None where the database does not say."""


class Database(Protocol):
    kind: str
    place: str

    def open(self, patience_s: float = 0.0, plain: bool = False) -> AbstractContextManager[QuerySession]:
        """A session; a `plain` one gives values as Python has them, others as Arrow takes them quickest."""
