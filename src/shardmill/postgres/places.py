"""Addresses of tables: postgresql://HOST/DATABASE/TABLE, or embedded:PATH/TABLE."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from shardmill.core.errors import UsageError
from shardmill.postgres.connect import SCHEMES, is_postgres
from shardmill.postgres.embedded import is_embedded, resolve

_HINT = "Write postgresql://HOST/DATABASE/TABLE or …/SCHEMA.TABLE; a dot or slash in a name is %2E or %2F."


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The address of a table: the URL of its database, without a password, its schema and its name."""

    url: str
    schema: str
    table: str


def is_table(place: str) -> bool:
    return is_postgres(place) or is_embedded(place)


def find_table(place: str) -> TablePlace:
    """Parse the address of a table; an embedded server is started.

    >>> find_table("postgresql://ann@db/shop/sales.Reviews?sslmode=require")
    TablePlace(url='postgresql://ann@db/shop?sslmode=require', schema='sales', table='Reviews')
    """
    scheme = next((s for s in SCHEMES if place.startswith(s)), "")
    path, mark, query = place.removeprefix(scheme).partition("?")
    database, slash, name = path.rpartition("/")
    names = [unquote(piece) for piece in name.split(".")]
    a_database = database.count("/") == 1 or not scheme
    if not slash or not a_database or not all(names) or len(names) > 2:
        raise UsageError(f"{resolve(place) if scheme else place} does not name a table.", hint=_HINT)
    schema = names[0] if len(names) == 2 else "public"
    return TablePlace(resolve(f"{scheme}{database}{mark}{query}"), schema, names[-1])
