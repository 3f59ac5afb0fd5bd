"""Loading into a real PostgreSQL: what becomes of values, keys that are there, and rows that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

import shardmill
from shardmill.core.errors import DatabaseError, SpecError, UsageError
from shardmill.plan.spec import make_spec
from shardmill.postgres.copy import encode, sent_type
from shardmill.run import Run, start
from shardmill.run.carrying import prepare_work
from shardmill.run.loading import complete_work, load, load_spec, place_of
from shardmill.run.status.screen import show
from shardmill.run.status.shard import describe_shard
from shardmill.run.table import Table
from shardmill.sinks import postgres as sinks
from shardmill.testing import FakeTask, InProcessEngine, fake_vector
from tests.support.corpora import fake_rows
from tests.support.services import PostgresServer
from tests.support.tables import count_texts, table_spec
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def into(postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path) -> Callable[..., Run]:
    """Load rows into a table of a name, in a run of that name."""

    def run(rows: list[Any], table: str, run: str = "", *, fresh: bool = False, **settings: Any) -> Run:
        spec = table_spec(write_jsonl(rows, f"{table}.jsonl"), postgres.url(), table, **settings)
        return start(spec, tmp_path / (run or table), engine=InProcessEngine(), fresh=fresh)

    return run


def test_every_type_arrives_as_it_was(postgres: PostgresServer) -> None:
    """The server reads what we wrote, and writes the same bytes."""
    columns = {
        "b": pa.array([True, None, False]),
        "s": pa.array([1, None, -3], pa.int16()),
        "i": pa.array([1, None, -3], pa.int32()),
        "l": pa.array([1, None, -(2**62)]),
        "r": pa.array([1.5, None, -2.5], pa.float32()),
        "f": pa.array([1.5, None, 1e300]),
        "t": pa.array(["é", None, ""]),
        "y": pa.array([b"\0\1", None, b""]),
        "d": pa.array([-1, None, 20_000], pa.date32()),
        "c": pa.array([0, None, 86_399_999_999], pa.time64("us")),
        "p": pa.array([-1, None, 10**15], pa.timestamp("us")),
        "z": pa.array([-1, None, 10**12], pa.timestamp("ms", "Europe/Berlin")),
        "a": pa.array([["x", "yé"], [], None]),
        "n": pa.array([[1, 2], None, [3]], pa.list_(pa.int32())),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6, dtype=np.float32)), 2),
        "h": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    }
    kinds = [{"v": "vector", "h": "halfvec"}.get(n) or sent_type(c.type) for n, c in columns.items()]
    defined = ", ".join(f"{n} {k}" for n, k in zip(columns, kinds, strict=True))
    for start_row in (0, 1):
        sent = encode([c.slice(start_row) for c in columns.values()], kinds)
        with psycopg.connect(postgres.url()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(f"CREATE TEMPORARY TABLE types ({defined})")
            with connection.cursor().copy("COPY types FROM STDIN (FORMAT binary)") as copy:
                copy.write(sent)
            with connection.cursor().copy("COPY types TO STDOUT (FORMAT binary)") as copy:
                assert b"".join(map(bytes, copy)) == sent
            row = connection.execute("SELECT t, a, v::text, z::text, d::text FROM types LIMIT 1").fetchone()
        if start_row == 0:
            assert row == ("é", ["x", "yé"], "[0,1]", "1969-12-31 23:59:59.999+00", "1969-12-31")


def test_update_takes_the_last_skip_the_first_and_fail_names_the_key(
    postgres: PostgresServer, into: Callable[..., Run]
) -> None:
    rows = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}, {"id": "a", "text": "three"}]
    into(rows, "updated")
    assert postgres.execute("SELECT id, text FROM updated ORDER BY 1") == [("a", "three"), ("b", "two")]
    into(rows, "skipped", mode="skip")
    assert postgres.execute("SELECT id, text FROM skipped ORDER BY 1") == [("a", "one"), ("b", "two")]
    with pytest.raises(DatabaseError, match=r"id 'a' twice"):
        into(rows, "failed", mode="fail")
    into(rows[:2], "failed", "good", mode="fail")
    with pytest.raises(DatabaseError, match=r"\(id\)=\(b\) already exists"):
        into([{"id": "c", "text": "new"}, {"id": "b", "text": "two"}], "failed", "bad", mode="fail")
    assert postgres.execute("SELECT count(*) FROM failed") == [(2,)]


def test_rows_that_the_server_refuses_are_set_aside_and_the_rest_is_loaded(
    postgres: PostgresServer, into: Callable[..., Run]
) -> None:
    """A table that was there before, with types and constraints of its own."""
    postgres.execute(
        "CREATE EXTENSION IF NOT EXISTS vector",
        "CREATE TABLE strict (id varchar(4) PRIMARY KEY, text text CHECK (text NOT LIKE 'text 7 %'),"
        " embedding vector(8), text_digest bytea,"
        " search tsvector GENERATED ALWAYS AS (to_tsvector('english', coalesce(text, ''))) STORED)",
    )
    rows = fake_rows(60)
    rows[20]["id"], rows[40]["text"], rows[50]["id"] = "too long", "a\0b", None  # type: ignore[call-overload]
    run = into(rows, "strict")
    reasons = {e["row"]: e["reason"] for e in run.errors()}
    assert sorted(reasons) == [7, 20, 40, 50]
    assert "violates check constraint" in reasons[7]
    assert "too long for type character varying(4)" in reasons[20]
    assert "NUL" in reasons[40]
    assert "null" in reasons[50]
    assert postgres.execute("SELECT count(*), count(embedding) FROM strict") == [(56, 56)]
    assert run.status().errors == 4
    assert run.verify().verified


def test_a_batch_is_made_while_the_server_is_at_the_one_before(
    postgres: PostgresServer, into: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong in the next one is its own, and leaves the one that is under way alone."""
    postgres.execute(
        "CREATE EXTENSION IF NOT EXISTS vector",
        "CREATE TABLE ahead (id text PRIMARY KEY, text text, embedding vector(8), text_digest bytea,"
        " search tsvector GENERATED ALWAYS AS (to_tsvector('english', coalesce(text, ''))) STORED)",
        "CREATE TABLE made_ahead (start integer)",
        # The server is at a batch until the next full one is made.
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" FOR i IN 1..{int(PATIENCE_S * 20)} LOOP EXIT WHEN (SELECT count(*) FROM made_ahead) >= least(2,"
        " (SELECT count(*) FROM shardmill.batches WHERE table_name = 'ahead')); PERFORM pg_sleep(0.05); END LOOP;"
        " RETURN NULL; END $$",
        "CREATE TRIGGER linger BEFORE INSERT ON ahead FOR EACH STATEMENT EXECUTE FUNCTION linger()",
    )
    made: list[int] = []
    make = sinks.StagedRows._make

    watching = psycopg.connect(postgres.url(), autocommit=True)

    def watch(self: sinks.StagedRows, start: int, stop: int) -> Any:
        busy = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'WITH written%'"
        if start in (16, 32):
            wait_for(lambda: watching.execute(busy).fetchall())
        made.extend(start for _ in watching.execute(busy))
        watching.execute("INSERT INTO made_ahead SELECT %s WHERE %s > 0", [start, start])
        return make(self, start, stop)

    monkeypatch.setattr(sinks.StagedRows, "_make", watch)
    rows = fake_rows(60)
    rows[20]["text"] = "a\0b"
    run = into(rows, "ahead", shard_bytes=1_000_000)
    watching.close()
    assert made == [16, 32], "not the last, which is not full"
    errors = postgres.execute(
        "SELECT first_row, jsonb_array_length(errors) FROM shardmill.batches WHERE table_name = 'ahead' ORDER BY 1"
    )
    assert errors == [(0, 0), (16, 1), (32, 0), (48, 0)]
    assert run.verify().verified
    monkeypatch.undo()
    rows = fake_rows(60)
    rows[20]["id"] = rows[21]["id"]
    with pytest.raises(DatabaseError, match="twice"):
        into(rows, "ahead_fails", mode="fail", shard_bytes=1_000_000)
    assert postgres.execute("SELECT count(*) FROM ahead_fails") == [(16,)]


