"""Queries MySQL and MariaDB in one snapshot, without holding a result in memory.

The server sends all rows of a result unless the connection is closed, so a result that is left ends its connection.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from shardmill.core.connecting import connect_patiently
from shardmill.core.errors import DatabaseError, DatabaseLost, ShardmillError
from shardmill.core.extras import missing_package
from shardmill.core.passwords import redact, withheld
from shardmill.plan import KeyValue
from shardmill.sources.sql.base import BINARY, Rows
from shardmill.sources.sql.query import MARK, column, select

_ADDRESS = "Write mysql://USER@HOST:PORT/DATABASE"
_TEXTS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
_SWITCHES = ("ssl_verify_identity", "ssl_disabled")
_CONNECT_S = 10.0
# A peer that disappears silently is noticed after about a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
# The server waits for a worker that reads no further while its device works; its own limit is a minute.
_SETTINGS = "SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES'), time_zone = '+00:00', net_write_timeout = 86400"
_NO_LIMIT = {True: "SET max_statement_time = 0", False: "SET max_execution_time = 0"}
_SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)

# By the protocol's number of a type. Of whole numbers, the bits; other types are read as text, as the server prints it.
_WHOLE = {1: 8, 2: 16, 3: 32, 8: 64, 9: 32}
_YEAR, _BIT, _FLOAT, _DECIMALS, _TIME, _JSON, _ZONED, _LOCAL = 13, 16, 4, (0, 246), 11, 245, 7, 12
_NATIVE = {
    _FLOAT: "float",
    5: "double",
    _ZONED: "timestamp[us, tz=UTC]",
    10: "date32[day]",
    _LOCAL: "timestamp[us]",
    _YEAR: "int16",
    _BIT: "uint64",
    _JSON: "string",
}
_AS_TEXT = (6, _TIME, *_DECIMALS)
_NO_CHARSET, _UNSIGNED, _LISTED = 63, 32, 256 | 2048

_PASSING = {1040, 1053, 1152, *range(1158, 1162), 1203, 1205, 1213, 1317, 1412, 1927, 1969, 3024, 4031}
_HINTS = {
    **dict.fromkeys((1045, 1698), "Check user and password; the password may be in the URL or in MYSQL_PWD."),
    **dict.fromkeys((1044, 1142, 1143), "Ask for SELECT on it: GRANT SELECT ON … TO the user of the URL."),
    1049: "SHOW DATABASES lists the databases of a server.",
    1054: "Check the name. Texts are in single quotes, names in double ones.",
    1130: "The server does not accept connections from this machine.",
    1146: "Check the name and the database of the URL.",
    2026: "The server does not encrypt: omit the options that begin with ssl.",
}
_READ_ONLY = 1792
_SYNTAX = re.compile(r"near '(?P<near>.*?)(?:\n\) AS q.*)?' at line (?P<line>\d+)", re.DOTALL)


class MySql:
    kind = "mysql"

    def __init__(self, place: str) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, patience_s: float = 0.0, plain: bool = False) -> Iterator[MySqlSession]:
        driver = _load()
        options = _read_address(self.place)
        if not plain:
            whole = dict.fromkeys(_DECIMALS, _read_decimal)
            options["conv"] = {**driver.converters.conversions, **whole}

        def connect() -> Any:
            return connect_patiently(
                lambda: _connect(driver, self.place, options),
                self.place,
                patience_s,
                driver.Error,
                lambda error: _explain_refusal(error, self.place),
                _message,
            )

        session = MySqlSession(connect, self.place)
        try:
            yield session
        finally:
            session.leave()


class MySqlSession:
    def __init__(self, connect: Callable[[], Any], place: str) -> None:
        self._connect, self._place = connect, place
        self._connection: Any = connect()
        self._native: dict[str, str] = {}
        self._types: dict[str, tuple[int, bool]] = {}

    def identify(self) -> str:
        (name, host), *_ = self._all("SELECT DATABASE(), @@hostname")
        ids = [value for _, value in self._all("SHOW VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid')")]
        return f"{ids[0] if ids else host}/{name}"

    def describe(self, query: str) -> list[tuple[str, str]]:
        with self._explained(query), contextlib.closing(self._execute(select("*", query, " LIMIT 0"))) as cursor:
            found = [(field.name, field) for field in cursor._result.fields]
        self._types = {name: (field.type_code, bool(field.flags & _LISTED)) for name, field in found}
        kinds = [(name, _kind_of(field)) for name, field in found]
        self._native = {name: "" if self._types[name][0] in _AS_TEXT else kind for name, kind in kinds}
        return kinds

    def expression(self, name: str, kind: str) -> str:
        value = self._value(name)
        return value if self._native[name] == kind else f"CAST({value} AS CHAR)"

    def key_expression(self, name: str) -> str:
        """Of what is listed (ENUM, SET) the number, which it is sorted by; JSON has an order that no literal has."""
        number, listed = self._types[name]
        if listed:
            return f"({column(name)} + 0)"
        if number == _JSON:
            return f"CAST({column(name)} AS BINARY)"
        dated = number == _TIME or self._native[name].startswith(("date", "timestamp"))
        return f"CAST({column(name)} AS CHAR)" if dated else self._value(name)

    def rows(self, sql: str, values: Sequence[KeyValue] = (), most: Callable[[], int] = lambda: 1000) -> Iterator[Rows]:
        ended = False
        try:
            with self._explained():
                cursor = self._execute(sql, values)
            while not ended:
                wanted = most()
                with self._explained():
                    batch = list(cursor.fetchmany(wanted))
                ended = len(batch) < wanted
                if batch:
                    yield batch
        finally:
            if not ended:
                self.leave()

    def can_seek(self, sql: str, values: Sequence[KeyValue]) -> bool:
        with self._explained(), contextlib.closing(self._execute(f"EXPLAIN {sql}", values)) as cursor:
            at = [name for name, *_ in cursor.description].index("possible_keys")
            return any(row[at] for row in cursor.fetchall())

    def leave(self) -> None:
        """Close the connection without reading what is left of a result, which the driver would do."""
        left, self._connection = self._connection, None
        if left is not None and left.open:
            if left._result is not None:
                left._result.unbuffered_active = False
            left.close()

    def _value(self, name: str) -> str:
        """A column: bits as a number, and all digits of a FLOAT, of which the server would print six."""
        number = self._types[name][0]
        if number == _BIT:
            return f"CAST({column(name)} AS UNSIGNED)"
        return f"({column(name)} + 0e0)" if number == _FLOAT else column(name)

    def _execute(self, sql: str, values: Sequence[KeyValue] = ()) -> Any:
        """Send a statement with its values as literals: a percent sign in the user's query is not a placeholder."""
        if self._connection is None:
            self._connection = self._connect()
        first, *rest = sql.split(MARK)
        literals = map(self._connection.escape, values)
        cursor = self._connection.cursor()
        cursor.execute(first + "".join(literal + piece for literal, piece in zip(literals, rest, strict=True)))
        return cursor

    def _all(self, sql: str) -> Rows:
        with self._explained(), contextlib.closing(self._execute(sql)) as cursor:
            return list(cursor.fetchall())

    @contextlib.contextmanager
    def _explained(self, query: str = "") -> Iterator[None]:
        try:
            yield
        except _load().Error as error:
            raise _explain(error, self._place, query) from error
        except UnicodeDecodeError as error:
            raise DatabaseError(
                f"{self._place} contains text that is not UTF-8.", hint="Convert it in the query: CONVERT(… USING …)."
            ) from error


