"""Stores that refuse: a right to read only, no room, a server that leaves at the end, values that one cannot hold."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardmill.core.errors import ShardmillError
from shardmill.core.passwords import withhold
from shardmill.results.delivered import check_delivery
from shardmill.run import Run, start
from shardmill.sinks.databases.postgres import PostgresDelivery
from shardmill.sinks.points.base import PointDelivery
from tests.support.badline import BadLine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.libraries import needed
from tests.support.points import SERVERS, address_at, new_port, redis_server
from tests.support.services import PostgresServer

pytestmark = pytest.mark.services

FILES = {
    "lance": "lance:{}/rows.lance",
    "delta": "delta:{}/rows",
    "duckdb": "duckdb:{}/rows.duckdb",
    "sqlite": "sqlite:{}/rows.db",
    "iceberg": "iceberg:prod/shop.reviews",
    "qdrant": "qdrant:{}/all#rows",
    "milvus": "milvus:{}/all.db#rows",
}
LIBRARIES = {
    "delta": "deltalake",
    "sqlite": "sqlite3",
    "iceberg": "pyiceberg",
    "qdrant": "qdrant_client",
    "milvus": "milvus_lite",
}


def make_run(folder: Path, dims: int = 8) -> Run:
    source = folder / "items.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(60)))
    return start(fake_spec(source, workers=1, params={"dims": dims}), folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of 4 MB."""
    return make_run(tmp_path_factory.mktemp("large"), dims=16384)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A function that mounts a folder with these options."""
    place = tmp_path / "mounted"
    place.mkdir()
    mounted = 0

    def mount(*options: str) -> Path:
        nonlocal mounted
        if subprocess.run(["mount", *options, place], capture_output=True).returncode:
            pytest.skip("a disk can only be mounted by root")
        mounted += "remount" not in "".join(options)
        return place

    yield mount
    for _ in range(mounted):
        subprocess.run(["umount", "-l", place], check=True)


def assert_refused(run: Run, address: str, *hints: str) -> str:
    with pytest.raises(ShardmillError) as refused:
        run.deliver(address)
    assert "\n" not in refused.value.message
    assert refused.value.message.isprintable()
    assert any(hint in refused.value.hint for hint in hints), refused.value.hint
    return refused.value.message


def assert_delivered(run: Run, address: str) -> None:
    assert run.deliver(address) == 60
    commits = {commit.shard: commit for commit in run.ledger.commits.read_complete(run.plan)}
    check = check_delivery(run.ledger, run.plan, address, commits)
    assert check.ok, check.seen


@pytest.mark.parametrize("kind", FILES)
def test_a_disk_that_may_only_be_read(
    kind: str, run: Run, tmp_path: Path, mount: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(LIBRARIES.get(kind, kind))
    place = mount("-t", "tmpfs", "tmpfs")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{place}/catalogue.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", f"file://{place}/warehouse")
    mount("-o", "remount,ro")
    address = FILES[kind].format(place)
    assert_refused(run, address, "right to write", "written", "same command again")
    mount("-o", "remount,rw")
    assert_delivered(run, address)


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_a_bucket_that_may_only_be_read(
    kind: str, run: Run, folder: str, line: BadLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(LIBRARIES.get(kind, kind))
    line.fault = lambda method, path: "403 AccessDenied" if method in ("PUT", "POST") else ""
    address = FILES[kind].format(folder)
    assert_refused(run, address, "right to write")
    # Delta's library holds the lock of the interpreter while it waits for an answer, which this process would give.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{line.upstream}")
    assert_delivered(run, address)


@pytest.mark.parametrize("kind", ["chroma", "milvus_server"])
def test_a_server_whose_disk_fills_up(
    kind: str, large: Run, mount: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PointDelivery, "patience_s", 5.0)
    place, port = mount("-t", "tmpfs", "-o", "size=3m", "tmpfs"), new_port()
    address = address_at(kind, port, "rows")
    with SERVERS[kind](place, port):
        assert_refused(large, address, "Free some space")
    # Chroma's may hang from then on.
    mount("-o", "remount,size=64m")
    with SERVERS[kind](place, port):
        assert_delivered(large, address)


def test_a_server_without_memory(large: Run, tmp_path: Path) -> None:
    redis, port = needed("redis"), new_port()
    with redis_server(tmp_path, port, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction"):
        address = address_at("redis", port, "rows")
        assert "maxmemory" in assert_refused(large, address, "Free some space")
        with redis.Redis(port=port) as client:
            client.config_set("maxmemory", "64mb")
        assert_delivered(large, address)


def test_a_user_of_redis_who_may_only_read(run: Run, tmp_path: Path) -> None:
    redis, port = needed("redis"), new_port()
    with redis_server(tmp_path, port), redis.Redis(port=port) as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">word", "~*", "+@all", "-@write")
        address = withhold(f"redis://reader:word@127.0.0.1:{port}/0#rows")
        assert "no permissions to run" in assert_refused(run, address, "right to write")
        client.execute_command("ACL", "SETUSER", "reader", "+@write")
        assert_delivered(run, address)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="shardmill-pg-"))
    server = PostgresServer(folder)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_role_of_postgresql_that_may_only_read(run: Run, postgres: PostgresServer) -> None:
    name = f"reader_{uuid.uuid4().hex[:8]}"
    address = f"{postgres.url()}#{name}"
    postgres.execute(f"CREATE ROLE {name} LOGIN", f"GRANT pg_read_all_data TO {name}")
    reading = f"{postgres.url(user=name)}#{name}"
    assert "permission denied" in assert_refused(run, reading, "")
    assert_delivered(run, address)


def test_postgresql_leaves_between_the_last_lot_and_the_end(
    run: Run, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row is there, and the indexes are built by the same command."""
    finish = PostgresDelivery.finish

    def leave(self: PostgresDelivery, lots: object) -> list[str]:
        own_server.stop()
        return finish(self, lots)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresDelivery, "finish", leave)
    address = f"{own_server.url()}#rows"
    assert_refused(run, address, "same command")
    own_server.start()
    monkeypatch.undo()
    assert own_server.execute("SELECT count(*) FROM rows")[-1][0] == 60
    assert_delivered(run, address)
    assert own_server.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'rows'")[-1][0] == 2


