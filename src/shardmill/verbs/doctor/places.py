"""Whether a place will do for a run: a folder or a bucket keeps its promises, a database answers."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

from shardmill.core.errors import ShardmillError
from shardmill.core.passwords import redact
from shardmill.postgres.connect import connect, is_postgres
from shardmill.store import is_url, open_store
from shardmill.verbs.doctor.checks import Finding


def examine_place(place: str) -> Finding:
    name = "database" if is_postgres(place) else "store"
    try:
        seen = _database(place) if is_postgres(place) else _store(place)
    except ShardmillError as error:
        hint = error.hint.removeprefix("Install it with: ")
        return Finding(name, "wrong", f"{redact(place)}: {error.message}", hint)
    except OSError as error:
        return Finding(name, "wrong", f"{redact(place)}: {error.strerror or error}")
    return Finding(name, "ok", f"{redact(place)}: {seen}")


def _store(place: str) -> str:
    if is_url(place):
        return _try(place)
    around = next(folder for folder in (Path(place), *Path(place).absolute().parents) if folder.exists())
    with tempfile.TemporaryDirectory(dir=around) as folder:
        return _try(folder)


def _try(place: str) -> str:
    """Write, write again, swap and delete one object."""
    store, key = open_store(place), f".doctor-{secrets.token_hex(8)}"
    try:
        first, second = store.put_if_absent(key, b"1"), store.put_if_absent(key, b"2")
        _, tag = store.get_tagged(key)
        swapped = store.replace_if_same(key, b"3", tag), store.replace_if_same(key, b"4", tag)
    finally:
        store.delete(key)
    if (first, second) != (True, False) or swapped != (True, False):
        raise ShardmillError(
            "writes replace what others wrote: two workers would lose each other's results.",
            hint="Choose another store: docs/design/stores.md says what one needs.",
        )
    return "can be written, and compares before it swaps"


def _database(place: str) -> str:
    with connect(place) as connection:
        version = connection.execute("SHOW server_version").fetchone()
        vector = connection.execute("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")
        found = vector.fetchone()
    return f"PostgreSQL {version[0] if version else '?'}, " + (f"pgvector {found[0]}" if found else "without pgvector")