def _connect(driver: Any, place: str, options: dict[str, Any]) -> Any:
    try:
        opened = driver.connections.Connection(**options, cursorclass=driver.cursors.SSCursor, defer_connect=True)
        opened.connect(None if opened.unix_socket else _open_socket(driver, opened))
    except (RuntimeError, ssl.SSLError) as error:
        # The driver misses a package that this way to log in needs, or a file is no certificate.
        hint = "Check the files of ssl_…; without encryption: pip install 'pymysql[rsa]'"
        raise DatabaseError(f"{place}: {redact(str(error))}.", hint=hint) from error
    try:
        maria = "mariadb" in opened.get_server_info().lower()
        for statement in (_SETTINGS, _NO_LIMIT[maria], *_SNAPSHOT):
            opened.query(statement)
    except Exception:
        opened.close()
        raise
    return opened


def _open_socket(driver: Any, wanted: Any) -> socket.socket:
    try:
        opened = socket.create_connection((wanted.host, wanted.port), _CONNECT_S)
    except OSError as error:
        raise driver.OperationalError(2003, str(error)) from error
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


def _read_address(place: str) -> dict[str, Any]:
    """What PyMySQL connects with; the address has no password."""
    shown = place.partition("?")[0]
    try:
        parts = urlsplit(place)
        port = parts.port or 3306
    except ValueError as error:
        raise DatabaseError(f"{shown}: {error}.", hint=_ADDRESS) from error
    database = unquote(parts.path.strip("/"))
    if not database:
        raise DatabaseError(f"{shown} names no database.", hint=_ADDRESS)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted({*given} - {*_TEXTS, *_SWITCHES}):
        known = ", ".join((*_TEXTS, *_SWITCHES))
        raise DatabaseError(f"{shown}: there is no option {unknown[0]!r}.", hint=f"{_ADDRESS}. Options: {known}.")
    options: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    options |= {name: given[name].lower() in ("true", "1", "yes") for name in _SWITCHES if name in given}
    secrets = withheld(place)
    password = secrets.pop("password", "") or os.environ.get("MYSQL_PWD", "")
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        if name in options and not os.path.isfile(options[name]):
            raise DatabaseError(f"{shown}: no file {options[name]} for {name}.", hint="Workers read it at this path.")
    # An authority that is named is one to be checked. A socket of this machine needs no encryption.
    options |= {"ssl_verify_cert": True} if "ssl_ca" in options else {}
    options |= {"ssl_disabled": True} if "unix_socket" in options else {}
    return {
        "host": unquote(parts.hostname or "localhost"),
        "port": port,
        "database": database,
        **({"user": unquote(parts.username)} if parts.username else {}),
        "password": password.encode(),
        "charset": "utf8mb4",
        "autocommit": True,
        "program_name": "shardmill",
        "connect_timeout": _CONNECT_S,
        **options,
        **secrets,
    }


