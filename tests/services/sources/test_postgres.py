"""Queries of a real PostgreSQL: cut by keys, read while rows come and go and while it is restarted, passwords kept."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill import StreamingDatasetSplitter
from shardmill.core import passwords
from shardmill.core.errors import DatabaseError, ShardmillError, SourceError, StaleResume
from shardmill.plan.spec import make_spec
from shardmill.postgres import reading
from shardmill.run import Run, start
from shardmill.sources import Fields, discover, open_source
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_spec
from tests.support.services import PostgresServer
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.services

QUERY = "SELECT id, text FROM docs WHERE text NOT LIKE '%gone%' ORDER BY id DESC;"
SECRET = "hunter2%40/ö"


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    """With a user whose password is asked for."""
    rules = postgres.folder / "pg_hba.conf"
    rules.write_text("local all asked scram-sha-256\n" + rules.read_text())
    postgres.execute(
        "SELECT pg_reload_conf()",
        f"CREATE ROLE asked LOGIN PASSWORD '{SECRET}'",
        "CREATE ROLE stranger LOGIN",
        "CREATE TYPE animal AS ENUM ('zebra', 'Ant', 'ape')",
    )
    return postgres


@pytest.fixture
def docs(server: PostgresServer) -> PostgresServer:
    """300 rows with odd ids in a table of their own."""
    server.execute(
        "DROP TABLE IF EXISTS docs",
        "CREATE TABLE docs (id int PRIMARY KEY, text text)",
        "INSERT INTO docs SELECT 2 * i + 1, 'text ' || i || repeat(' x', i % 20) FROM generate_series(0, 299) i",
        "GRANT SELECT ON docs TO asked",
    )
    return server


def ids(run: Run) -> list[Any]:
    return run.table().column("id").to_pylist()  # type: ignore[no-any-return]


def test_a_run_is_cut_by_keys_and_verified(docs: PostgresServer, tmp_path: Path) -> None:
    run = start(fake_spec(docs.url(), query=QUERY), tmp_path / "run", engine=InProcessEngine(2))
    shards = run.plan.shards
    assert len(shards) > 4
    assert (shards[0].low, shards[-1].high) == (None, "599")
    assert max(s.stop - s.start for s in shards) <= 2 * min(s.stop - s.start for s in shards[:-1])
    assert ids(run) == list(range(1, 600, 2))
    report = run.verify()
    assert report.verified, report
    assert "all 300 rows of the query were read" in [c.seen for c in report.checks]


def test_rows_that_come_and_go_while_a_run_is_under_way(docs: PostgresServer, tmp_path: Path) -> None:
    """Rows that were there throughout come out once; others as the range they are in is read before or after."""
    spec = fake_spec(docs.url(), query=QUERY)
    seen = []

    def change(step: str, shard: int) -> None:
        if step == "committed" and not seen:
            seen.append(shard)
            docs.execute(
                "DELETE FROM docs WHERE id BETWEEN 401 AND 420",
                "INSERT INTO docs VALUES (500, 'within'), (-5, 'below, after it was read'), (1000, 'above')",
                "UPDATE docs SET text = 'gone' WHERE id = 599",
            )

    run = start(spec, tmp_path / "run", engine=InProcessEngine(on_step=change))
    found = ids(run)
    assert seen == [0]
    assert len(found) == len(set(found))
    throughout = {i for i in range(1, 600, 2) if not 401 <= i <= 420} - {599}
    assert set(found) == throughout | {500}
    assert run.verify().verified


def test_a_resume_goes_on_with_the_plan_although_the_table_changed(docs: PostgresServer, tmp_path: Path) -> None:
    spec = fake_spec(docs.url(), query=QUERY)

    class Interrupted(Exception):
        pass

    def interrupt(step: str, shard: int) -> None:
        if step == "committed" and shard >= 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        start(spec, tmp_path / "run", engine=InProcessEngine(on_step=interrupt))
    docs.execute(
        "INSERT INTO docs SELECT i, 'new' FROM generate_series(1000, 1500) i", "DELETE FROM docs WHERE id = 399"
    )
    elsewhere = fake_spec(docs.url(database="postgres") + "&connect_timeout=9", query=QUERY)
    run = start(elsewhere, tmp_path / "run", engine=InProcessEngine())
    assert ids(run) == [i for i in range(1, 600, 2) if i != 399]
    with pytest.raises(StaleResume, match="query was"):
        start(fake_spec(docs.url(), query="SELECT id, text FROM docs"), tmp_path / "run", engine=InProcessEngine())
    docs.execute("DROP DATABASE IF EXISTS other", "CREATE DATABASE other TEMPLATE postgres")
    with pytest.raises(StaleResume, match=r"the database was .*/postgres and is .*/other"):
        start(fake_spec(docs.url(database="other"), query=QUERY), tmp_path / "run", engine=InProcessEngine())


@pytest.fixture
def long_docs(server: PostgresServer) -> PostgresServer:
    """More rows than a worker holds, so that its cursor is open while it works."""
    server.execute(
        "DROP TABLE IF EXISTS long_docs",
        "CREATE TABLE long_docs (id int PRIMARY KEY, text text)",
        "INSERT INTO long_docs SELECT i, 'text ' || i FROM generate_series(1, 40000) i",
    )
    return server


CURSORS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'shardmill' AND query LIKE 'FETCH%'"


def test_a_connection_cut_and_a_server_restarted_in_the_middle_of_a_shard(
    long_docs: PostgresServer, tmp_path: Path
) -> None:
    """While the task is held, the worker has read as much as it holds. The shard begins again after each loss."""

    def disturb() -> None:
        wait_for((tmp_path / "held-1").exists)
        assert long_docs.execute(CURSORS.replace("SELECT pid", "SELECT pg_terminate_backend(pid)")) == [(True,)]
        (tmp_path / "go-1").touch()
        wait_for((tmp_path / "held-2").exists)
        assert len(long_docs.execute(CURSORS)) == 1
        long_docs.stop()
        (tmp_path / "go-2").touch()
        (tmp_path / "go-3").touch()
        long_docs.start()

    work = {"source": long_docs.url(), "query": "SELECT id, text FROM long_docs", "text": "text", "id": "id"}
    task = {"task": "tests.support.corpora:HeldTask", "params": {"folder": str(tmp_path)}}
    spec = make_spec({**work, **task}, {"shard_bytes": 10_000_000, "workers": 1, "device": "cpu", "lease_s": 60.0})
    with ThreadPoolExecutor(1) as beside:
        disturbed = beside.submit(disturb)
        run = start(spec, tmp_path / "run")
        disturbed.result()
    assert sum(p.read_text().count("went away") for p in (tmp_path / "run/logs").iterdir()) == 2
    assert ids(run) == list(range(1, 40001))


def test_a_password_is_in_no_message_and_not_needed_in_the_url(
    docs: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = docs.url().partition("?host=")[2]
    bare, written = docs.url(user="asked"), "hunter2%2540%2F%C3%B6"
    url = f"postgresql://asked:{written}@/postgres?host={socket}"

    def refused(place: str) -> str:
        with pytest.raises(ShardmillError) as raised:
            start(fake_spec(place, query=QUERY), tmp_path / "none", engine=InProcessEngine())
        said = "".join(traceback.format_exception(raised.value))
        assert "hunter2" not in said
        assert "wrongword" not in said
        return said

    assert "no password supplied" in refused(bare)
    assert "password authentication failed" in refused(url.replace(written, "wrongword"))
    for place in (
        f"{url}&password=hunter2&nonsense=1",
        url.replace("postgresql", "mysql"),
        url.replace(written, "hunter2/x"),
    ):
        refused(place)
    with pytest.raises(ShardmillError) as raised:
        make_spec({"source": url, "text": "", "nonsense": 1})
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))

    run = start(fake_spec(url, query=QUERY), tmp_path / "run", engine=InProcessEngine())
    assert bare in (tmp_path / "run" / "plan.json").read_text()
    passwords._known.clear()
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert run.verify().verified


def test_a_place_gives_up_its_passwords() -> None:
    bare = passwords.withhold("postgresql://u:p%40ss@h1:1,h2:2/d?password=q&sslmode=require&sslpassword=r%26")
    assert bare == "postgresql://u@h1:1,h2:2/d?sslmode=require"
    assert passwords.withheld(bare) == {"password": "q", "sslpassword": "r&"}
    assert passwords.redact("so it is q") == "so it is ***"
    for place in ("postgresql://", "postgresql:///d", "postgresql://u@/d?host=/x", "s3://b/a:b@c", "data/a:b@c.jsonl"):
        assert passwords.withhold(place) == place
        assert passwords.withheld(place) == {}
    assert passwords.withhold("postgresql://u:a?b@h/d") == "postgresql://u@h/d"


KEYS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "int": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "text": ("text", st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))),
    "text of a language": ("text COLLATE {language}", st.text("aAäbBzZ_ -'\\%", max_size=4)),
    "padded text": ("char(4)", st.text("aB ", max_size=4)),
    "enum": ("animal", st.sampled_from(["zebra", "Ant", "ape"])),
    "uuid": ("uuid", st.uuids()),
    "time": ("timestamptz", st.datetimes(timezones=st.just(datetime.UTC))),
    "numeric": ("numeric", st.decimals(allow_nan=False, allow_infinity=False)),
    "float": ("float8", st.floats()),
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_row_once_whatever_the_key(server: PostgresServer, kind: str) -> None:
    import psycopg

    name, values = KEYS[kind]
    if "{language}" in name:
        # An order that is not that of bytes, where the machine has one.
        order = "collname ~* '^(en|de|fr)_' DESC, collname = 'C' DESC"
        found = f"SELECT quote_ident(collname) FROM pg_collation ORDER BY {order}"
        name = name.format(language=server.execute(found)[0][0])
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS keys")
        connection.execute(f"CREATE TABLE keys (id {name}, text text)")

        @given(st.lists(st.one_of(values, values, st.none()), min_size=1, max_size=40), st.integers(1, 12))
        @settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
        def check(keys: list[Any], shards: int) -> None:
            connection.execute("TRUNCATE keys")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO keys VALUES (%s, %s)", [(k, f"row {i}") for i, k in enumerate(keys)])
            fields = Fields("text", ("id",), (), "SELECT * FROM keys")
            stat = discover([server.url()], fields)
            source = open_source(stat, fields)
            pieces = source.shards(stat.size_bytes // shards + 1)
            texts = [text for s in pieces for b in source.read(s) for text in b.texts.to_pylist()]
            assert sorted(texts) == sorted(f"row {i}" for i in range(len(keys)))

        check()


def test_types_are_kept(server: PostgresServer, tmp_path: Path) -> None:
    query = """
        SELECT i AS id, 'text' AS text, i::smallint AS s, i::bigint AS b, i / 4.0::float8 AS f, i::float4 AS r,
               i > 1 AS t, ('00000000-0000-0000-0000-00000000000' || i)::uuid AS u, i / 3.0::numeric(9, 2) AS n,
               (i + 0.5)::numeric AS m, timestamp '2026-01-02 03:04:05.6' AS ts,
               CASE i WHEN 2 THEN 'infinity' ELSE timestamptz '0044-03-15 12:00+01 BC' END AS tz,
               date '2026-01-02' AS d, jsonb_build_object('a', i) AS j, ARRAY[i] AS a, 'x'::"char" AS c
        FROM generate_series(1, 2) i"""
    work = {
        "source": server.url(),
        "query": query,
        "text": "{text} {i} {d} {j} {t} {f}".replace("{i}", "{id}"),
        "id": "id",
        "keep": "s,b,f,r,t,u,n,m:float64,ts,tz,d,j,a,c",
        "task": "shardmill.testing:FakeTask",
    }
    run = start(make_spec(work, {"max_errors": "100%"}), tmp_path / "run", engine=InProcessEngine())
    assert {n: k for n, k in run.plan.stat.columns.items() if n not in "unjac"} == {
        "id": "int32",
        "s": "int16",
        "b": "int64",
        "f": "double",
        "r": "float",
        "t": "bool",
        "m": "double",
        "ts": "timestamp[us]",
        "tz": "timestamp[us, tz=UTC]",
        "d": "date32[day]",
    }
    table = run.table().drop_columns(["row", "tz", "embedding"])
    row = table.to_pylist()[0]
    assert row | {"n": 0} == {
        "id": 1,
        "s": 1,
        "b": 1,
        "f": 0.25,
        "r": 1.0,
        "t": False,
        "u": "00000000-0000-0000-0000-000000000001",
        "n": 0,
        "m": 1.5,
        "ts": datetime.datetime(2026, 1, 2, 3, 4, 5, 600000),
        "d": datetime.date(2026, 1, 2),
        "j": '{"a": 1}',
        "a": "{1}",
        "c": "x",
    }
    (error,) = run.errors()
    assert error["reason"].startswith("'tz' is \"infinity\", which timestamp[us, tz=UTC] cannot hold")
    fields = Fields(work["text"], ("id",), (), query)
    stat = discover([server.url()], fields)
    source = open_source(stat, fields)
    texts = [t for s in source.shards(1 << 20) for b in source.read(s) for t in b.texts.to_pylist()]
    assert texts[0] == 'text 1 2026-01-02 {"a": 1} false 0.25'


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        (
            "SELECT id, text\nFORM docs",
            r"syntax error at or near \"docs\" \(line 2, column 6 of the query: 'docs'\)",
            "",
        ),
        ("SELECT id, txt FROM docs", r'column "txt" does not exist \(line 1, column 12', "docs.text"),
        ("SELECT id, text FROM dosc", 'relation "dosc" does not exist', "Check the name"),
        ("SELECT id, id, text FROM docs", "two columns named 'id'", "AS"),
        ("SELECT id AS text, id FROM docs", "'text' in the query holds a number, not text", "CAST"),
        ("SELECT id, text, 'x'::bytea AS content FROM docs", "'content' in the query is binary", "encode"),
        ("SELECT id, nextval('counter')::text AS text FROM docs", "The query writes", "SELECT"),
        ("SELECT id, text FROM docs FOR UPDATE", "The query writes", "SELECT"),
        ("UPDATE docs SET id = 1", "begins with 'update'", "SELECT"),
        ("SELECT id, (1 / (id - id))::text AS text FROM docs", "division by zero", ""),
    ],
)
def test_what_is_wrong_with_a_query_is_said(docs: PostgresServer, query: str, message: str, hint: str) -> None:
    docs.execute("CREATE SEQUENCE IF NOT EXISTS counter")
    keep = ("content",) if "content" in query else ()
    with pytest.raises((SourceError, DatabaseError), match=message) as raised:
        discover([docs.url()], Fields("text", ("id",), keep, query))
    assert hint in raised.value.hint


def test_what_is_wrong_with_a_server_is_said(docs: PostgresServer) -> None:
    fields = Fields("text", ("id",), (), "SELECT id, text FROM docs")

    def said(url: str) -> str:
        with pytest.raises(DatabaseError) as raised:
            discover([url], fields)
        return str(raised.value)

    assert "Connection refused" in said("postgresql://u@127.0.0.1:1/d")
    assert "Check host and port" in said("postgresql://u@no-such-host.invalid/d")
    assert 'database "nothing" does not exist' in said(docs.url(database="nothing"))
    assert "permission denied for table docs" in said(docs.url(user="stranger"))
    assert "GRANT SELECT" in said(docs.url(user="stranger"))
    assert 'role "nobody" does not exist' in said(docs.url(user="nobody"))
    assert "postgresql://USER@HOST" in said("postgresql://u@h/d?nonsense=1")
    with pytest.raises(SourceError, match="is a database") as raised:
        discover([docs.url()], Fields("text"))
    assert "--query" in raised.value.hint


def test_a_key_without_an_index_is_warned_of(docs: PostgresServer) -> None:
    def notes(query: str) -> list[str]:
        fields = Fields("text", ("id",), (), query)
        source = open_source(discover([docs.url()], fields), fields)
        source.shards(1000)
        return source.notes  # type: ignore[attr-defined, no-any-return]

    assert notes("SELECT id, text FROM docs") == []
    assert "No index on 'id' can be used" in notes("SELECT id + 0 AS id, text FROM docs")[0]


def test_a_source_is_read_in_a_snapshot_that_can_write_nothing(server: PostgresServer) -> None:
    with reading(server.url()) as connection:
        for name, value in {
            "transaction_isolation": "repeatable read",
            "transaction_read_only": "on",
            "application_name": "shardmill",
            "statement_timeout": "1h",
            "lock_timeout": "1min",
            "idle_in_transaction_session_timeout": "0",
        }.items():
            assert connection.execute(f"SHOW {name}").fetchone() == (value,)


def test_a_query_without_a_key_is_one_snapshot(docs: PostgresServer) -> None:
    fields = Fields("text", (), (), "SELECT text FROM docs ORDER BY id")
    stat = discover([docs.url()], fields)
    source = open_source(stat, fields)
    (shard,) = source.shards(100)
    batches = source.read(shard)
    first = next(batches)
    docs.execute("DELETE FROM docs")
    assert len(first) + sum(map(len, batches)) == 300
    assert first.texts[0].as_py() == "text 0"


def test_a_split_is_one_snapshot(docs: PostgresServer, tmp_path: Path) -> None:
    import psycopg

    query = "SELECT id, text, timestamptz '2026-01-02 03:04Z' AS at, 1.50::numeric AS n FROM docs ORDER BY id"
    splitter = StreamingDatasetSplitter(str(tmp_path / "a"), quiet=True)
    made = splitter.stream_and_split_from_database(docs.url(), query, "d", {"chunk_size": 100}, batch_size=7)
    assert (made["total_items"], made["total_chunks"]) == (300, 3)
    for autocommit in (False, True):
        with psycopg.connect(docs.url(), autocommit=autocommit) as connection:
            again = splitter.stream_and_split_from_database(connection, query, f"e{autocommit}", {"chunk_size": 100})
        assert [c["sha256"] for c in again["chunks"]] == [c["sha256"] for c in made["chunks"]]
    out = tmp_path / "cli"
    command = [sys.executable, "-m", "shardmill", "split", docs.url(), "--query", query, "--out", str(out)]
    done = subprocess.run([*command, "--name", "d", "--format", "jsonl"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (out / "datasets/d/chunks/chunk-000000.jsonl").read_text().splitlines()
    assert lines[0] == '{"id":1,"text":"text 0","at":"2026-01-02T03:04:00+00:00","n":"1.50"}'


@pytest.fixture(autouse=True)
def _no_connection_stays(server: PostgresServer) -> Iterator[None]:
    yield
    deadline = time.monotonic() + PATIENCE_S
    left = "SELECT pid FROM pg_stat_activity WHERE application_name = 'shardmill'"
    while server.execute(left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.execute(left)
