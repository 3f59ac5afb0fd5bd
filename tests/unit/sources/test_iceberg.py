"""Iceberg tables, written by pyiceberg: the rows of the current snapshot, as the table has its columns now."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import json
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import make_spec, start
from shardmill.core.errors import MissingExtra, SourceError, StaleResume
from shardmill.sources import Fields, discover, list_columns, open_source
from shardmill.sources.avro import blocks
from shardmill.store import open_store
from shardmill.testing import check_source
from tests.support.libraries import needed

fastavro = needed("fastavro")
needed("pyiceberg")
sql, schemas, transforms, kinds = (
    needed(f"pyiceberg.{name}") for name in ("catalog.sql", "schema", "transforms", "types")
)
SCHEMA = pa.schema([("id", pa.int32()), ("text", pa.string()), ("lang", pa.string()), ("tags", pa.list_(pa.string()))])


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    found = [
        {"id": i, "text": f"review {i}", "lang": ("en", "de", None, "a b/c")[i % 4], "tags": [f"t{i}", None]}
        for i in numbers
    ]
    return pa.Table.from_pylist(found, SCHEMA)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Any]:
    opened = sql.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalogue.db", warehouse=f"file://{tmp_path}/warehouse")
    opened.create_namespace("shop")
    yield opened
    opened.destroy_tables()
    opened.engine.dispose()


@pytest.fixture
def table(catalogue: Any) -> Any:
    return catalogue.create_table("shop.reviews", SCHEMA)


def folder(table: Any) -> Path:
    return Path(table.location().removeprefix("file://"))


def read(place: str | Path, text: str = "text", keep: tuple[str, ...] = ("lang", "tags")) -> Counter[str]:
    fields = Fields(text, id=("id",), keep=keep)
    source = open_source(discover([str(place)], fields), fields)
    found: Counter[str] = Counter()
    for shard in source.shards(1 << 20):
        for batch in source.read(shard):
            assert not batch.bad
            pairs = zip(batch.texts.to_pylist(), batch.kept.to_pylist(), strict=True)
            found.update(repr((text, *row.items())) for text, row in pairs)
    return found


def written(table: Any, text: str = "text", keep: tuple[str, ...] = ("lang", "tags")) -> Counter[str]:
    scanned = table.refresh().scan().to_arrow().to_pylist()
    return Counter(repr((row[text], *((name, row[name]) for name in ("id", *keep)))) for row in scanned)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("version", ["1", "2"])
def test_the_rows_are_those_that_pyiceberg_reads(catalogue: Any, partitioned: bool, version: str) -> None:
    table = catalogue.create_table("shop.reviews", SCHEMA, properties={"format-version": version})
    if partitioned:
        with table.update_spec() as spec:
            spec.add_field("lang", transforms.IdentityTransform(), "lang")
            spec.add_field("id", transforms.BucketTransform(3), "id_bucket")
    table.append(rows(0, 50))
    table.append(rows(50, 30))
    assert read(folder(table)) == written(table)
    table.delete("id < 7 or lang = 'de'")
    assert read(folder(table)) == written(table)
    table.overwrite(rows(100, 9), overwrite_filter="id >= 40")
    assert read(folder(table)) == written(table)
    for i in range(8):
        table.append(rows(200 + i, 1))
    assert read(folder(table)) == written(table)
    table.overwrite(rows(300, 5))
    assert read(folder(table)) == written(table)
    assert sum(read(folder(table)).values()) == 5
    table.delete("id >= 0")
    with pytest.raises(SourceError, match="this Iceberg table has no rows"):
        read(folder(table))


def test_columns_that_were_renamed_added_dropped_and_retyped(table: Any) -> None:
    table.append(rows(0, 10))
    with table.update_schema() as change:
        change.rename_column("text", "body")
        change.add_column("stars", kinds.IntegerType())
        change.update_column("id", kinds.LongType())
    later = (
        rows(10, 5)
        .rename_columns(["id", "body", "lang", "tags"])
        .append_column("stars", pa.array(range(5), pa.int32()))
    )
    table.append(later.set_column(0, "id", pa.array([2**40 + i for i in range(5)], pa.int64())))
    keep = ("lang", "tags", "stars")
    assert read(folder(table), "body", keep) == written(table, "body", keep)
    assert dict(list_columns([str(folder(table))])) == {
        "id": pa.int64(),
        "body": pa.string(),
        "lang": pa.string(),
        "tags": pa.list_(pa.field("element", pa.string())),
        "stars": pa.int32(),
    }
    with pytest.raises(SourceError, match="no field 'text'"):
        read(folder(table))
    with table.update_schema() as change:
        change.delete_column("lang")
    with pytest.raises(SourceError, match="no field 'lang'"):
        read(folder(table), "body")
    with table.update_schema() as change:
        change.add_column("lang", kinds.StringType())
    assert read(folder(table), "body", keep) == written(table, "body", keep)
    assert all("('lang', None)" in row for row in read(folder(table), "body", keep))
    with table.update_schema() as change:
        change.rename_column("lang", "once")
        change.rename_column("body", "lang")
    with table.update_schema() as change:
        change.rename_column("once", "body")
    assert read(folder(table), "lang", ("body", "stars")) == written(table, "lang", ("body", "stars"))


def test_a_file_that_has_none_of_the_columns(table: Any) -> None:
    table.append(rows(0, 3))
    with table.update_schema() as change:
        change.add_column("stars", kinds.IntegerType())
    fields = Fields("{stars:json}!")
    source = open_source(discover([str(folder(table))], fields), fields)
    (batch,) = source.read(source.shards(1)[0])
    assert batch.bad == dict.fromkeys(range(3), "no value in 'stars'")


def test_conditions_are_judged_by_columns_of_now(table: Any, tmp_path: Path) -> None:
    """The file has statistics of another column by the same name."""
    table.append(rows(0, 40))
    with table.update_schema() as change:
        change.rename_column("lang", "once")
        change.rename_column("text", "lang")
    with table.update_schema() as change:
        change.rename_column("once", "text")
    work = {"source": str(folder(table)), "text": "lang", "id": "id", "where": "lang >= 'review 3'"}
    run = start(make_spec({**work, "task": "shardmill.testing:FakeTask"}, {}), tmp_path / "run")
    assert sorted(run.table(["id"]).column("id").to_pylist()) == [*range(3, 10), *range(30, 40)]
    assert run.verify(sample=4).verified


def test_every_type(catalogue: Any) -> None:
    schema = kinds.NestedField
    types = {
        "bool": (kinds.BooleanType(), True),
        "long": (kinds.LongType(), 2**62),
        "float": (kinds.FloatType(), 0.5),
        "double": (kinds.DoubleType(), 0.1),
        "date": (kinds.DateType(), datetime.date(2026, 1, 31)),
        "time": (kinds.TimeType(), datetime.time(1, 2, 3, 4)),
        "at": (kinds.TimestampType(), datetime.datetime(2026, 1, 31, 1)),
        "atz": (kinds.TimestamptzType(), datetime.datetime(2026, 1, 31, 1, tzinfo=datetime.UTC)),
        "price": (kinds.DecimalType(9, 2), decimal.Decimal("1.50")),
        "binary": (kinds.BinaryType(), b"\x00\xff"),
        "fixed": (kinds.FixedType(3), b"abc"),
        "uuid": (kinds.UUIDType(), uuid.UUID(int=7).bytes),
        "inner": (
            kinds.StructType(
                schema(101, "a", kinds.IntegerType(), required=False),
                schema(102, "b", kinds.StringType(), required=False),
            ),
            {"a": 1, "b": "c"},
        ),
        "pairs": (kinds.MapType(103, kinds.StringType(), 104, kinds.LongType(), False), [("a", 1)]),
        "list": (kinds.ListType(105, kinds.LongType(), False), [1, None]),
    }
    fields = [schema(i + 1, name, kind, required=False) for i, (name, (kind, _)) in enumerate(types.items())]
    table = catalogue.create_table(
        "shop.types", schemas.Schema(*fields, schema(90, "text", kinds.StringType(), required=False))
    )
    row = {name: value for name, (_, value) in types.items()} | {"text": "a"}
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([row, dict.fromkeys(types) | {"text": "b"}], schema=arrow))
    asked = Fields("text", keep=tuple(types))
    source = open_source(discover([str(folder(table))], asked), asked)
    (batch,) = source.read(source.shards(1)[0])
    assert not batch.bad
    found = batch.kept.to_pylist()
    assert found[0] == {name: value for name, (_, value) in types.items()}
    assert found[1] == dict.fromkeys(types)


def test_fields_inside_a_column_that_changed_are_refused(catalogue: Any) -> None:
    schema = pa.schema([("text", pa.string()), ("inner", pa.struct({"a": pa.int32(), "b": pa.int32()}))])
    table = catalogue.create_table("shop.inner", schema)
    table.append(pa.Table.from_pylist([{"text": "x", "inner": {"a": 1, "b": 2}}], schema))
    asked = Fields("text", keep=("inner",))
    assert discover([str(folder(table))], asked).files
    with table.update_schema() as change:
        change.rename_column("inner.a", "c")
    source = open_source(discover([str(folder(table))], asked), asked)
    with pytest.raises(SourceError, match="the column 'inner' was struct<a: int32, b: int32> when it was written"):
        source.shards(1)
    assert open_source(discover([str(folder(table))], Fields("text")), Fields("text")).shards(1)


def test_files_without_ids_are_read_by_the_names_of_the_table(table: Any, tmp_path: Path) -> None:
    table.append(rows(0, 3))
    added = folder(table) / "data" / "added.parquet"
    pq.write_table(rows(3, 4), added)
    table.add_files([f"file://{added}"])
    with table.update_schema() as change:
        change.rename_column("text", "body")
    assert read(folder(table), "body", ("lang",)) == written(table, "body", ("lang",))
    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(SourceError, match=r"added\.parquet: the column 'body' is told by no id"):
        read(folder(table), "body", ("lang",))


def test_a_column_that_only_the_metadata_has_is_refused(table: Any) -> None:
    with table.update_spec() as spec:
        spec.add_field("lang", transforms.IdentityTransform(), "lang")
    table.append(rows(0, 4).slice(1, 1))
    (file,) = (folder(table) / "data").rglob("*.parquet")
    pq.write_table(pq.ParquetFile(file).read(["id", "text"]), file)
    assert sum(read(folder(table), keep=()).values()) == 1
    with pytest.raises(SourceError, match="the column 'lang' is not in it, but in the metadata of its table"):
        read(folder(table), keep=("lang",))


def test_a_copied_table_and_one_in_a_store(table: Any, tmp_path: Path) -> None:
    table.append(rows(0, 20))
    table.delete("id = 3")
    wanted = written(table)
    shutil.move(folder(table), tmp_path / "moved")
    assert read(tmp_path / "moved") == wanted
    store = open_store("memory://iceberg/tables/reviews")
    for file in (tmp_path / "moved").rglob("*.*"):
        store.put(str(file.relative_to(tmp_path / "moved")), file.read_bytes())
    assert read("memory://iceberg/tables/reviews") == wanted
    with pytest.raises(SourceError, match="has an Iceberg table inside it: reviews") as caught:
        read("memory://iceberg/tables")
    assert caught.value.hint == "Name one table: memory://iceberg/tables/reviews"


def test_it_keeps_the_contract(table: Any) -> None:
    table.append(rows(0, 20))
    table.append(rows(20, 7))
    with table.update_schema() as change:
        change.rename_column("text", "body")
    files = discover([str(folder(table))], Fields("body")).files
    ordered = [row for file in files for row in pq.read_table(file.place).to_pylist()]
    wanted = [{"id": row["id"], "body": row["text"]} for row in ordered]
    assert check_source([folder(table)], rows=wanted, text="body", id="id") >= 20


def test_a_run_stays_with_its_snapshot(table: Any, tmp_path: Path) -> None:
    table.append(rows(0, 20))
    work = {"source": str(folder(table)), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    first = start(make_spec(work, {}), tmp_path / "run")
    assert start(make_spec(work, {}), tmp_path / "run").plan.id == first.plan.id
    pinned = table.metadata_location.removeprefix("file://")
    table.append(rows(20, 5))
    assert first.verify(sample=4).verified
    with pytest.raises(StaleResume, match="the source had"):
        start(make_spec(work, {}), tmp_path / "run")
    assert start(make_spec({**work, "source": pinned}, {}), tmp_path / "run").plan.id == first.plan.id
    assert start(make_spec(work, {}), tmp_path / "later").table(["id"]).num_rows == 25


def test_a_run_does_not_go_on_after_its_columns_changed(table: Any, tmp_path: Path) -> None:
    table.append(rows(0, 4))
    work = {"source": str(folder(table)), "text": "text", "task": "shardmill.testing:FakeTask"}
    start(make_spec(work, {}), tmp_path / "run")
    with table.update_schema() as change:
        change.rename_column("text", "once")
        change.rename_column("lang", "text")
    with pytest.raises(StaleResume, match="columns of its table have other names or types"):
        start(make_spec(work, {}), tmp_path / "run")


def metadata(table: Any) -> Path:
    return Path(table.refresh().metadata_location.removeprefix("file://"))


def test_the_current_version(table: Any) -> None:
    table.append(rows(0, 3))
    table.append(rows(3, 3))
    names = sorted((folder(table) / "metadata").glob("*.metadata.json"))
    assert len(names) == 3
    for i, name in enumerate(names):
        name.rename(name.with_name(f"v{9 + i}.metadata.json"))
    assert sum(read(folder(table)).values()) == 6
    # A hint that lags behind is followed to the last version; one that lies behind a gap is not.
    hint = folder(table) / "metadata" / "version-hint.text"
    hint.write_text("10\n")
    assert sum(read(folder(table)).values()) == 6
    last = folder(table) / "metadata" / "v11.metadata.json"
    last.rename(last.with_name("v12.metadata.json"))
    assert sum(read(folder(table)).values()) == 3
    hint.write_text("v12")
    assert sum(read(folder(table)).values()) == 6
    hint.unlink()
    packed = last.with_name("v13.gz.metadata.json")
    packed.write_bytes(gzip.compress(last.with_name("v12.metadata.json").read_bytes()))
    assert sum(read(folder(table)).values()) == 6


def test_names_that_tell_no_version(table: Any) -> None:
    table.append(rows(0, 3))
    for i, name in enumerate((folder(table) / "metadata").glob("*.metadata.json")):
        name.rename(name.with_name(f"last{'r' * i}.metadata.json"))
    with pytest.raises(SourceError, match="no name of a metadata file tells its version"):
        read(folder(table))


def test_two_last_versions(table: Any) -> None:
    table.append(rows(0, 3))
    shutil.copy(metadata(table), metadata(table).with_name("00001-another.metadata.json"))
    with pytest.raises(SourceError, match="has 2 metadata files of its last version") as caught:
        read(folder(table))
    assert str(caught.value.hint).startswith("Name the one that its catalogue has: ")
    assert sum(read(metadata(table)).values()) == 3


def test_a_table_without_a_snapshot(table: Any) -> None:
    with pytest.raises(SourceError, match="this Iceberg table has no snapshot, and so no rows"):
        read(folder(table))


def change_manifest(table: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the last manifest anew, with its entries changed."""
    (name,) = (each.manifest_path for each in table.current_snapshot().manifests(table.io)[:1])
    path = Path(name.removeprefix("file://"))
    found = fastavro.reader(io.BytesIO(path.read_bytes()))
    entries, schema = list(found), found.writer_schema
    for entry in entries:
        change(entry)
    with path.open("wb") as file:
        fastavro.writer(
            file, schema, entries, "deflate", metadata={k: v for k, v in found.metadata.items() if k[:4] != "avro"}
        )