def _kind_of(field: Any) -> str:
    """The Arrow type of a column that the server describes."""
    if (number := field.type_code) in _WHOLE:
        return f"{'uint' if field.flags & _UNSIGNED else 'int'}{_WHOLE[number]}"
    if number in _AS_TEXT:
        return "string"
    return _NATIVE.get(number) or (BINARY if field.charsetnr == _NO_CHARSET else "string")


def _read_decimal(text: str) -> int | Decimal:
    """A number that is whole can be a key."""
    return Decimal(text) if "." in text else int(text)


def _explain_refusal(error: Exception, place: str) -> DatabaseError | None:
    """What is wrong with the URL, the user or the encryption; None if a retry may help."""
    said, code = _message(error), _code(error)
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DatabaseError(f"{place}: {said}.", hint="Name the file of its certificate authority: ?ssl_ca=FILE")
    if isinstance(cause, ssl.SSLError):
        hint = "It has to offer TLS 1.2 or later. In a network that you trust, do without: ?ssl_disabled=true"
        return DatabaseError(f"{place}: {said}.", hint=hint)
    return DatabaseError(f"{place}: {said}.", hint=_HINTS[code]) if code in _HINTS else None


def _explain(error: Exception, place: str, query: str) -> ShardmillError:
    said, code = _message(error), _code(error)
    if code in _PASSING or code < 1000 or 2000 <= code < 3000:
        return DatabaseLost(f"{place} went away: {said}.", hint="Finished work is kept: the same command resumes.")
    if code == _READ_ONLY:
        return DatabaseError(f"The query writes, but a source is read-only: {said}.", hint="Use a SELECT.")
    if query and (found := _SYNTAX.search(said)):
        # The query begins on the second line of the statement.
        line = int(found["line"]) - 1
        said = f"syntax error near {found['near']!r} (line {line} of the query)"
    return DatabaseError(
        f"{place}: {said}.",
        hint=_HINTS.get(code) or "Try the query by hand. The server must be MySQL 8.0, MariaDB 10.2 or later.",
    )


def _code(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _message(error: Exception) -> str:
    """What the server or the driver says, without its number."""
    said = str(error.args[1]) if len(error.args) > 1 else str(error) or type(error).__name__
    return redact(said.strip().rstrip("."))


def _load() -> Any:
    """Import PyMySQL, or say how to install it."""
    try:
        import pymysql
    except ImportError as error:
        raise missing_package("pymysql") from error
    return pymysql
