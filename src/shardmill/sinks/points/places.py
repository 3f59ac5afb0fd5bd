"""The parts of an address: a server with a collection, or a file with one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from shardmill.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    user: str
    path: str
    fragment: str


def find_server(address: str, port: int) -> Server | None:
    """The server that an address names; None if it names a file.

    >>> find_server("qdrant://ann@db.example/books", 6333)
    Server(host='db.example', port=6333, user='ann', path='books', fragment='')
    """
    if "://" not in address:
        return None
    try:
        parts = urlsplit(address)
        host, found = parts.hostname or "", parts.port or port
    except ValueError as error:
        raise SpecError(f"{address} is no address: {error}.", hint="Write: SCHEME://HOST:PORT/COLLECTION") from error
    if not host or parts.query:
        why = "names no host" if not host else f"says ?{parts.query}, which has no meaning here"
        raise SpecError(f"{address} {why}.", hint="Write: SCHEME://HOST:PORT/COLLECTION")
    return Server(host, found, unquote(parts.username or ""), unquote(parts.path.strip("/")), unquote(parts.fragment))


def find_file(address: str, scheme: str) -> tuple[str, str]:
    """The file and the collection in it.

    >>> find_file("milvus:/data/all.db#books", "milvus:")
    ('/data/all.db', 'books')
    """
    path, _, collection = address.removeprefix(scheme).rpartition("#")
    return (path, collection) if path else (collection, "")
