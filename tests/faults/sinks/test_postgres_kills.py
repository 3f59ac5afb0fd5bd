"""Whatever dies and whenever: after a resume the table has every row exactly once, as if nothing had happened.

Workers are real processes that are really killed, and so is the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from shardmill.ledger import Ledger
from shardmill.postgres.batches import BatchLedger as Batches
from shardmill.run import Run, start
from shardmill.run.planner import result_schema
from shardmill.sinks.table import prepare
from shardmill.testing import STEPS, TABLE_STEPS, InProcessEngine, crash_at, crash_somewhere
from tests.support.services import PostgresServer
from tests.support.tables import (
    ROWS,
    count_texts,
    finish_process,
    place,
    spare_the_disk,
    start_process,
    table_spec,
    work_at,
)

pytestmark = pytest.mark.services

CRASHES = 200
DIGEST = "SELECT count(*), count(DISTINCT id), md5(string_agg(id || text || embedding::text, '|' ORDER BY id)) FROM {}"


def _work_until(run: str, step: str, after: int) -> None:
    work_at(run, crash_at(step, after))


def _work_until_seed(run: str, seed: int) -> None:
    work_at(run, crash_somewhere(seed, (*STEPS, *TABLE_STEPS)))


def digest(postgres: PostgresServer, table: str) -> Any:
    return postgres.execute(DIGEST.format(table))[0]


@pytest.fixture
def source(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(ROWS)


@pytest.fixture(scope="module")
def undisturbed(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    spare_the_disk(postgres)
    folder = tmp_path_factory.mktemp("undisturbed")
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    start(table_spec(path, postgres.url(), "undisturbed"), folder / "run", engine=InProcessEngine())
    seen = digest(postgres, "undisturbed")
    assert seen[:2] == (240, 240)
    return seen


def assert_as_if_nothing_had_happened(postgres: PostgresServer, run: str, table: str, undisturbed: Any) -> None:
    assert digest(postgres, table) == undisturbed
    found = Run(run)
    commits = found.ledger.commits.read_complete(found.plan)
    assert sum(c.rows for c in commits) == sum(c.lines for c in commits) == len(ROWS)
    with psycopg.connect(postgres.url()) as connection:
        shards = Batches(found.plan.id, prepare(found.plan, result_schema(found.plan))).shards(connection)
    for commit in commits:
        assert shards[commit.shard].complete
        assert shards[commit.shard].digest.hex() == commit.digest
        assert shards[commit.shard].without_gap
    assert sum(s.total("inserted") for s in shards.values()) == len(ROWS)
    assert sum(s.total("updated") for s in shards.values()) == 0


@pytest.mark.parametrize("step", [*STEPS, *TABLE_STEPS])
def test_a_kill_at_any_step(
    postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any, step: str
) -> None:
    table = f"step_{step.replace('-', '_')}"
    run = place(table_spec(source, postgres.url(), table), tmp_path / "run")
    assert finish_process(start_process(_work_until, run, step, 1)) == -signal.SIGKILL
    assert finish_process(start_process(work_at, run)) == 0
    assert_as_if_nothing_had_happened(postgres, run, table, undisturbed)


@pytest.mark.parametrize("seed", range(10))
def test_hundreds_of_kills_at_seeded_moments(
    postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any, seed: int
) -> None:
    """Two workers at once, both killed and replaced, over and over."""
    choose = random.Random(seed)
    # Which step a worker dies at is drawn; how far it comes before depends on the machine.
    spec = table_spec(source, postgres.url(), f"seed_{seed}", max_restarts=1000)
    run = place(spec, tmp_path / "run")
    for _ in range(CRASHES // 20):
        pair = [start_process(_work_until_seed, run, choose.randrange(1 << 30)) for _ in range(2)]
        for process in pair:
            finish_process(process)
    assert finish_process(start_process(work_at, run)) == 0
    assert_as_if_nothing_had_happened(postgres, run, f"seed_{seed}", undisturbed)


def test_what_is_loaded_is_not_computed_again(
    postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in another run folder either: the plan is known by what it is of."""
    run = place(table_spec(source, postgres.url(), "elsewhere", shard_bytes=100_000), tmp_path / "first")
    assert finish_process(start_process(_work_until, run, "batch-committed", 6)) == -signal.SIGKILL
    loaded = postgres.execute("SELECT count(*) FROM elsewhere")[0][0]
    assert loaded == 7 * 16
    seen = count_texts(monkeypatch)
    again = place(table_spec(source, postgres.url(), "elsewhere", shard_bytes=100_000), tmp_path / "second")
    work_at(again)
    assert len(seen) == len(ROWS) - loaded
    assert_as_if_nothing_had_happened(postgres, again, "elsewhere", undisturbed)