@pytest.mark.parametrize(
    ("file", "refusal"),
    [
        ({"content": 1}, "1 files of position deletes"),
        ({"content": 2}, "1 files of equality deletes"),
        ({"content": 1, "file_format": "PUFFIN"}, "1 files of deletion vectors"),
        ({"file_format": "ORC"}, "data files in ORC"),
        ({"key_metadata": b"key"}, "encrypted files"),
        ({"file_format": "AVRO"}, "a file in AVRO that is not named .avro: file:/"),
        ({"file_path": "s3://elsewhere/a.parquet"}, "this Iceberg table has files elsewhere: s3://elsewhere/a.parquet"),
        ({"file_path": "lost.parquet"}, "1 files of this Iceberg table are not there, among them data/lost.parquet"),
    ],
)
def test_what_is_not_read_is_refused_by_name(table: Any, file: dict[str, Any], refusal: str) -> None:
    table.append(rows(0, 3))
    if file.get("file_path") == "lost.parquet":
        file = {"file_path": f"{table.location()}/data/lost.parquet"}
    change_manifest(table, lambda entry: entry["data_file"].update(file))
    with pytest.raises(SourceError, match=refusal):
        read(folder(table))


def test_a_table_of_avro_files(table: Any) -> None:
    table.append(rows(0, 9))
    wanted = written(table, keep=("lang",))
    (file,) = (folder(table) / "data").glob("*.parquet")
    fields = [("id", 1, "int"), ("once", 2, "string"), ("lang", 3, "string")]
    schema = {
        "type": "record",
        "name": "table",
        "fields": [{"name": name, "type": ["null", kind], "field-id": id} for name, id, kind in fields],
    }
    found = pq.ParquetFile(file).read().drop_columns("tags").rename_columns(["id", "once", "lang"]).to_pylist()
    with file.with_suffix(".avro").open("wb") as opened:
        fastavro.writer(opened, schema, found, "deflate")
    address = f"file://{file.with_suffix('.avro')}"
    change_manifest(table, lambda entry: entry["data_file"].update({"file_path": address, "file_format": "AVRO"}))
    assert read(folder(table), keep=("lang",)) == wanted
    with table.update_schema() as change:
        change.rename_column("text", "body")
    assert read(folder(table), "body", ("lang",)) == wanted


