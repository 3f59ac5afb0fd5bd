"""A loader that is killed, a load that is started over, and a server that says no for a while."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shardmill.core.errors import DatabaseError, RunExists
from shardmill.plan.spec import Spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.corpora import fake_rows
from tests.support.services import PostgresServer
from tests.support.tables import finish_process, place, spare_the_disk, start_process, table_spec, work_at
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.services

ROWS = fake_rows(240)
BATCH = 16


@pytest.fixture
def source(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(ROWS)


def assert_loaded(postgres: PostgresServer, table: str, dims: int = 8) -> None:
    """Every row once, with the vector of its text."""
    found = postgres.execute(f"SELECT id, text, embedding::text FROM {table} ORDER BY id")
    assert [(id, text) for id, text, _ in found] == sorted((row["id"], row["text"]) for row in ROWS)
    for _, text, vector in found:
        assert np.allclose(json.loads(vector), fake_vector(text, dims), atol=1e-5)


def assert_whole_batches(postgres: PostgresServer, table: str) -> int:
    """What is in the table is what the ledger says, to the row."""
    ((rows, sent),) = postgres.execute(
        f"SELECT (SELECT count(*) FROM {table}), sum(sent) FROM shardmill.batches WHERE table_name = '{table}'"
    )
    assert rows == sent
    return int(rows)


def wait_for_rows(postgres: PostgresServer, table: str, least: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while postgres.execute(f"SELECT to_regclass('{table}')")[0][0] is None and time.monotonic() < deadline:
        time.sleep(0.02)
    while postgres.execute(f"SELECT count(*) FROM {table}")[0][0] < least and time.monotonic() < deadline:
        time.sleep(0.02)


def load(spec: Spec, run: Path, *, fresh: bool = False) -> Run:
    return start(spec, run, engine=InProcessEngine(), fresh=fresh)


def test_the_loader_itself_is_killed_and_started_again(postgres: PostgresServer, source: Path, tmp_path: Path) -> None:
    """SIGKILL to the parent; its worker is left alone with its connection. While it lives, nothing is deleted."""
    toml, run = tmp_path / "spec.toml", tmp_path / "runs" / "orphaned"
    toml.write_text(
        f'[work]\nsource = "{source}"\ntask = "shardmill.testing:FakeTask"\nparams = {{delay_s = 0.05}}\n'
        f"[execution]\nbatch_rows = {BATCH}\nshard_bytes = 4000\nbatch_tokens = 400\nlease_s = 2.0\nworkers = 1\n"
    )
    to = ["--text", "text", "--id", "id", "--to", postgres.url(), "--table", "orphaned", "--index", "none"]
    words = [sys.executable, "-m", "shardmill", "load", "--spec", str(toml), *to]
    first = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_rows(postgres, "orphaned", BATCH)
    with pytest.raises(RunExists, match="workers are working on it"):
        load(table_spec(source, postgres.url(), "orphaned"), run, fresh=True)
    first.kill()
    first.wait()
    assert BATCH <= assert_whole_batches(postgres, "orphaned") < len(ROWS)
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert again.returncode == 0, again.stderr
    assert_loaded(postgres, "orphaned")
    assert Run(run).verify().verified


def test_fresh_in_another_folder_while_rows_are_loaded(postgres: PostgresServer, source: Path, tmp_path: Path) -> None:
    """The records of a load are deleted under its feet. It may end with an error, and never with a wrong table."""
    spec = table_spec(source, postgres.url(), "started_over", params={"delay_s": 0.02})
    first = start_process(work_at, place(spec, tmp_path / "first"))
    wait_for_rows(postgres, "started_over", 3 * BATCH)
    load(spec, tmp_path / "second", fresh=True)
    finish_process(first)
    for run in ("first", "second"):
        load(spec, tmp_path / run)
    assert_loaded(postgres, "started_over")
    batches = "SELECT sum(rows) FROM shardmill.batches WHERE table_name = 'started_over'"
    assert postgres.execute(batches)[0][0] == len(ROWS)
    assert Run(tmp_path / "second").verify().verified


def make_trouble(postgres: PostgresServer, table: str, code: str, when: str) -> None:
    """An error of the server's, of this code, for the INSERTs into a table that `when` says; `n` counts them."""
    postgres.execute(
        f"CREATE SEQUENCE {table}_n",
        f"CREATE FUNCTION {table}_trouble() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN"
        f" n := nextval('{table}_n');"
        f" IF {when} THEN RAISE EXCEPTION 'trouble' USING ERRCODE = '{code}'; END IF; RETURN NULL; END $$",
        f"CREATE TRIGGER trouble AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_trouble()",
    )


