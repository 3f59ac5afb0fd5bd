"""The contract of a database that is a source."""

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
        """An identifier of this database that does not depend on its address."""

    def describe(self, query: str) -> list[tuple[str, str]]:
        """The columns of a query with their Arrow types; UNKNOWN if only the values show the type."""

    def expression(self, name: str, kind: str) -> str:
        """The SQL that selects a column, which `describe` has named, as values of that type, or as text."""

    def key_expression(self, name: str) -> str:
        """The SQL that selects a key as a value that JSON can hold and `rows` accepts."""

    def rows(self, sql: str, values: Sequence[KeyValue] = (), most: Callable[[], int] = lambda: 1000) -> Iterator[Rows]:
        """Stream the rows of a statement, at most `most()` at a time."""

    def can_seek(self, sql: str, values: Sequence[KeyValue]) -> bool | None:
        """Whether an index helps to find the rows; None if the database does not say."""


class Database(Protocol):
    kind: str
    place: str

    def open(self, patience_s: float = 0.0, plain: bool = False) -> AbstractContextManager[QuerySession]:
        """Open a session; with `plain`, values are ordinary Python values, otherwise what Arrow converts fastest."""
