"""Secrets planted on every engine are in no file, log, command line or message; nor are they when the run fails."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from shardmill.run import Run
from tests.support.cli import Cli, assert_told, command
from tests.support.services import PostgresServer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.services

# Written otherwise in a URL than it is: only what both have in common is looked for.
_ODD = "%40/ö"


@dataclass
class Place:
    """An engine, and the folders beside the test's own where it and its services write."""

    name: str
    execution: dict[str, Any]
    folders: list[Path] = field(default_factory=list)


@pytest.fixture(params=["local", "ssh", "slurm", "ray"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield Place("local", {"device": "cpu", "workers": 1})
    elif request.param == "ssh":
        listed = tmp_path / "cluster.toml"
        listed.write_text(request.getfixturevalue("hosts")[0].entry())
        yield Place("ssh", {"engine_options": {"hosts": str(listed)}})
    elif request.param == "slurm":
        cluster = request.getfixturevalue("slurm_nodes")
        yield Place("slurm", {"device": "cpu", "engine_options": {"partition": "gpu"}}, [cluster.folder])
        cluster.cancel_all()
    else:
        nodes = request.getfixturevalue("ray_nodes")
        options = {"address": nodes.address, "num_cpus": "1"}
        logs = Path(nodes.head_node.get_session_dir_path()).resolve()
        yield Place("ray", {"device": "cpu", "workers": 1, "engine_options": options}, [logs])


@dataclass
class Planted:
    """A source and a target, each with a user and a password of its own; `environment` holds the other secrets."""

    server: PostgresServer
    secrets: dict[str, str]
    environment: dict[str, str]

    def url(self, user: str, *, with_password: bool = True) -> str:
        said = f":{quote(self.secrets[user] + _ODD, safe='')}" if with_password else ""
        return self.server.url(user=f"{user}{said}")

    def write_pgpass(self, path: Path) -> None:
        path.write_text("".join(f"*:*:*:{user}:{self.secrets[user]}{_ODD}\n" for user in ("reader", "writer")))
        path.chmod(0o600)
        self.environment["PGPASSFILE"] = str(path)


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    rules = postgres.folder / "pg_hba.conf"
    rules.write_text("local all reader,writer scram-sha-256\n" + rules.read_text())
    postgres.execute(
        "SELECT pg_reload_conf()",
        "CREATE ROLE reader LOGIN",
        "CREATE ROLE writer LOGIN SUPERUSER",
        "CREATE TABLE letters (id int PRIMARY KEY, text text)",
        "INSERT INTO letters SELECT i, CASE i WHEN 7 THEN '!raise' ELSE 'text ' || i END FROM generate_series(1, 60) i",
    )
    return postgres


@pytest.fixture
def planted(server: PostgresServer) -> Planted:
    names = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OPENAI_API_KEY")
    secrets = {name: f"planted-{uuid.uuid4().hex}" for name in ("reader", "writer", *names)}
    server.execute(
        *(f"ALTER ROLE {user} PASSWORD '{secrets[user]}{_ODD}'" for user in ("reader", "writer")),
        "GRANT SELECT ON letters TO reader",
        "DROP TABLE IF EXISTS answers",
    )
    others = {name: secrets[name] for name in names}
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    return Planted(server, secrets, {**os.environ, **others, "PYTHONPATH": path})


def test_planted_secrets_are_nowhere(
    place: Place, planted: Planted, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A load by a task of the user's, named in a spec. The first try loses its right to read, the second finishes."""
    mine, run = tmp_path_factory.mktemp("mine"), tmp_path / "run"
    watch = Watch(tmp_path / "said.txt")

    def load(*, with_password: bool = place.name != "slurm", once_planned: Callable[[], Any] | None = None) -> int:
        spec = _write_spec(mine / "spec.toml", place, planted, with_password=with_password)
        words = command("load", "--spec", spec, "--out", run)
        return watch.run(words, planted.environment, run / "plan.json", once_planned)

    if place.name == "slurm":
        assert load(with_password=True) == 2
        assert "A password in a URL cannot be passed to a Slurm job" in watch.said
        assert ".pgpass" in watch.said
        planted.write_pgpass(mine / "pgpass")
    revoke = partial(planted.server.execute, "REVOKE SELECT ON letters FROM reader")
    assert load(once_planned=revoke) != 0, watch.said
    assert "permission denied for table letters" in watch.said
    planted.server.execute("GRANT SELECT ON letters TO reader")
    assert load() == 0, watch.said
    assert planted.server.execute("SELECT count(*) FROM answers") == [(59,)]
    assert Run(run).status().errors == 1

    roots = [tmp_path, *place.folders, *(Path(os.environ[f"XDG_{name}_HOME"]) for name in ("CACHE", "CONFIG"))]
    files = dict(_read_all(roots))
    assert any(b"permission denied for table letters" in data for path, data in files.items() if path.suffix == ".log")
    assert any("-m shardmill.worker" in line for line in watch.command_lines)
    for name, secret in planted.secrets.items():
        found = [path for path, data in files.items() if secret.encode() in data]
        if place.name == "slurm" and name in planted.environment:
            # sbatch sends along the environment of whoever calls it, and Slurm keeps it until the job has ended.
            found = [path for path in found if path.name != "environment"]
        assert found == [], name
        assert [line for line in watch.command_lines if secret in line] == [], name


def _read_all(roots: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """All files below, of which some may go while they are read."""
    for root in roots:
        for folder, _, names in os.walk(root):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        yield path, path.read_bytes()


class Watch:
    """Runs commands; notes what they say, and the command lines of all processes meanwhile."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.command_lines: set[str] = set()

    @property
    def said(self) -> str:
        return self._output.read_text()

    def run(self, words: list[str], environment: dict[str, str], awaited: Path, act: Callable[[], Any] | None) -> int:
        """Act once the awaited file is there."""
        with open(self._output, "ab") as output:
            process = subprocess.Popen(words, env=environment, stdout=output, stderr=output)

        def is_over() -> bool:
            nonlocal act
            if act is not None and awaited.exists():
                act()
                act = None
            self._look()
            return process.poll() is not None

        try:
            wait_for(is_over)
        finally:
            process.kill()
        return process.wait()

    def _look(self) -> None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                self.command_lines.add(file.read().replace(b"\0", b" ").decode(errors="replace"))


def _write_spec(path: Path, place: Place, planted: Planted, *, with_password: bool) -> Path:
    """TOML, whose strings and arrays are those of JSON."""
    tables = {
        "work": {
            "source": planted.url("reader", with_password=with_password),
            "query": "SELECT id, text FROM letters",
            "text": "text",
            "id": "id",
            "task": "tests.support.corpora:UsersTask",
        },
        "work.params": {"delay_s": 0.1},
        "work.to": {"url": planted.url("writer", with_password=with_password), "table": "answers"},
        "execution": {
            "engine": place.name,
            "shard_bytes": 200,
            "max_errors": "100%",
            "max_restarts": 0,
            "index": "none",
        }
        | {key: value for key, value in place.execution.items() if key != "engine_options"},
        "execution.engine_options": place.execution.get("engine_options", {}),
    }
    lines = [
        line
        for name, table in tables.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


class _Closed(BaseHTTPRequestHandler):
    asked_with: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked_with.append(self.headers.get("Authorization", ""))
        self.send_error(401)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


def test_the_password_of_a_web_address_is_neither_used_nor_shown(
    shardmill: Cli, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Closed)
    Thread(target=server.serve_forever, daemon=True).start()
    spec = tmp_path_factory.mktemp("mine") / "spec.toml"
    source = f"http://ann:planted-word@127.0.0.1:{server.server_port}/items.jsonl"
    spec.write_text(f'[work]\nsource = "{source}"\ntext = "text"\ntask = "shardmill.testing:FakeTask"\n')
    try:
        said = shardmill("run", "--spec", spec, "--out", tmp_path / "run")
    finally:
        server.shutdown()
        server.server_close()
    assert_told(said, 1, "access is denied (401)")
    assert base64.b64encode(b"ann:planted-word").decode() not in " ".join(_Closed.asked_with)
    assert _Closed.asked_with
    assert "planted-word" not in said.err
    assert [p for p in tmp_path.rglob("*") if p.is_file() and b"planted-word" in p.read_bytes()] == []
