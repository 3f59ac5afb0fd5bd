"""Connections to PostgreSQL: by URL, with passwords kept separate, limits set, and retries where they can help."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardmill.core.connecting import connect_patiently
from shardmill.core.errors import DatabaseError, DatabaseLost, ShardmillError
from shardmill.core.extras import missing_package
from shardmill.core.passwords import redact, withheld

if TYPE_CHECKING:
    import psycopg

SCHEMES = ("postgresql://", "postgres://")

# The URL may override these. A peer that disappears silently is noticed after about a minute.
_DEFAULTS: dict[str, Any] = {
    "application_name": "shardmill",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
# Set per transaction, not per session, so that they also hold behind a pooler. A reader idles in its transaction while
# the device works, so the server's own limit on that is turned off.
_LIMITS = {
    "statement_timeout": "1h",
    "lock_timeout": "1min",
    "idle_in_transaction_session_timeout": "0",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "standard_conforming_strings": "on",
}

_WRONG_PASSWORD = re.compile(r"password authentication failed|no password supplied|SASL|28P01", re.IGNORECASE)
_NO_DATABASE = re.compile(r'database ".*" does not exist')
_REFUSED_BY_RULE = re.compile(
    r'pg_hba\.conf|role ".*" (does not exist|is not permitted)|certificate|SSL', re.IGNORECASE
)
_MALFORMED = re.compile(r"invalid (port|integer|connection|sslmode|URI|value)", re.IGNORECASE)

# SQLSTATEs after which a retry may succeed: connection lost, too few resources, shutdown, conflict with recovery on a
# standby, lock timeout.
_PASSING = re.compile(r"08...|53...|57P..|58...|40...|55P03|25P0[23]")


def is_postgres(place: str) -> bool:
    return place.startswith(SCHEMES)


def connect(url: str, *, patience_s: float = 0.0, **settings: Any) -> psycopg.Connection[Any]:
    """Open a connection; if the server does not answer, retry with growing pauses for `patience_s`."""
    driver = load()
    try:
        given = driver.conninfo.conninfo_to_dict(url)
    except driver.ProgrammingError as error:
        raise DatabaseError(
            f"{url}: {first_line(error)}.", hint="Write postgresql://USER@HOST:PORT/DATABASE"
        ) from error
    options: dict[str, Any] = {**_DEFAULTS, **given, **withheld(url), "client_encoding": "UTF8"}
    return connect_patiently(
        lambda: driver.connect(**options, prepare_threshold=None, **settings),
        url,
        patience_s,
        driver.Error,
        lambda error: _explain_refusal(error, url),
        first_line,
    )


@contextlib.contextmanager
def reading(url: str, *, patience_s: float = 0.0) -> Iterator[psycopg.Connection[Any]]:
    """A read-only connection with one snapshot."""
    driver = load()
    connection = connect(url, patience_s=patience_s)
    try:
        connection.isolation_level = driver.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        limit(connection)
        yield connection
    finally:
        connection.close()


def limit(connection: psycopg.Connection[Any], **changes: str) -> None:
    """Apply the default limits and `changes` to the current transaction only."""
    settings = {**_LIMITS, **changes}
    calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
    connection.execute(f"SELECT {calls}", [word for pair in settings.items() for word in pair])


@contextlib.contextmanager
def explained(connection: psycopg.Connection[Any], hint: str = "") -> Iterator[None]:
    """Turn errors of the server into ours; `hint` is used if the server gives none."""
    try:
        yield
    except load().Error as error:
        raise explain(error, address(connection), hint=hint) from error


def address(connection: psycopg.Connection[Any]) -> str:
    """The address of a connection, for messages."""
    info = connection.info
    host = "" if info.host.startswith("/") else f"{info.host}:{info.port}"
    return f"postgresql://{info.user}@{host}/{info.dbname}"


def explain(error: Exception, url: str, query: str = "", before: int = 0, hint: str = "") -> ShardmillError:
    """Turn an error of the server into ours; `before` is the offset of the user's query in the statement sent."""
    state = getattr(error, "sqlstate", None) or ""
    said = first_line(error)
    if _PASSING.fullmatch(state) or (not state and type(error).__name__ in ("OperationalError", "InterfaceError")):
        return DatabaseLost(f"{url} went away: {said}.", hint="Finished work is kept: the same command resumes.")
    position = getattr(getattr(error, "diag", None), "statement_position", None)
    if position and query:
        said += _place_in(query, int(position) - 1 - before)
    advice = getattr(getattr(error, "diag", None), "message_hint", None)
    hint = advice or hint or _HINTS.get(state) or "Try the query in psql."
    if state == "25006":
        return DatabaseError(f"The query writes, but a source is read-only: {said}.", hint="Use a SELECT.")
    return DatabaseError(f"{url}: {said}.", hint=hint)


_HINTS = {
    "42501": "Ask for SELECT on it: GRANT SELECT ON … TO the user of the URL.",
    "57014": "It took longer than statement_timeout. An index on the first --id column helps.",
    "42P01": "Check the name, its schema and the database of the URL.",
}


def _place_in(query: str, at: int) -> str:
    """Line, column and the text there, if the server named a position inside the query."""
    if not 0 <= at <= len(query):
        return ""
    line, column = query.count("\n", 0, at) + 1, at - query.rfind("\n", 0, at)
    words = query[at : at + 40].partition("\n")[0]
    return f" (line {line}, column {column} of the query: {words!r})" if words else f" (line {line}, column {column})"


def _explain_refusal(error: Exception, url: str) -> DatabaseError | None:
    """What is wrong with the URL or the user; None if a retry may help."""
    said, whole = first_line(error), str(error)
    if _WRONG_PASSWORD.search(whole):
        hint = "Check user and password; the password may be in the URL, in PGPASSWORD or in ~/.pgpass."
        return DatabaseError(f"{url}: {said}.", hint=hint)
    if _NO_DATABASE.search(whole):
        return DatabaseError(f"{url}: {said}.", hint="`psql -l` lists the databases of a server.")
    if _REFUSED_BY_RULE.search(whole) and "starting up" not in whole:
        return DatabaseError(f"{url}: {said}.", hint="The server does not accept this user from this machine.")
    if _MALFORMED.search(whole):
        return DatabaseError(f"{url}: {said}.", hint="Write postgresql://USER@HOST:PORT/DATABASE")
    return None


def first_line(error: Exception) -> str:
    """The error line of the server or of libpq, without the advice that follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = next((line for line in lines if "FATAL:" in line or "ERROR:" in line), lines[0])
    said = re.sub(r"^.*?(?:FATAL|ERROR):\s*", "", said).removeprefix("connection failed: ")
    return redact(said.rstrip("."))


def load() -> Any:
    """Import psycopg, or say how to install it."""
    try:
        import psycopg
    except ImportError as error:
        raise missing_package("psycopg") from error
    return psycopg