def test_a_shard_that_is_in_the_table_is_committed_without_being_read(
    postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place(table_spec(source, postgres.url(), "uncommitted"), tmp_path / "run")
    work_at(run)
    ledger = Ledger(run)
    for entry in list(ledger.store.list("commits/")):
        ledger.store.delete(entry.key)
    seen = count_texts(monkeypatch)
    work_at(run)
    assert seen == []
    assert_as_if_nothing_had_happened(postgres, run, "uncommitted", undisturbed)


def test_two_loaders_with_batches_of_two_sizes_on_one_table(
    postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any
) -> None:
    """Two run folders of one plan do not know of each other; the table's ledger keeps them apart."""
    spec = [table_spec(source, postgres.url(), "shared", batch_rows=n, shard_bytes=100_000) for n in (7, 16)]
    runs = [place(s, tmp_path / f"run{i}") for i, s in enumerate(spec)]
    pair = [start_process(work_at, run) for run in runs]
    assert [finish_process(p) for p in pair] == [0, 0]
    for run in runs:
        assert_as_if_nothing_had_happened(postgres, run, "shared", undisturbed)


@pytest.fixture
def own_server() -> Any:
    """A server that may be killed."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="shardmill-pg-"))
    server = PostgresServer(folder)
    spare_the_disk(server)
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_the_server_is_killed_and_restarted_while_rows_are_loaded(
    own_server: PostgresServer, postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any
) -> None:
    """SIGKILL to all of it, three times; the workers wait, reconnect, and write what was lost again."""
    url = own_server.url()
    spec = table_spec(source, url, "undisturbed", params={"delay_s": 0.05}, batch_tokens=200)
    run = place(spec, tmp_path / "run")
    pair = [start_process(work_at, run) for _ in range(2)]
    for _ in range(3):
        time.sleep(0.4)
        kill_server(own_server)
        time.sleep(0.2)
        own_server.start()
    assert [finish_process(p) for p in pair] == [0, 0]
    assert_as_if_nothing_had_happened(own_server, run, "undisturbed", undisturbed)


def kill_server(server: PostgresServer) -> None:
    """As a machine that loses power: nothing of the server is left, and nothing was flushed on its way out."""
    pid = int((server.folder / "postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
            break
        time.sleep(0.05)
    for left in ("postmaster.pid", ".s.PGSQL.5432.lock", ".s.PGSQL.5432"):
        (server.folder / left).unlink(missing_ok=True)


def test_a_lost_connection_is_opened_again(
    postgres: PostgresServer, source: Path, tmp_path: Path, undisturbed: Any
) -> None:
    """Sessions are ended by the server again and again while rows are loaded."""
    run = place(table_spec(source, postgres.url(), "cut_off", params={"delay_s": 0.02}), tmp_path / "run")
    worker = start_process(work_at, run)
    ended = 0
    while worker.is_alive():
        found = postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shardmill'"
        )
        ended += len(found)
        time.sleep(0.05)
    assert finish_process(worker) == 0
    assert ended
    assert_as_if_nothing_had_happened(postgres, run, "cut_off", undisturbed)
