"""Queries of SQLite and DuckDB, and of one whose connection a function of the user's makes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import DatabaseError, DatabaseLost, MissingExtra, SourceError, SpecError, StaleResume
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.sql.query import check_query
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec

QUERY = "SELECT id, text FROM docs -- all of them\n;"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "docs ?.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE docs (id text, text text, n integer, blob blob)")
        rows = [(r["id"], r["text"], i, b"x") for i, r in enumerate(fake_rows(500))]
        connection.executemany("INSERT INTO docs VALUES (?, ?, ?, ?)", rows)
    return path


def ids(run: Run) -> list[object]:
    return run.table().column("id").to_pylist()  # type: ignore[no-any-return]


def test_a_run_over_a_bare_path_resumes_and_verifies(database: Path, tmp_path: Path) -> None:
    spec = fake_spec(database, query=QUERY)
    run = start(spec, tmp_path / "run", engine=InProcessEngine(2))
    assert len(run.plan.shards) > 3
    assert ids(run) == sorted(r["id"] for r in fake_rows(500))
    report = run.verify()
    assert report.verified, report
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM docs WHERE n < 20")
        connection.execute("INSERT INTO docs VALUES ('zz', 'later', 1, '')")
    again = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert len(ids(again)) == 500
    report = again.verify(sample=400)
    assert report.verified
    seen = {c.name: c.seen for c in report.checks}
    assert seen["source"] == "500 rows were read; the query gives 480 in that range now"
    assert "are gone or differ now" in seen["sample"]
    with pytest.raises(StaleResume, match="query was"):
        start(fake_spec(database, query="SELECT * FROM docs"), tmp_path / "run", engine=InProcessEngine())


def test_sample_that_differs_by_most_rows_is_not_verified(database: Path, tmp_path: Path) -> None:
    run = start(fake_spec(database, query=QUERY), tmp_path / "run", engine=InProcessEngine())
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE docs SET text = 'another ' || text")
    assert not run.verify().verified


def test_null_and_blank_texts_are_set_aside(database: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE docs SET text = NULL WHERE n = 3")
        connection.execute("UPDATE docs SET text = '  ' WHERE n = 5")
        connection.execute("UPDATE docs SET text = CAST(x'ff41' AS text) WHERE n = 7")
        connection.execute("UPDATE docs SET id = NULL WHERE n = 11")
    run = start(fake_spec(f"sqlite:///{database}", query=QUERY), tmp_path / "run", engine=InProcessEngine())
    reasons = {e["id"]["id"]: e["reason"] for e in run.errors()}
    assert reasons == {"k3": "'text' is null", "k5": "the text is blank", "k7": "the text is not valid Unicode"}
    assert ids(run)[0] is None
    assert len(ids(run)) == 500


def test_without_an_id_the_query_is_one_shard_and_says_so(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(
        {"source": str(database), "query": QUERY, "text": "text", "task": "shardmill.testing:FakeTask"},
        {"shard_bytes": 1000, "workers": 2},
    )
    run = start(spec, tmp_path / "run", engine=InProcessEngine(), quiet=False)
    assert len(run.plan.shards) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "The query is one shard, which one worker reads in one snapshot: --id names no column to cut by." in said
    assert "Only 1 of the 2 workers will have work." in said
    assert run.verify().verified


KEYS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=60),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, min_size=1, max_size=60),
    st.lists(st.sampled_from([1, 2, "a", "B", "b", None, 2.5, ""]), min_size=1, max_size=60),
)


@given(KEYS, st.integers(1, 20))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.parametrize("kind", ["", "text COLLATE NOCASE", "integer"])
def test_every_row_once_however_it_is_cut(tmp_path: Path, kind: str, keys: list[object], shards: int) -> None:
    path = tmp_path / "keys.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(f"CREATE TABLE t (id {kind}, text text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(key, f"row {i}") for i, key in enumerate(keys)])
    fields = Fields("text", ("id",), (), "SELECT * FROM t")
    stat = discover([str(path)], fields)
    source = open_source(stat, fields)
    texts = [t for s in source.shards(stat.size_bytes // shards + 1) for b in source.read(s) for t in _texts(b)]
    assert sorted(texts) == sorted(f"row {i}" for i in range(len(keys)))


def _texts(batch: object) -> Iterator[str]:
    """The texts, those of rows set aside for the type of their id too."""
    bad, texts = batch.bad, batch.texts.to_pylist()  # type: ignore[attr-defined]
    assert not bad, bad
    yield from texts


@pytest.mark.parametrize(
    ("query", "fields", "message"),
    [
        ("SELECT id, txt FROM docs", {}, "no such column: txt"),
        ("SELEC 1", {}, "--query begins with 'selec'"),
        ("DELETE FROM docs", {}, "a source is read-only"),
        ("SELECT 1; SELECT 2", {}, "more than one statement"),
        (" -- nothing", {}, "--query is empty"),
        ("SELECT * FROM docs", {"text": "txet"}, "no column 'txet'"),
        ("SELECT * FROM docs", {"text": "n"}, "'n' in the query holds a number, not text"),
        ("SELECT * FROM docs", {"keep": ("blob",)}, "'blob' in the query is binary"),
        ("SELECT * FROM docs WHERE n < 0", {}, "the query returns no rows"),
    ],
)
def test_what_is_wrong_is_said(database: Path, query: str, fields: dict[str, object], message: str) -> None:
    asked = {"text": "text", "id": ("id",), **fields}
    with pytest.raises((SourceError, DatabaseError), match=message):
        discover([str(database)], Fields(query=query, **asked))  # type: ignore[arg-type]


def test_places_that_are_no_database_or_lack_a_query(database: Path, tmp_path: Path) -> None:
    fields = Fields("text", query="SELECT 1 AS text")
    with pytest.raises(SourceError, match="is a database"):
        discover([str(database)], Fields("text"))
    with pytest.raises(SourceError, match="oracle:// is not a supported database"):
        discover(["oracle://u@h/d"], fields)
    with pytest.raises(DatabaseError, match="no such file"):
        discover(["sqlite:///not-there.db"], fields)
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match="is neither an SQLite nor a DuckDB file"):
        discover([str(tmp_path / "a.jsonl")], fields)
    with pytest.raises(SpecError, match="python:MODULE:FUNCTION"):
        discover(["python:not_there:connect"], fields)


def test_a_query_is_one_that_reads() -> None:
    assert check_query("/* ; */ (SELECT ';', $a$;$a$) ;; -- end ;\n") == "/* ; */ (SELECT ';', $a$;$a$)"
    assert check_query("WITH a AS (SELECT 1) SELECT * FROM a") == "WITH a AS (SELECT 1) SELECT * FROM a"


@pytest.mark.parametrize("source", ["python:ducks:connect", "duckdb:///{}", "{}"])
def test_duckdb(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "docs.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE docs AS SELECT i - 200 AS id, 'text ' || i AS text, DATE '2026-01-01' + i::int AS day, "
            "(i / 4)::decimal(9, 2) AS price FROM range(400) t(i)"
        )
    (tmp_path / "ducks.py").write_text(
        f"import duckdb\ndef connect():\n    return duckdb.connect({str(tmp_path / 'docs.duckdb')!r}, read_only=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    work = {
        "source": source.format(tmp_path / "docs.duckdb"),
        "query": "SELECT * FROM docs WHERE text LIKE 'text%'",
        "text": "{text} of {day}",
        "id": "id",
        "keep": "day,price:float64",
        "task": "shardmill.testing:FakeTask",
    }
    run = start(make_spec(work, {"shard_bytes": 2000, "workers": 2, "device": "cpu"}), tmp_path / "run")
    table = run.table()
    assert table.column("id").to_pylist() == list(range(-200, 200))
    assert table.column("price").to_pylist()[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert str(table.schema.field("day").type) == "date32[day]"
    assert len(run.plan.shards) > 3
    assert run.verify().verified


def test_duckdb_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    fields = Fields("text", query="SELECT 'a' AS text")
    with pytest.raises(DatabaseError, match="no such file"):
        discover([f"duckdb:///{tmp_path}/a.duckdb"], fields)
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE docs AS SELECT 'a' AS text")
    (tmp_path / "b.duckdb").write_bytes((tmp_path / "a.duckdb").read_bytes()[:100])
    with pytest.raises(DatabaseError, match=r"b\.duckdb"):
        discover([str(tmp_path / "b.duckdb")], fields)
    with pytest.raises(DatabaseError, match="docs2"):
        discover([str(tmp_path / "a.duckdb")], Fields("text", query="SELECT text FROM docs2"))
    writes = f"""
import duckdb, sys
opened = duckdb.connect({str(tmp_path / "a.duckdb")!r})
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", writes], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(DatabaseLost, match="another program writes to it"):
            discover([str(tmp_path / "a.duckdb")], fields)
        other.kill()
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match="duckdb is not installed"):
        discover([str(tmp_path / "a.duckdb")], fields)