def test_status_says_what_each_worker_loaded(
    postgres: PostgresServer, into: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fake_rows(60)
    into(rows[:20], "counted", "first")
    rows[40]["text"] = "a\0b"
    run = into(rows, "counted")
    load = run.status().load
    assert load is not None
    assert (load.table, load.rows, load.inserted, load.updated, load.errors) == ("counted", 59, 39, 20, 1)
    assert [(each.worker, each.rows, each.errors) for each in load.loaders] == [(run.status().workers[0]["id"], 59, 1)]
    assert load.rows_per_s > 0
    assert json.loads(json.dumps(run.status().to_json()))["load"]["loaders"][0]["inserted"] == 39
    show(run.status())
    assert "counted: 59 rows loaded · 39 inserted · 20 updated · 1 errors" in capsys.readouterr().out
    assert describe_shard(run.ledger, run.plan, 0)["commit"]["rows"] > 0


def test_status_without_the_database_has_what_the_folder_knows(into: Callable[..., Run]) -> None:
    run = into(fake_rows(20), "far")
    ledger = run.ledger
    ledger.put_execution({**ledger.execution(), "to_url": "postgresql://localhost:1/none?connect_timeout=1"})
    status = Run(ledger.url).status()
    assert status.rows == 20
    assert status.load is not None
    assert "cannot be reached" in status.load.trouble


def test_the_device_does_not_wait_for_the_database(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """The first rows, those of a shard of six batches, are written only when the device is at the next shard."""
    seen: list[str] = []

    def hook(step: str, shard: int) -> None:
        seen.append(step)
        if step == "batch-begun" and seen.count("batch-begun") == 1:
            wait_for(lambda: seen.count("batch") > 6)

    spec = table_spec(write_jsonl(fake_rows(400)), postgres.url(), "waited")
    run = start(spec, tmp_path / "run", engine=InProcessEngine(on_step=hook))
    assert postgres.execute("SELECT count(*) FROM waited") == [(400,)]
    (worker,) = run.status().workers
    assert run.cost().sink_s == pytest.approx(worker["share"] * worker["sink_wait_s"])


def test_changed_only_embeds_what_changed_and_updates_the_rest(
    postgres: PostgresServer, into: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "price": i} for i, row in enumerate(fake_rows(50))]
    into(rows, "prices", keep="text,price")
    before = postgres.execute("SELECT id, embedding::text FROM prices WHERE id <> 'k3' ORDER BY id")
    changed = [{**row, "price": row["price"] + 1000} for row in rows]
    changed[3]["text"] = "quite another text"
    changed.append({"id": "new", "text": "a new one", "price": 5})
    seen: list[str] = []
    run = FakeTask._run
    monkeypatch.setattr(FakeTask, "_run", lambda self, inputs: seen.extend(inputs) or run(self, inputs))
    into(changed, "prices", "again", keep="text,price", changed_only=True)
    assert sorted(seen) == ["a new one", "quite another text"]
    assert postgres.execute("SELECT count(*), min(price), count(embedding) FROM prices") == [(51, 5, 51)]
    assert postgres.execute("SELECT count(*) FROM prices WHERE price >= 1000") == [(50,)]
    after = postgres.execute("SELECT id, embedding::text FROM prices WHERE id NOT IN ('k3', 'new') ORDER BY id")
    assert after == before
    (stored,) = postgres.execute("SELECT embedding::text FROM prices WHERE id = 'k3'")[0]
    assert np.allclose(json.loads(stored), fake_vector("quite another text"), atol=1e-5)


def test_a_table_that_was_emptied_is_not_taken_for_loaded(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    spec = table_spec(write_jsonl(fake_rows(30)), postgres.url(), "emptied")
    start(spec, tmp_path / "first", engine=InProcessEngine())
    postgres.execute("TRUNCATE emptied")
    with pytest.raises(DatabaseError, match="is empty"):
        start(spec, tmp_path / "second", engine=InProcessEngine())
    start(spec, tmp_path / "second", engine=InProcessEngine(), fresh=True)
    assert postgres.execute("SELECT count(*) FROM emptied") == [(30,)]
    postgres.execute("DROP TABLE emptied")
    start(spec, tmp_path / "third", engine=InProcessEngine())
    assert postgres.execute("SELECT count(*) FROM emptied") == [(30,)]


def test_verify_finds_what_was_changed_behind_its_back(postgres: PostgresServer, into: Callable[..., Run]) -> None:
    run = into(fake_rows(60), "proven")
    report = run.verify()
    assert report.verified, report
    assert "60 rows are as they were sent" in next(c.seen for c in report.checks if c.name == "digests")
    postgres.execute("UPDATE proven SET embedding = (SELECT embedding FROM proven WHERE id = 'k1') WHERE id = 'k2'")
    assert not run.verify().verified
    postgres.execute("DELETE FROM proven WHERE id = 'k2'")
    assert [c.name for c in run.verify().checks if not c.ok] == ["rows"]
    for read in (Run.table, Run.to_pandas, Run.to_torch, Run.vectors, len):
        with pytest.raises(UsageError, match="in the table"):
            read(run)


def test_windows_have_a_row_each_and_a_key_of_their_own(postgres: PostgresServer, into: Callable[..., Run]) -> None:
    run = into(fake_rows(40), "pieces", params={"window": 10})
    expected = sum(-(-len(row["text"]) // 10) for row in fake_rows(40))
    assert postgres.execute("SELECT count(*), count(DISTINCT id) FROM pieces") == [(expected, 40)]
    assert run.verify().verified


def test_a_load_is_indexed_registered_and_searched(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = {"params": {"dims": 384}, "index": "hnsw"}
    spec = table_spec(write_jsonl(fake_rows(60)), postgres.url(), "sought", **wide)
    run = load_spec(spec, tmp_path / "run", engine=InProcessEngine())
    hits = Table(place_of(run)).search_many([fake_rows(60)[17]["text"]], 1)[0]
    assert hits[0].values["id"] == "k17"
    made = postgres.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'sought'")
    assert sorted(next(w for w in ("btree", "gin", "hnsw") if w in d) for (d,) in made) == ["btree", "gin", "hnsw"]
    more = table_spec(write_jsonl(fake_rows(20, 60), "more.jsonl"), postgres.url(), "sought", **wide)
    again = more.model_copy(update={"execution": more.execution.model_copy(update={"rebuild_indexes": True})})
    load_spec(again, tmp_path / "more", engine=InProcessEngine())
    assert "Dropped" in capsys.readouterr().err
    assert postgres.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'sought'") == [(3,)]


def test_a_load_without_a_parent_has_its_table_first_and_its_index_last(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    spec = table_spec(write_jsonl(fake_rows(60)), postgres.url(), "pulled", params={"dims": 384}, index="hnsw")
    work = spec.work.model_dump(mode="json", exclude_unset=True)
    planned = prepare_work(work, spec.execution.model_dump(mode="json"), tmp_path / "run")
    assert postgres.execute("SELECT count(*) FROM pulled") == [(0,)]
    run = shardmill.work(planned.ledger.url)
    assert postgres.execute("SELECT count(*) FROM pulled") == [(60,)]
    made = postgres.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'pulled'")
    assert any("hnsw" in definition for (definition,) in made)
    assert {step.step: step.state for step in run.ledger.steps.read()} == {"sweep": "done", "index:hnsw": "done"}
    assert run.verify().verified


def test_what_cannot_be_loaded_is_refused_before_anything_is_read(into: Callable[..., Run]) -> None:
    with pytest.raises(SpecError, match="--changed-only"):
        into(fake_rows(3), "refused", mode="skip", changed_only=True)


Shop = Callable[..., tuple[Run, psycopg.Connection[Any]]]


@pytest.fixture
def shop(postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path) -> Iterator[Shop]:
    """Load reviews of 2014 with three products, in a database of their own; reviews of these rows are of no product."""
    postgres.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)", "CREATE DATABASE shop")
    url = postgres.url(database="shop")
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda count, unknown, **to: (_load_shop(url, write_jsonl, tmp_path, count, unknown, to), connection)


def _load_shop(
    url: str, write_jsonl: Callable[..., Path], folder: Path, count: int, unknown: set[int], to: dict[str, Any]
) -> Run:
    rest = {"description": "d", "brand": "b", "imUrl": "u", "categories": [["a"]], "salesRank": {}, "related": {}}
    prices = ("from 7", "$1.50", "3")
    products = [{"asin": f"p{i}", "title": f"phone {i}", "price": price, **rest} for i, price in enumerate(prices)]
    reviews: list[dict[str, Any]] = [
        {
            "reviewerID": f"r{i}",
            "asin": f"p{i % 3}",
            "unixReviewTime": 1_300_000_000 + i,
            "overall": 4.0,
            "helpful": [1, i],
        }
        for i in range(count)
    ]
    for i, review in enumerate(reviews):
        review |= {"summary": f"summary {i}", "reviewText": f"a review {i}", "helpful": [1, i]}
    for i in unknown:
        reviews[i]["asin"] = f"unknown {i % 7}"
    to = {"url": url, "preset": "amazon-reviews-2014", "metadata": str(write_jsonl(products, "meta.jsonl")), **to}
    settings = {"batch_rows": 16, "max_errors": "100%", "index": "none"}
    work = {"source": str(write_jsonl(reviews)), "task": "shardmill.testing:FakeTask", "to": to}
    return load(work, settings, folder / "run", engine=InProcessEngine())


def test_reviews_refer_to_products_and_those_of_unknown_ones_are_set_aside(shop: Shop) -> None:
    """Fields become columns of other names and types; the products are loaded first."""
    run, connection = shop(30, {5})
    assert connection.execute("SELECT count(*) FROM user_reviews").fetchone() == (29,)
    row = connection.execute(
        "SELECT r.rating, extract(epoch FROM r.timestamp)::bigint, r.helpful, p.price::text FROM user_reviews r"
        " JOIN product_metadata p ON p.asin = r.parent_asin WHERE user_id = 'r7'"
    ).fetchone()
    assert row == (4.0, 1_300_000_007, [1, 7], "1.50")
    reason = 'asin \'unknown 5\' is not in "public"."product_metadata"'
    assert [(e["row"], e["reason"]) for e in run.errors()] == [(5, reason)]
    assert run.verify().verified


def _refuse_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    def halve(*args: Any) -> None:
        raise AssertionError("the server refused rows")

    monkeypatch.setattr(sinks, "find_refused", halve)


def test_many_reviews_of_unknown_products_are_set_aside_by_one_question_a_batch(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_halving(monkeypatch)
    unknown = {i for i in range(200) if i % 5 != 1}
    run, connection = shop(200, unknown)
    assert {e["row"] for e in run.errors()} == unknown
    assert connection.execute("SELECT count(*), count(parent_asin) FROM user_reviews").fetchone() == (40, 40)
    assert run.verify().verified


def test_many_reviews_of_unknown_products_are_loaded_without_a_product(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_halving(monkeypatch)
    unknown = {i for i in range(200) if i % 5 != 1}
    run, connection = shop(200, unknown, unknown_products="null")
    assert list(run.errors()) == []
    assert connection.execute("SELECT count(*), count(asin), count(parent_asin) FROM user_reviews").fetchone() == (
        200,
        200,
        40,
    )
    seen = connection.execute("SELECT user_id FROM user_reviews WHERE parent_asin IS NULL AND asin LIKE 'unknown%'")
    assert {int(name[1:]) for (name,) in seen} == unknown
    keys = connection.execute("SELECT count(*) FROM pg_constraint WHERE contype = 'f'").fetchone()
    assert keys == (1,)
    assert run.verify().verified


def test_unknown_products_are_of_a_load_that_has_products() -> None:
    with pytest.raises(SpecError, match="No products"):
        complete_work({"source": "x", "to": {"preset": "amazon-reviews-2014", "unknown_products": "null"}})


def test_load_into_a_table_by_command_and_again(postgres: PostgresServer, write_jsonl: Callable[..., Path]) -> None:
    """In processes of its own: the command that was done is done, and what the table holds is proved and found."""
    source = write_jsonl(fake_rows(120))
    spec = source.with_name("spec.toml")
    spec.write_text(
        f'[work]\nsource = "{source}"\ntask = "shardmill.testing:FakeTask"\nparams = {{dims = 16}}\n'
        "[execution]\nbatch_rows = 16\nshard_bytes = 4000\n"
    )
    words = ["load", "--spec", spec, "--text", "text", "--id", "id", "--to", postgres.url(), "--table", "by_command"]

    def command(*words: object) -> str:
        whole = [sys.executable, "-m", "shardmill", *map(str, words)]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE_S, cwd=source.parent)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    said = command(*words)
    assert "120 rows" in said
    assert f"shardmill verify {source.with_name('runs') / 'by_command'}" in said
    assert postgres.execute("SELECT count(*), count(embedding) FROM by_command") == [(120, 120)]
    before = postgres.execute("SELECT max(xmin::text::bigint) FROM by_command")
    command(*words)
    assert postgres.execute("SELECT max(xmin::text::bigint) FROM by_command") == before
    assert Run(source.with_name("runs") / "by_command").verify().verified


def test_load_from_python(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call elsewhere finds that the work is done."""

    def fake(work: dict[str, Any], execution: dict[str, Any]) -> Any:
        return make_spec({**work, "task": "shardmill.testing:FakeTask"}, execution)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shardmill.run.loading.make_spec", fake)
    monkeypatch.setattr("shardmill.engines.local.LocalEngine", lambda devices, **how: InProcessEngine())
    source = str(write_jsonl(fake_rows(20)))
    where: dict[str, Any] = {"text": "text", "id": "id", "to": postgres.url(), "table": "from_python", "dims": 16}
    run = shardmill.load(source, index="none", batch_rows=8, **where)
    assert postgres.execute("SELECT count(*), min(vector_dims(embedding)) FROM from_python") == [(20, 16)]
    assert Table(place_of(run)).search_many([fake_rows(20)[3]["text"]], 1)[0][0].values["id"] == "k3"
    seen = count_texts(monkeypatch)
    again = shardmill.load(source, out="elsewhere", index="none", **where)
    assert again.plan.id == run.plan.id
    assert seen == []
    with pytest.raises(SpecError, match="No --table"):
        shardmill.load(source, text="text", id="id", to=postgres.url())


def test_embed_points_to_load_for_a_table() -> None:
    with pytest.raises(TypeError, match=r"embed\(\) has no option 'to'. It is an option of load"):
        shardmill.embed("x.jsonl", text="text", to="postgresql:///docs", table="documents")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="No --out was given"):
        shardmill.embed("x.jsonl", text="text")
    with pytest.raises(TypeError, match=r"embed\(\) has no option 'modle'. .*Did you mean 'model'"):
        shardmill.embed("x.jsonl", text="text", out="runs/x", modle="m")  # type: ignore[call-arg]


def test_batches_of_any_size_have_the_digest_of_their_items_and_old_records_none(
    postgres: PostgresServer, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """It is in the ledger of the database, since a complete shard is not read again."""
    rows = fake_rows(40)
    rows[5]["text"] = ""
    source, digests = write_jsonl(rows), []
    for size in (7, 100):
        spec = table_spec(source, postgres.url(), f"digested_{size}", batch_rows=size)
        run = start(spec, tmp_path / f"digested_{size}", engine=InProcessEngine())
        digests.append([commit.items_digest for _, commit in sorted(run.ledger.commits.read().items())])
        seen = {check.name: check.seen for check in run.verify(sample=0).checks}
        assert seen["contents"] == "ids, texts and kept columns of 40 items are those of the source"
    assert digests[0] == digests[1]
    assert all(digests[0])
    run.ledger.store.delete(run.ledger.commits.key(0))
    postgres.execute("UPDATE shardmill.batches SET items_digest = NULL WHERE table_name = 'digested_100'")
    again = start(spec, tmp_path / "digested_100", engine=InProcessEngine(), resume=True)
    report = again.verify(sample=0)
    assert again.ledger.commits.get(0).items_digest == ""
    assert report.verified, report
    assert "written before items had digests" in str(report)