@pytest.mark.parametrize("code", ["40P01", "40001", "55P03", "57P01"])
def test_what_passes_is_tried_again(postgres: PostgresServer, source: Path, tmp_path: Path, code: str) -> None:
    """A deadlock, a serialization failure, a lock not given in time, a server that shuts down."""
    table = f"passing_{code.lower()}"
    spec = table_spec(source, postgres.url(), table)
    place(spec, tmp_path / "run")
    make_trouble(postgres, table, code, "n IN (2, 3, 7)")
    load(spec, tmp_path / "run")
    batches = postgres.execute(f"SELECT count(*) FROM shardmill.batches WHERE table_name = '{table}' AND sent > 0")
    assert postgres.execute(f"SELECT last_value FROM {table}_n")[0][0] == batches[0][0] + 3
    assert_loaded(postgres, table)


def test_a_disk_that_is_said_to_be_full(postgres: PostgresServer, source: Path, tmp_path: Path) -> None:
    spec = table_spec(source, postgres.url(), "said_full")
    place(spec, tmp_path / "run")
    make_trouble(postgres, "said_full", "53100", "n > 5")
    with pytest.raises(DatabaseError, match="disk is full"):
        load(spec, tmp_path / "run")
    assert 4 * BATCH < assert_whole_batches(postgres, "said_full") <= 5 * BATCH
    postgres.execute("DROP TRIGGER trouble ON said_full")
    load(spec, tmp_path / "run")
    assert_loaded(postgres, "said_full")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk that a server just fits on."""
    folder = Path(tempfile.mkdtemp(prefix="shardmill-pg-"))
    words = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=0755", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_server_whose_disk_fills_up(small_disk: Path, source: Path, tmp_path: Path) -> None:
    """240 vectors of 4 KB, and room for a quarter of them; with more room the same command resumes."""
    server = PostgresServer(small_disk)
    try:
        spare_the_disk(server)
        spec = table_spec(source, server.url(), "wide", params={"dims": 1024})
        place(spec, tmp_path / "run")
        filler = small_disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 300_000))
        with pytest.raises(DatabaseError, match="the server's disk is full") as caught:
            load(spec, tmp_path / "run")
        assert "the same command resumes" in (caught.value.hint or "")
        assert 0 < assert_whole_batches(server, "wide") < len(ROWS)
        filler.unlink()
        run = load(spec, tmp_path / "run")
        assert_loaded(server, "wide", 1024)
        assert run.verify().verified
    finally:
        server.stop()


def test_a_value_too_long_for_its_column_is_set_aside_and_not_cut(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    postgres.execute(
        "CREATE EXTENSION IF NOT EXISTS vector",
        "CREATE TABLE narrow (id text PRIMARY KEY, text text, name varchar(20), embedding vector(8), text_digest bytea,"
        " search tsvector GENERATED ALWAYS AS (to_tsvector('english', coalesce(text, ''))) STORED)",
    )
    rows = [{**row, "name": "x" * (21 if i in (3, 90) else 20)} for i, row in enumerate(fake_rows(100))]
    run = load(table_spec(write_jsonl(rows), postgres.url(), "narrow", keep="text,name"), tmp_path / "run")
    assert {e["row"]: e["reason"] for e in run.errors()} == dict.fromkeys(
        (3, 90), "PostgreSQL: value too long for type character varying(20)"
    )
    assert postgres.execute("SELECT count(*), min(length(name)) FROM narrow") == [(98, 20)]
