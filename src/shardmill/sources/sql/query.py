"""Uses the query as a subselect, after checking that it only reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardmill.core.errors import SourceError
from shardmill.plan import KeyValue

# Placeholder for a value in a statement, which each database replaces. SQL text cannot contain it otherwise.
MARK = "\0"

_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<quoted>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag))
    |(?P<word>\w+)|(?P<end>;)|(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_READS = ("select", "with", "values", "table", "from")


def check_query(query: str) -> str:
    """The query without trailing comments and semicolons; refuses anything but one statement that reads.

    >>> check_query("SELECT ';' AS a; -- all")
    "SELECT ';' AS a"
    """
    first, end, stop = "", 0, False
    for token in _TOKEN.finditer(query):
        if token["blank"] or token["end"]:
            stop = stop or bool(token["end"])
            continue
        if stop:
            raise SourceError("--query has more than one statement.", hint="Give one SELECT.")
        end = token.end()
        if not first and token[0] != "(":
            first = token[0].lower()
    if not first:
        raise SourceError("--query is empty.", hint='For example --query "SELECT id, content FROM documents"')
    if first not in _READS or MARK in query:
        raise SourceError(
            f"--query begins with {first!r}; a source is read-only.", hint="Give a SELECT, or WITH … SELECT."
        )
    return query[:end]


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column(name: str) -> str:
    return f"q.{quote(name)}"


def select(what: str, query: str, rest: str = "") -> str:
    return f"SELECT {what} FROM {table(query)}{rest}"


def table(query: str) -> str:
    # On separate lines, because a query may end in a comment.
    return f"(\n{query}\n) AS q"


def in_range(key: str, low: KeyValue, high: KeyValue) -> tuple[str, list[KeyValue]]:
    """The condition for keys above `low` up to `high`, and its values.

    Rows without a key belong to the range without a lower bound, so that no row is lost.
    """
    if low is None and high is None:
        return "", []
    if low is None:
        return f" WHERE ({column(key)} <= {MARK} OR {column(key)} IS NULL)", [high]
    return f" WHERE {column(key)} > {MARK} AND {column(key)} <= {MARK}", [low, high]


def in_order(names: Sequence[str]) -> str:
    return f" ORDER BY {', '.join(map(column, names))}" if names else ""