@pytest.mark.parametrize("kind", ["chroma", "milvus_server", "redis"])
def test_a_server_that_leaves_between_the_last_lot_and_the_end(
    kind: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These have nothing to do then, and the delivery ends."""
    address, finish = address_at(kind, port := new_port(), "rows"), PointDelivery.finish
    with SERVERS[kind](tmp_path, port) as server:

        def leave(self: PointDelivery, lots: object) -> list[str]:
            server.kill()
            server.wait()
            return finish(self, lots)  # type: ignore[arg-type]

        monkeypatch.setattr(PointDelivery, "finish", leave)
        assert run.deliver(address) == 60
    monkeypatch.undo()
    with SERVERS[kind](tmp_path, port):
        assert_delivered(run, address)


def test_postgresql_holds_no_zero_bytes(postgres: PostgresServer, tmp_path: Path) -> None:
    rows = [*fake_rows(5), {"id": "zero\0byte", "text": "x"}]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = start(fake_spec(tmp_path / "items.jsonl", workers=1), tmp_path / "run")
    assert_refused(run, f"{postgres.url()}#rows_{uuid.uuid4().hex[:8]}", "")


ODD = ['a"b', "it's", "日本", "select", "a b", "x" * 200]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "postgresql"])
def test_names_of_tables(kind: str, name: str, run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Taken as they are, or refused in a line."""
    if kind == "postgresql":
        address = f"{request.getfixturevalue('postgres').url()}#{name}"
    else:
        address = f"{kind}:{tmp_path}/rows.db#{name}"
    if kind == "postgresql" and len(name.encode()) > 63:
        assert_refused(run, address, "63")
    else:
        assert_delivered(run, address)