def test_damage(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(rows(0, 3))
    known = metadata(table)
    good = known.read_bytes()
    strange = [
        (b'"snapshots":', b'"once":'),
        (b'"current-snapshot-id":', b'"current-snapshot-id":1'),
        (b'"name":"text"', b'"name":["text"]'),
        (b'"name":"text"', b'"name":null'),
    ]
    for bad in (b"{oh", b"[]", b"{}", b"[" * 100_000, *(good.replace(*pair) for pair in strange)):
        assert bad != good
        known.write_bytes(bad)
        with pytest.raises(SourceError, match="its metadata/ cannot be read"):
            read(folder(table))
    known.write_text(json.dumps(json.loads(good) | {"format-version": 4}))
    with pytest.raises(SourceError, match="an Iceberg table with format 4, which is not read"):
        read(folder(table))
    known.write_bytes(good)
    (manifest,) = (folder(table) / "metadata").glob("*-m0.avro")
    data = manifest.read_bytes()
    manifest.write_bytes(data[:-30])
    with pytest.raises(SourceError, match=r"its metadata/ cannot be read \(BadBlocks: the block at byte"):
        read(folder(table))
    manifest.unlink()
    with pytest.raises(SourceError, match=r"m0\.avro, which its metadata names"):
        read(folder(table))
    manifest.write_bytes(data)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    blocks.library.cache_clear()
    with pytest.raises(MissingExtra) as caught:
        read(folder(table))
    assert caught.value.hint == "Install it with: pip install 'shardmill[iceberg]'"
    blocks.library.cache_clear()
