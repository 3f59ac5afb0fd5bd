"""Through PgBouncer in transaction mode: each transaction may meet another session of the server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from shardmill.run import Run
from tests.support.corpora import fake_rows
from tests.support.debian import require
from tests.support.services import PostgresServer
from tests.support.tables import finish_process, place, start_process, table_spec, work_at
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.services


@pytest.fixture
def pooled(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a pooler with two sessions of the server for all who come."""
    program = require("pgbouncer", "pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="shardmill-pb-"))
    folder.chmod(0o777)
    server = psycopg.conninfo.conninfo_to_dict(postgres.url())["host"]
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\npostgres = host={server} user=postgres dbname=postgres\n"
        f"[pgbouncer]\nunix_socket_dir = {folder}\nlisten_port = 6432\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = 2\nlogfile = {folder}/log\nadmin_users = postgres\n"
    )
    # It does not run as root, and the server's socket is for the server's user.
    user = ["-u", Path(server).owner()] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, "-q", *user, str(folder / "pgbouncer.ini")])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / ".s.PGSQL.6432").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        yield f"postgresql://postgres@/postgres?host={folder}&port=6432"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)


def test_two_workers_share_the_sessions_of_a_pooler(
    pooled: str, postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """Six connections of theirs and two of the server's; nothing of a transaction is left in these."""
    run = place(table_spec(write_jsonl(fake_rows(600)), pooled, "pooled", changed_only=True), tmp_path / "run")
    pair = [start_process(work_at, run) for _ in range(2)]
    assert [finish_process(process) for process in pair] == [0, 0]
    assert postgres.execute("SELECT count(*), count(embedding) FROM pooled") == [(600, 600)]
    assert Run(run).verify().verified
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        left = connection.execute("SELECT count(*) FROM pg_class WHERE relname = 'shardmill_batch'").fetchone()
        kept = connection.execute(
            "SELECT current_setting('statement_timeout'), (SELECT count(*) FROM pg_prepared_statements)"
        )
        assert (left, kept.fetchone()) == ((0,), ("0", 0))
    stats = pooled.replace("/postgres?", "/pgbouncer?")
    with psycopg.connect(stats, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        servers = connection.execute("SHOW SERVERS").fetchall()
    assert 1 <= len(servers) <= 2
