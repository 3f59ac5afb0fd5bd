"""Queries of a real MariaDB: cut by keys, read while rows come and go and while it is restarted, passwords kept."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill import StreamingDatasetSplitter
from shardmill.core import passwords
from shardmill.core.errors import DatabaseError, MissingExtra, ShardmillError, SourceError, StaleResume
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.sql.mysql import MySql
from shardmill.testing import InProcessEngine
from tests.support.alert_targets import make_certificate
from tests.support.corpora import fake_rows, fake_spec
from tests.support.mariadb import PASSWORD, MariaServer
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.services

QUERY = "SELECT id, text FROM docs WHERE text NOT LIKE '%gone%' ORDER BY id DESC;"


@pytest.fixture
def docs(mariadb: MariaServer) -> MariaServer:
    """300 rows with odd ids in a table of their own."""
    mariadb.execute(
        "CREATE OR REPLACE TABLE docs (id int PRIMARY KEY, text text)",
        "INSERT INTO docs SELECT 2 * seq + 1, CONCAT('text ', seq, REPEAT(' x', seq % 20)) FROM seq_0_to_299",
    )
    return mariadb


def place_of(server: MariaServer, **changes: str) -> str:
    return passwords.withhold(server.url(**changes))


def ids(run: Run) -> list[Any]:
    return run.table().column("id").to_pylist()  # type: ignore[no-any-return]


def test_a_run_is_cut_by_keys_and_verified(docs: MariaServer, tmp_path: Path) -> None:
    url = docs.url(by="port").replace("mysql:", "mariadb:")
    run = start(fake_spec(url, query=QUERY), tmp_path / "run", engine=InProcessEngine(2))
    shards = run.plan.shards
    assert len(shards) > 4
    assert (shards[0].low, shards[-1].high) == (None, 599)
    assert ids(run) == list(range(1, 600, 2))
    report = run.verify()
    assert report.verified, report
    assert "all 300 rows of the query were read" in [c.seen for c in report.checks]
    assert run.plan.stat.files[0].name == "shop"


def test_a_resume_goes_on_with_the_plan_although_the_table_changed(docs: MariaServer, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(step: str, shard: int) -> None:
        if step == "committed" and shard >= 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        start(fake_spec(docs.url(), query=QUERY), tmp_path / "run", engine=InProcessEngine(on_step=interrupt))
    docs.execute("INSERT INTO docs SELECT seq, 'new' FROM seq_1000_to_1500", "DELETE FROM docs WHERE id = 399")
    run = start(fake_spec(docs.url(by="port"), query=QUERY), tmp_path / "run", engine=InProcessEngine())
    assert ids(run) == [i for i in range(1, 600, 2) if i != 399]
    docs.execute(
        "CREATE DATABASE IF NOT EXISTS other",
        "GRANT ALL ON other.* TO asked",
        "CREATE OR REPLACE TABLE other.docs AS SELECT * FROM docs",
    )
    with pytest.raises(StaleResume, match=r"the database was .*/shop and is .*/other"):
        start(fake_spec(docs.url(database="other"), query=QUERY), tmp_path / "run", engine=InProcessEngine())


@pytest.fixture
def long_docs(mariadb: MariaServer) -> MariaServer:
    """More rows than a worker and the sockets hold, so that its result is unfinished while it works."""
    mariadb.execute(
        "CREATE OR REPLACE TABLE long_docs (id int PRIMARY KEY, text text, rest text)",
        "INSERT INTO long_docs SELECT seq, CONCAT('text ', seq), REPEAT('long ', 200) FROM seq_1_to_40000",
    )
    return mariadb


READING = "SELECT id FROM information_schema.processlist WHERE user = 'asked' AND command = 'Query'"


def test_a_connection_cut_a_server_restarted_and_a_worker_killed_in_the_middle_of_a_shard(
    long_docs: MariaServer, tmp_path: Path
) -> None:
    """While the task is held, the worker has read as much as it holds. The shard begins again after each loss."""

    def disturb() -> None:
        try:
            wait_for((tmp_path / "held-1").exists)
            ((number,),) = wait_for(lambda: long_docs.execute(READING))
            long_docs.execute(f"KILL {number}")
            (tmp_path / "go-1").touch()
            wait_for((tmp_path / "held-2").exists)
            long_docs.stop()
            (tmp_path / "go-2").touch()
            long_docs.start()
            wait_for((tmp_path / "held-3").exists)
            (worker,) = [p for p in psutil.process_iter() if is_worker(p)]
            os.kill(worker.pid, signal.SIGKILL)
        finally:
            for number in range(1, 5):
                (tmp_path / f"go-{number}").touch()

    def is_worker(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return {"shardmill.worker", str(tmp_path / "run")} <= {*process.cmdline()}
        return False

    work = {"source": long_docs.url(), "query": "SELECT * FROM long_docs", "text": "text", "id": "id", "keep": "rest"}
    task = {"task": "tests.support.corpora:HeldTask", "params": {"folder": str(tmp_path)}}
    spec = make_spec({**work, **task}, {"shard_bytes": 100_000_000, "workers": 1, "device": "cpu", "lease_s": 5.0})
    with ThreadPoolExecutor(1) as beside:
        disturbed = beside.submit(disturb)
        run = start(spec, tmp_path / "run")
        disturbed.result()
    assert sum(p.read_text().count("went away") for p in (tmp_path / "run/logs").iterdir()) == 2
    assert ids(run) == list(range(1, 40001))
    assert PASSWORD not in "".join(p.read_text() for p in (tmp_path / "run/logs").iterdir())


def test_what_is_left_of_a_result_is_not_read(long_docs: MariaServer) -> None:
    with MySql(place_of(long_docs)).open() as session:
        read = session.rows("SELECT a.* FROM long_docs a, long_docs b", (), lambda: 10)
        assert len(next(read)) == 10
        read.close()  # type: ignore[attr-defined]
        assert list(session.rows("SELECT 1 + 1")) == [[(2,)]]
    wait_for(lambda: not long_docs.execute(READING))


def test_a_password_is_in_no_message_and_not_needed_in_the_url(
    docs: MariaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(place: str) -> str:
        with pytest.raises(ShardmillError) as raised:
            start(fake_spec(place, query=QUERY), tmp_path / "none", engine=InProcessEngine())
        said = "".join(traceback.format_exception(raised.value))
        assert "hunter2" not in said
        assert "wrongword" not in said
        return said

    bare = docs.url(password="")
    assert "using password: NO" in refused(bare)
    assert "MYSQL_PWD" in refused(docs.url(password="wrongword"))
    for option in ("nonsense=1", "passwd=hunter2", "ssl_key_password=hunter2&nonsense=1"):
        refused(f"{docs.url()}&{option}")
    run = start(fake_spec(docs.url(), query=QUERY), tmp_path / "run", engine=InProcessEngine())
    assert bare in (tmp_path / "run" / "plan.json").read_text()
    passwords._known.clear()
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    assert run.verify().verified


KEYS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "int": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "unsigned": ("bigint unsigned", st.integers(0, 2**64 - 1)),
    "text": ("text", st.text(st.characters(exclude_categories=["Cs"]), max_size=40)),
    "bytes of text": ("varchar(9) COLLATE utf8mb4_bin", st.text("aAäbBzZ_ -'\\%", max_size=4)),
    "text of a language": ("varchar(9) COLLATE utf8mb4_german2_ci", st.text("aAäbBzZ_ -'\\%", max_size=4)),
    "old text": ("char(4) CHARACTER SET latin1", st.text("aBä ", max_size=4)),
    "enum": ("enum('zebra', 'Ant', 'ape')", st.sampled_from(["zebra", "Ant", "ape"])),
    "set": ("set('zebra', 'Ant', 'ape')", st.sampled_from(["", "zebra", "Ant", "ape", "zebra,ape"])),
    "uuid": ("uuid", st.uuids(version=4).map(str)),
    "time": ("timestamp(6)", st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2037, 1, 1))),
    "local time": ("datetime(6)", st.datetimes(datetime.datetime(1000, 1, 1))),
    "date": ("date", st.dates(datetime.date(1000, 1, 1))),
    "duration": ("time(3)", st.timedeltas(datetime.timedelta(hours=-838), datetime.timedelta(hours=838))),
    "year": ("year", st.integers(1901, 2155)),
    "bits": ("bit(64)", st.integers(0, 2**64 - 1)),
    "whole decimal": ("decimal(38)", st.integers(-(10**37), 10**37)),
    "decimal": ("decimal(38, 3)", st.decimals(-(10**20), 10**20, allow_nan=False, places=3)),
    "float": ("float", st.floats(allow_nan=False, allow_infinity=False, width=32)),
    "double": ("double", st.floats(allow_nan=False, allow_infinity=False)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_row_once_whatever_the_key(mariadb: MariaServer, kind: str) -> None:
    import pymysql

    name, values = KEYS[kind]
    mariadb.execute(f"CREATE OR REPLACE TABLE `keys` (id {name} NULL, text text)")
    options: dict[str, Any] = {"unix_socket": mariadb.socket, "user": "root", "database": "shop", "autocommit": True}
    with pymysql.connect(**options, init_command="SET time_zone = '+00:00'") as connection:

        @given(st.lists(st.one_of(values, values, st.none()), min_size=1, max_size=40), st.integers(1, 12))
        @settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
        def check(keys: list[Any], shards: int) -> None:
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM `keys`")
                rows = [(key, f"row {i}") for i, key in enumerate(keys)]
                cursor.executemany("INSERT INTO `keys` VALUES (%s, %s)", rows)
            fields = Fields("text", ("id",), (), "SELECT * FROM `keys`")
            place = place_of(mariadb)
            stat = discover([place], fields)
            source = open_source(stat, fields)
            pieces = source.shards(stat.size_bytes // shards + 1)
            texts = [text for s in pieces for b in source.read(s) for text in b.texts.to_pylist()]
            assert sorted(texts) == sorted(f"row {i}" for i in range(len(keys)))

        check()


def test_types_are_kept(mariadb: MariaServer, tmp_path: Path) -> None:
    mariadb.execute(
        "SET sql_mode = ''",
        """CREATE OR REPLACE TABLE typed (
            id int unsigned PRIMARY KEY, text varchar(20), t tinyint, s smallint, m mediumint, b bigint unsigned,
            y year, f float, r double, n decimal(30, 2), ts timestamp(6), dt datetime, d date, du time, j json,
            e enum('one', 'two'), st set('a', 'b'), bi bit(3), o boolean, c varchar(9) CHARACTER SET latin1)""",
        """INSERT INTO typed VALUES
            (1, 'text', -1, 2, 3, 18446744073709551615, 2026, 16777217, 0.1, 123456789012345678901234567.50,
             FROM_UNIXTIME(1.5), '2026-01-02 03:04:05', '2026-01-02', '-100:01:02', '{"a": "ä"}', 'two', 'a,b',
             b'101', true, 'äö'),
            (2, 'zero', 0, 0, 0, 0, 0, 0, 0, 0, 0, '0000-00-00 00:00:00', '0000-00-00', 0, '{}', 'one', '', 0, 0, ''),
            (3, 'null', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
             NULL, NULL)""",
    )
    keep = "t,s,m,b,y,f,r,n,ts,dt,d,du,j,e,st,bi,o,c"
    work = {
        "source": mariadb.url(),
        "query": "SELECT * FROM typed",
        "text": "{text} {id} {d} {n} {bi} {r} {du}",
        "id": "id",
        "keep": keep,
        "task": "shardmill.testing:FakeTask",
    }
    run = start(make_spec(work, {"max_errors": "100%"}), tmp_path / "run", engine=InProcessEngine())
    assert run.plan.stat.columns == {
        "id": "uint32",
        "t": "int8",
        "s": "int16",
        "m": "int32",
        "b": "uint64",
        "y": "int16",
        "f": "float",
        "r": "double",
        "n": "string",
        "ts": "timestamp[us, tz=UTC]",
        "dt": "timestamp[us]",
        "d": "date32[day]",
        "du": "string",
        "j": "string",
        "e": "string",
        "st": "string",
        "bi": "uint64",
        "o": "int8",
        "c": "string",
    }
    row, _, nulls = run.table().drop_columns(["row", "embedding"]).to_pylist()
    assert row == {
        "id": 1,
        "t": -1,
        "s": 2,
        "m": 3,
        "b": 2**64 - 1,
        "y": 2026,
        "f": 16777216.0,
        "r": 0.1,
        "n": "123456789012345678901234567.50",
        "ts": datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, datetime.UTC),
        "dt": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "d": datetime.date(2026, 1, 2),
        "du": "-100:01:02",
        "j": '{"a": "ä"}',
        "e": "two",
        "st": "a,b",
        "bi": 5,
        "o": 1,
        "c": "äö",
    }
    assert {*nulls.values()} == {3, None}
    (error,) = run.errors()
    assert error["reason"].startswith("'ts' is \"0000-00-00 00:00:00")
    fields = Fields(work["text"], ("id",), (), work["query"])
    stat = discover([place_of(mariadb)], fields)
    source = open_source(stat, fields)
    texts = [t for s in source.shards(1 << 20) for b in source.read(s) for t in b.texts.to_pylist()]
    assert texts[0] == "text 1 2026-01-02 123456789012345678901234567.50 5 0.1 -100:01:02"


def test_rows_are_those_that_sqlite_gives(mariadb: MariaServer, tmp_path: Path) -> None:
    rows = [
        (i, row["text"] + "ä😀'\\%\"" * (i % 3), i / 7, None if i % 5 else i)
        for i, row in enumerate(fake_rows(700), -300)
    ]
    with closing(sqlite3.connect(tmp_path / "docs.db")) as connection, connection:
        connection.execute("CREATE TABLE same (id bigint PRIMARY KEY, text text, price double, n bigint)")
        connection.executemany("INSERT INTO same VALUES (?, ?, ?, ?)", rows)
    import pymysql

    mariadb.execute("CREATE OR REPLACE TABLE same (id bigint PRIMARY KEY, text text, price double, n bigint)")
    options: dict[str, Any] = {"unix_socket": mariadb.socket, "user": "root", "database": "shop", "autocommit": True}
    with pymysql.connect(**options) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO same VALUES (%s, %s, %s, %s)", rows)
    tables = []
    for place in (tmp_path / "docs.db", mariadb.url()):
        work = {"source": str(place), "query": "SELECT * FROM same", "text": "text", "id": "id", "keep": "text,price,n"}
        part = {"where": "price > -20 AND n IS NULL", "take": 0.5, "task": "shardmill.testing:FakeTask"}
        spec = make_spec({**work, **part}, {"shard_bytes": 3_000})
        run = start(spec, tmp_path / f"run{len(tables)}", engine=InProcessEngine())
        assert len(run.plan.shards) > 5
        assert run.verify().verified
        tables.append(run.table())
    assert 100 < len(tables[0]) < 400
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("SELECT id, text\nFORM docs", r"syntax error near 'docs' \(line 2 of the query\)", "MariaDB 10.2"),
        ("SELECT id, txt FROM docs", "Unknown column 'txt'", "Check the name"),
        ('SELECT id, text FROM docs WHERE text = "a"', "Unknown column 'a'", "single quotes"),
        ("SELECT id, text FROM dosc", r"Table 'shop\.dosc' doesn't exist", "Check the name"),
        ("SELECT id, id, text FROM docs", "(?i)duplicate column name 'id'|two columns named 'id'", ""),
        ("SELECT id AS text, id FROM docs", "'text' in the query holds a number, not text", "CAST"),
        ("SELECT id, text, CAST('x' AS BINARY) AS content FROM docs", "'content' in the query is binary", "hex"),
        ("SELECT id, nextval(counter) AS text FROM docs", "The query writes", "SELECT"),
        ("SELECT id, text FROM docs FOR UPDATE", "The query writes", "SELECT"),
        ("UPDATE docs SET id = 1", "begins with 'update'", "SELECT"),
        ("SELECT id, text FROM docs WHERE id < 0", "returns no rows", ""),
    ],
)
def test_what_is_wrong_with_a_query_is_said(docs: MariaServer, query: str, message: str, hint: str) -> None:
    docs.execute("CREATE SEQUENCE IF NOT EXISTS counter")
    keep = ("content",) if "content" in query else ()
    with pytest.raises((SourceError, DatabaseError), match=message) as raised:
        discover([place_of(docs)], Fields("text", ("id",), keep, query))
    assert hint in raised.value.hint


def test_what_is_wrong_with_a_server_is_said(docs: MariaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = Fields("text", ("id",), (), "SELECT id, text FROM docs")

    def said(url: str) -> str:
        with pytest.raises(DatabaseError) as raised:
            discover([passwords.withhold(url)], fields)
        return str(raised.value)

    assert "Connection refused" in said("mysql://u@127.0.0.1:1/d")
    assert "Check host and port" in said("mysql://u@no-such-host.invalid/d")
    assert "Check host and port" in said("mysql://u@/d?unix_socket=/no/such/socket")
    assert "SHOW DATABASES" in said(docs.url("root", "", "nothing"))
    assert "GRANT SELECT" in said(docs.url("stranger", ""))
    assert "MYSQL_PWD" in said(docs.url("nobody", ""))
    assert "mysql://USER@HOST" in said("mysql://u@h/")
    assert "mysql://USER@HOST" in said("mysql://u@h:port/d")
    assert "no option 'nonsense'" in said("mysql://u@h/d?nonsense=1")
    assert "no file /no/ca.pem for ssl_ca" in said("mysql://u@h/d?ssl_ca=/no/ca.pem")
    with pytest.raises(SourceError, match="is a database"):
        discover([place_of(docs)], Fields("text"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pymysql", None)
        with pytest.raises(MissingExtra, match="pymysql is not installed"):
            discover([place_of(docs)], fields)


def test_what_it_encrypts_with_is_checked(docs: MariaServer, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    fields = Fields("text", ("id",), (), "SELECT id, text FROM docs")
    url = docs.url(by="port")

    def said(options: str) -> str:
        with pytest.raises(DatabaseError) as raised:
            discover([passwords.withhold(url + options)], fields)
        return str(raised.value)

    assert "does not encrypt" in said(f"?ssl_ca={certificate}")
    encrypted = (f"--ssl-cert={certificate}", f"--ssl-key={certificate}")
    docs.stop()
    try:
        docs.start(*encrypted, "--require-secure-transport=ON")
        for options in ("", f"?ssl_ca={certificate}"):
            assert discover([passwords.withhold(url + options)], fields).columns == {"id": "int32"}
        (tmp_path / "other").mkdir()
        other = make_certificate(tmp_path / "other")
        assert "?ssl_ca=FILE" in said(f"?ssl_ca={other}")
        said("?ssl_disabled=true")
        docs.stop()
        docs.start(*encrypted, "--tls-version=TLSv1.1")
        assert "TLS 1.2 or later" in said("")
    finally:
        docs.stop()
        docs.start()


def test_a_key_without_an_index_is_warned_of(docs: MariaServer) -> None:
    def notes(query: str) -> Any:
        fields = Fields("text", ("id",), (), query)
        source = open_source(discover([place_of(docs)], fields), fields)
        source.shards(1000)
        return source.notes

    assert notes("SELECT id, text FROM docs") == []
    assert "No index on 'id' can be used" in notes("SELECT id + 0 AS id, text FROM docs")[0]


def test_a_query_without_a_key_is_one_snapshot(docs: MariaServer) -> None:
    fields = Fields("text", (), (), "SELECT text FROM docs")
    stat = discover([place_of(docs)], fields)
    source = open_source(stat, fields)
    (shard,) = source.shards(100)
    batches = source.read(shard)
    first = next(batches)
    docs.execute("DELETE FROM docs")
    assert len(first) + sum(map(len, batches)) == 300


def test_a_session_reads_one_snapshot_in_any_mode_of_the_server(docs: MariaServer) -> None:
    docs.execute("SET GLOBAL sql_mode = ''", "SET GLOBAL max_statement_time = 1", "SET GLOBAL time_zone = '+05:00'")
    try:
        with MySql(place_of(docs)).open() as session:
            seen = "SELECT @@sql_mode, @@time_zone, @@max_statement_time + 0, (SELECT count(*) FROM docs)"
            assert list(session.rows(seen)) == [[("ANSI_QUOTES", "+00:00", 0, 300)]]
            docs.execute("DELETE FROM docs")
            assert list(session.rows("SELECT count(*) FROM docs")) == [[(300,)]]
    finally:
        docs.execute(*(f"SET GLOBAL {name} = DEFAULT" for name in ("sql_mode", "max_statement_time", "time_zone")))


def test_a_server_waits_for_a_worker_that_is_busy(long_docs: MariaServer) -> None:
    long_docs.execute("SET GLOBAL net_write_timeout = 1")
    try:
        with MySql(place_of(long_docs)).open() as session:
            read = session.rows("SELECT * FROM long_docs ORDER BY id", (), lambda: 1000)
            first = next(read)
            time.sleep(3)
            assert len(first) + sum(map(len, read)) == 40_000
    finally:
        long_docs.execute("SET GLOBAL net_write_timeout = DEFAULT")


def test_a_split_is_one_snapshot_in_the_order_of_the_query(docs: MariaServer, tmp_path: Path) -> None:
    query = "SELECT id, text, TIMESTAMP '2026-01-02 03:04' AS at, 1.50 AS n FROM docs ORDER BY id DESC"
    splitter = StreamingDatasetSplitter(str(tmp_path / "a"), quiet=True)
    made = splitter.stream_and_split_from_database(docs.url(), query, "d", {"chunk_size": 100}, batch_size=7)
    assert (made["total_items"], made["total_chunks"]) == (300, 3)
    out = tmp_path / "cli"
    command = [sys.executable, "-m", "shardmill", "split", docs.url(), "--query", query, "--out", str(out)]
    done = subprocess.run([*command, "--name", "d", "--format", "jsonl"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (out / "datasets/d/chunks/chunk-000000.jsonl").read_text().splitlines()
    assert lines[-1] == '{"id":1,"text":"text 0","at":"2026-01-02T03:04:00","n":"1.50"}'


@pytest.fixture(autouse=True)
def _no_connection_stays(mariadb: MariaServer) -> Iterator[None]:
    yield
    deadline = time.monotonic() + PATIENCE_S
    left = "SELECT id FROM information_schema.processlist WHERE user IN ('asked', 'stranger')"
    while mariadb.execute(left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not mariadb.execute(left)
