"""Avro files, written by fastavro: the same rows as it reads, however they are cut and packed."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import re
import sys
import uuid
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill import make_spec, start
from shardmill.core.errors import MissingExtra, SourceError, StaleResume
from shardmill.sources import Fields, count_lines, discover, open_source
from shardmill.sources.avro import blocks
from shardmill.store import open_store
from tests.support.libraries import needed

fastavro = needed("fastavro")
ROWS = 3000
UTC = datetime.UTC


def record(**types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "item", "fields": [{"name": n, "type": kind} for n, kind in types.items()]}


PLAIN = record(id="long", text=["null", "string"])


PACK = {
    "null": lambda data: data,
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    return [{"id": i, "text": f"review {i} ünï {'x' * (i % 30)}"} for i in range(count)]


def write(path: Path, given: list[dict[str, Any]], schema: Any = PLAIN, codec: str = "null", block: int = 500) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, schema, given, codec, sync_interval=block)
    return path


def rewrite(path: Path, codec: str = "null", schema: Any = None) -> Path:
    """The file with its blocks packed by Arrow, since fastavro needs packages for these codecs; or with a schema that
    tells other types of the same bytes."""
    data = path.read_bytes()
    whole = blocks.AvroBlocks(lambda start, stop: data[start:stop], len(data))
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out,
        blocks._HEADER,
        {
            "magic": blocks.MAGIC,
            "meta": {"avro.schema": json.dumps(schema or whole.header.schema).encode(), "avro.codec": codec.encode()},
            "sync": whole.header.sync,
        },
    )
    for block in whole.walk(whole.header.size, len(data)):
        packed = PACK[codec](data[block.start : block.stop])
        for number in (block.rows, len(packed)):
            fastavro.schemaless_writer(out, "long", number)
        out.write(packed + whole.header.sync)
    path.write_bytes(out.getvalue())
    return path


def read(place: object, fields: Fields, target_bytes: int = 1 << 30) -> list[dict[str, Any]]:
    source = open_source(discover([str(place)], fields), fields)
    found = []
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            assert not batch.bad
            pairs = zip(batch.kept.to_pylist(), batch.texts.to_pylist(), strict=True)
            found += [{**kept, "text": text} for kept, text in pairs]
    return found


@pytest.mark.parametrize("target_bytes", [1, 1000, 1 << 30])
@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_rows_are_the_same_however_it_is_cut_and_packed(tmp_path: Path, codec: str, target_bytes: int) -> None:
    path = tmp_path / "a.avro"
    if codec in ("snappy", "zstandard"):
        rewrite(write(path, rows()), codec)
    else:
        write(path, rows(), codec=codec)
    fields = Fields("text", id=("id",), keep=("line",))
    stat = discover([str(path)], fields)
    assert (len(open_source(stat, fields).shards(target_bytes)) > 10) == (target_bytes < 1 << 30)
    wanted = [{**row, "line": i + 1} for i, row in enumerate(rows())]
    assert read(path, fields, target_bytes) == wanted
    assert count_lines(stat, stat.files[0]) == ROWS


def test_places_depend_on_no_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", rows())
    places = []
    for target_bytes in (1, 1 << 30):
        source = open_source(discover([str(path)], Fields("text")), Fields("text"))
        found = [batch for shard in source.shards(target_bytes) for batch in source.read(shard)]
        places.append([place for batch in found for place in batch.places])
    assert places[0] == places[1]
    assert len({*places[0]}) == ROWS


def test_in_a_store(tmp_path: Path) -> None:
    open_store("memory://avro").put("a.avro", write(tmp_path / "a.avro", rows()).read_bytes())
    assert read("memory://avro/a.avro", Fields("text", id=("id",)), 1000) == rows()


MOMENT = datetime.datetime(2026, 1, 31, 12, 30, 1, 500_000, UTC)
INNER = {
    "type": "record",
    "name": "inner",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}],
}
# Each type, a value as it is written, what Arrow has as its type, and the value of a row.
KINDS: dict[str, tuple[Any, Any, pa.DataType, Any]] = {
    "bool": ("boolean", True, pa.bool_(), True),
    "int": ("int", -(2**31), pa.int32(), -(2**31)),
    "long": (["null", "long"], 2**63 - 1, pa.int64(), 2**63 - 1),
    "double": ("double", 0.1, pa.float64(), 0.1),
    "float": ("float", 0.5, pa.float32(), 0.5),
    "bytes": ("bytes", b"\x00\xff", pa.binary(), b"\x00\xff"),
    "fixed": ({"type": "fixed", "name": "four", "size": 4}, b"abcd", pa.binary(4), b"abcd"),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    "date": ({"type": "int", "logicalType": "date"}, MOMENT.date(), pa.date32(), MOMENT.date()),
    "time": ({"type": "int", "logicalType": "time-millis"}, MOMENT.time(), pa.time32("ms"), MOMENT.time()),
    "moment": ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, pa.timestamp("us", "UTC"), MOMENT),
    "millis": (
        ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        MOMENT,
        pa.timestamp("ms", "UTC"),
        MOMENT,
    ),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        MOMENT.replace(tzinfo=None),
        pa.timestamp("us"),
        MOMENT.replace(tzinfo=None),
    ),
    "price": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        decimal.Decimal("-12.50"),
        pa.decimal128(9, 2),
        decimal.Decimal("-12.50"),
    ),
    "uuid": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), pa.string(), str(uuid.UUID(int=7))),
    "list": ({"type": "array", "items": ["null", "string"]}, ["a", None], pa.list_(pa.string()), ["a", None]),
    "map": ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "inner": (INNER, {"a": 1, "b": None}, pa.struct({"a": pa.int32(), "b": pa.string()}), {"a": 1, "b": None}),
    "again": (
        {"type": "array", "items": "inner"},
        [{"a": 2, "b": "c"}],
        pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()})),
        [{"a": 2, "b": "c"}],
    ),
    "deep": (
        {"type": "array", "items": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}},
        [decimal.Decimal("1.5")],
        pa.list_(pa.decimal128(4, 1)),
        [decimal.Decimal("1.5")],
    ),
    "numbers": (["null", "int", "double"], 3, pa.float64(), 3.0),
    "mixed": (["null", "string", "long"], 3, pa.string(), "3"),
    "dated": (["string", {"type": "int", "logicalType": "date"}], MOMENT.date(), pa.string(), '"2026-01-31"'),
    "either": (["long", INNER | {"name": "other"}], {"a": 1, "b": "ü"}, pa.string(), '{"a": 1, "b": "ü"}'),
    "nothing": ("null", None, pa.string(), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_arrow(tmp_path: Path, kind: str) -> None:
    schema, value, type, wanted = KINDS[kind]
    fields: dict[str, Any] = (
        {"text": "string", "inner0": INNER | {"name": "inner"}} if kind == "again" else {"text": "string"}
    )
    row = {"text": "a", "inner0": {"a": 0, "b": None}, "v": value}
    path = write(tmp_path / "a.avro", [row], record(**fields, v=schema))
    found = read(path, Fields("text", keep=("v",)))
    stat = discover([str(path)], Fields("text", keep=("v",)))
    column = open_source(stat, Fields("text", keep=("v",)))
    assert next(iter(column.read(column.shards(1)[0]))).kept.schema.field("v").type == type
    assert found == [{"v": value if wanted is None else wanted, "text": "a"}]


def test_a_record_inside_itself_is_json(tmp_path: Path) -> None:
    tree = {
        "type": "record",
        "name": "tree",
        "fields": [{"name": "v", "type": "int"}, {"name": "left", "type": ["null", "tree"]}],
    }
    given = {"text": "a", "tree": {"v": 1, "left": {"v": 2, "left": None}}}
    path = write(tmp_path / "a.avro", [given], record(text="string", tree=tree))
    assert read(path, Fields("text", keep=("tree",)))[0]["tree"] == {"v": 1, "left": '{"v": 2, "left": null}'}


def test_moments_that_python_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", [{"text": "a", "at": 2**62}], record(text="string", at="long"))
    rewrite(path, schema=record(text="string", at={"type": "long", "logicalType": "timestamp-micros"}))
    source = open_source(discover([str(path)], Fields("text", keep=("at",))), Fields("text", keep=("at",)))
    (batch,) = source.read(source.shards(1)[0])
    assert batch.kept.column("at").cast(pa.int64()).to_pylist() == [2**62]


def test_nulls_blank_and_wrong_texts_are_bad_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.avro",
        [{"id": 0, "text": b"a"}, {"id": 1, "text": None}, {"id": 2, "text": b""}, {"id": 3, "text": b"\xffb"}],
        record(id="long", text=["null", "bytes"]),
    )
    rewrite(path, schema=PLAIN)
    fields = Fields("text", id=("id",))
    source = open_source(discover([str(path)], fields), fields)
    (batch,) = source.read(source.shards(1)[0])
    assert batch.texts.to_pylist() == ["a", None, None, None]
    assert batch.bad == {1: "'text' is null", 2: "the text is blank", 3: "'text' is not valid UTF-8"}


def test_one_large_value(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", [{"id": 0, "text": "x" * (9 << 20)}, {"id": 1, "text": "y"}])
    assert [len(row["text"]) for row in read(path, Fields("text", id=("id",)))] == [9 << 20, 1]
    source = open_source(discover([str(path)], Fields("text")), Fields("text"), max_item_bytes=1 << 20)
    (first, *_) = source.read(source.shards(1)[0])
    assert first.bad[0] == "the text is 9.0 MB, over the limit of 1.0 MB"


def test_files_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "empty.avro", [])
    (tmp_path / "none.avro").touch()
    with pytest.raises(SourceError, match="no rows in all 2 files"):
        discover([str(tmp_path)], Fields("text"))
    write(tmp_path / "z.avro", rows(5))
    assert read(tmp_path, Fields("text", id=("id",))) == rows(5)


def test_a_second_file_with_another_schema(tmp_path: Path) -> None:
    write(tmp_path / "a.avro", rows(3))
    write(tmp_path / "b.avro", [{"text": "more", "id": 7}], record(text="string", id="int"))
    assert read(tmp_path, Fields("text", id=("id",))) == [*rows(3), {"id": 7, "text": "more"}]
    write(tmp_path / "c.avro", [{"body": "more"}], record(body="string"))
    with pytest.raises(SourceError, match=r"no field 'id' in c\.avro|no field 'text' in c\.avro"):
        read(tmp_path, Fields("text", id=("id",)))


def damage(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


def test_damage_names_the_block(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", rows(), codec="deflate")
    data = path.read_bytes()
    whole = blocks.AvroBlocks(lambda start, stop: data[start:stop], len(data))
    found = list(whole.walk(whole.header.size, len(data)))
    fields = Fields("text", id=("id",))
    stat = discover([str(path)], fields)
    hurt, said = found[5], f"a.avro is not readable Avro: the block at byte {found[5].at:,} is damaged"
    for at, change in ((hurt.start + 3, b"\x00\xff\x00\xff"), (hurt.stop, b"no marker"), (hurt.at, b"\x01")):
        path.write_bytes(data)
        damage(path, at, change)
        with pytest.raises(SourceError, match=re.escape(said)):
            read(path, fields)
    path.write_bytes(data[:-7])
    with pytest.raises(SourceError, match="it is truncated"):
        discover([str(path)], fields)
    path.write_bytes(data[:30])
    with pytest.raises(SourceError, match="its header is truncated"):
        discover([str(path)], fields)
    path.write_bytes(b"no avro at all")
    with pytest.raises(SourceError, match="does not begin as Avro"):
        discover([str(path)], fields)
    write(path, rows(9))
    with pytest.raises(StaleResume):
        list(open_source(stat, fields).read(open_source(discover([str(path)], fields), fields).shards(1)[0]))


def test_what_unpacked_data_shows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", [{"id": 1, "text": "abc"}])
    at = path.read_bytes().rindex(b"abc") - 1
    damage(path, at, b"\x04")
    with pytest.raises(SourceError, match="more follows its last record"):
        read(path, Fields("text"))
    damage(path, at, b"\x7e")
    with pytest.raises(SourceError, match=r"the block at byte [0-9,]+ is damaged"):
        read(path, Fields("text"))


def test_data_that_has_the_marker_is_not_cut(tmp_path: Path) -> None:
    marker = b"0123456789abcdef"
    given = [{"id": i, "text": f"{'x' * (i % 90)} {marker.decode()} {'y' * (i % 70)}"} for i in range(400)]
    path = tmp_path / "a.avro"
    with path.open("wb") as file:
        fastavro.writer(file, PLAIN, given, sync_marker=marker, sync_interval=2000)
    fields = Fields("text", id=("id",))
    assert len(open_source(discover([str(path)], fields), fields).shards(1)) > 10
    assert read(path, fields, 1) == given


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.avro", rows(5))
    with pytest.raises(SourceError, match="no field 'body'"):
        discover([str(path)], Fields("body"))
    with pytest.raises(SourceError, match="has type int64, not text"):
        discover([str(path)], Fields("id"))
    packed = path.read_bytes().replace(b"\x08null", b"\x08lz4 ", 1)
    (tmp_path / "b.avro").write_bytes(packed)
    with pytest.raises(SourceError, match="packed with 'lz4 '"):
        discover([str(tmp_path / "b.avro")], Fields("text"))
    with (tmp_path / "c.avro").open("wb") as file:
        fastavro.writer(file, "string", ["a"])
    with pytest.raises(SourceError, match="its items are not records"):
        discover([str(tmp_path / "c.avro")], Fields("text"))
    monkeypatch.setitem(sys.modules, "fastavro", None)
    blocks.library.cache_clear()
    with pytest.raises(MissingExtra, match="fastavro is not installed") as caught:
        discover([str(path)], Fields("text"))
    assert caught.value.hint == "Install it with: pip install 'shardmill[files]'"


def test_a_part_is_taken_and_verified(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avro", rows())
    work = {"source": str(path), "text": "text", "id": "id", "where": "id < 500", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {"shard_bytes": 1000}), tmp_path / "run")
    assert run.table(["id"]).num_rows == 500
    assert run.verify(sample=8).verified
