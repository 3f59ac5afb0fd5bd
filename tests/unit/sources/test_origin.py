"""Where a row came from: its file, the address of that, and its line, as columns beside those of the data."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from shardmill import make_spec, start
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.origin import hash_text
from tests.support.libraries import needed

fastavro = needed("fastavro")
openpyxl = needed("openpyxl")
needed("python_calamine")

ROWS = 40
Write = Callable[[Path, str], Path]


def texts(name: str) -> list[str]:
    return [f"{name} {i}" for i in range(ROWS)]


def table(name: str) -> pa.Table:
    return pa.table({"text": texts(name)})


def write_jsonl(path: Path, name: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(name)))
    return path


def write_gzip(path: Path, name: str) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts(name)).encode()))
    return packed


def write_text(path: Path, name: str) -> Path:
    path.write_text("\n".join(texts(name)))
    return path


def write_csv(path: Path, name: str) -> Path:
    path.write_text("text\n" + "".join(f'"{text}"\n' for text in texts(name)))
    return path


def write_array(path: Path, name: str) -> Path:
    path.write_text(json.dumps([{"text": text} for text in texts(name)]))
    return path


def write_parquet(path: Path, name: str) -> Path:
    pq.write_table(table(name), path, row_group_size=7)
    return path


def write_arrow(path: Path, name: str) -> Path:
    with pa.ipc.new_file(path, table(name).schema) as writer:
        writer.write_table(table(name), max_chunksize=7)
    return path


def write_pickle(path: Path, name: str) -> Path:
    path.write_bytes(pickle.dumps([{"text": text} for text in texts(name)]))
    return path


def write_orc(path: Path, name: str) -> Path:
    orc.write_table(table(name), path)
    return path


def write_avro(path: Path, name: str) -> Path:
    schema = {"type": "record", "name": "item", "fields": [{"name": "text", "type": "string"}]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"text": text} for text in texts(name)], sync_interval=50)
    return path


def write_excel(path: Path, name: str) -> Path:
    book = openpyxl.Workbook()
    for row in ("text", *texts(name)):
        book.active.append([row])
    book.save(path)
    return path


FORMATS = {
    "jsonl": write_jsonl,
    "jsonl packed": write_gzip,
    "txt": write_text,
    "csv": write_csv,
    "json": write_array,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "pkl": write_pickle,
    "xlsx": write_excel,
    "orc": write_orc,
    "avro": write_avro,
}


def read(places: list[str], fields: Fields, target_bytes: int) -> list[dict[str, Any]]:
    stat = discover(places, fields)
    source = open_source(stat, fields)
    found = []
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            rows = batch.kept.to_pylist()
            found += [{**row, "text": text} for row, text in zip(rows, batch.texts.to_pylist(), strict=True)]
    return found


@pytest.mark.parametrize("target_bytes", [100, 1 << 30])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_tells_file_and_line(tmp_path: Path, kind: str, target_bytes: int) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    suffix = kind.partition(" ")[0]
    places = [FORMATS[kind](tmp_path / folder / f"{name}.{suffix}", name) for folder, name in (("a", "x"), ("b", "y"))]
    found = read([*map(str, places)], Fields("{file}: {text}", keep=("url", "line", "file")), target_bytes)
    first = 2 if kind == "csv" else 1
    wanted = [
        {"url": place.as_uri(), "line": first + i, "file": f"{place.parent.name}/{place.name}"}
        for place in places
        for i in range(ROWS)
    ]
    named = [f"{row['file']}: {text}" for row, text in zip(wanted, texts("x") + texts("y"), strict=True)]
    assert found == [{**row, "text": text} for row, text in zip(wanted, named, strict=True)]


def test_one_file_is_its_name(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", "x")
    assert {row["file"] for row in read([str(tmp_path)], Fields("text", keep=("file",)), 1 << 30)} == {"x.jsonl"}


def test_a_column_of_the_data_is_the_data_s(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"text": f"t {i}", "file": f"scan {i}"}) + "\n" for i in range(3)))
    found = read([str(path)], Fields("text", keep=("file", "line")), 1 << 30)
    assert [(row["file"], row["line"]) for row in found] == [("scan 0", 1), ("scan 1", 2), ("scan 2", 3)]


def test_bad_and_blank_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n\n{bad\n{"text": "b"}')
    found = read([str(path)], Fields("text", keep=("file", "line")), 1)
    assert [(row["text"], row["line"]) for row in found] == [("a", 1), (None, 3), ("b", 4)]
    assert {row["file"] for row in found} == {"x.jsonl"}


def test_a_plan_names_the_files_as_they_were_found(tmp_path: Path) -> None:
    """A host that reads a copy tells the same."""
    (tmp_path / "copies").mkdir()
    write_jsonl(tmp_path / "x.jsonl", "x")
    fields = Fields("text", keep=("file", "url"))
    stat = discover([str(tmp_path / "x.jsonl")], fields)
    assert stat.to_json()["origin"] == ["file", "url"]
    assert stat.to_json()["files"][0]["origin"] == str(tmp_path / "x.jsonl")


def test_who_does_not_ask_gets_the_plan_of_before(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", "x")
    told = discover([str(tmp_path)], Fields("text")).to_json()
    assert "origin" not in told
    assert "origin" not in told["files"][0]


@pytest.mark.parametrize("name", ["filename", "path", "lines", "lineno"])
def test_who_asks_by_another_name_is_told(tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / "x.jsonl", "x")
    with pytest.raises(SourceError, match="Where a row came from is in file, url, line"):
        discover([str(tmp_path)], Fields("text", keep=(name,)))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_hash_is_of_the_text_alone(tmp_path: Path, kind: str) -> None:
    suffix = kind.partition(" ")[0]
    place = FORMATS[kind](tmp_path / f"x.{suffix}", "x")
    found = read([str(place)], Fields("{text}!", id=("hash",)), 100)
    assert [row["hash"] for row in found] == [hash_text(f"{text}!") for text in texts("x")]
    assert len({row["hash"] for row in found}) == ROWS


def test_items_are_numbered_by_their_place(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", "x")
    work = {"source": str(tmp_path / "x.jsonl"), "text": "text", "id": "auto", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {}), tmp_path / "run")
    assert run.plan.work.id == ("file", "line")
    rows = run.table(["file", "line"]).slice(0, 2).to_pylist()
    assert [(row["file"], row["line"]) for row in rows] == [("x.jsonl", 1), ("x.jsonl", 2)]
    assert start(make_spec(work, {}), tmp_path / "run").plan.id == run.plan.id
    with pytest.raises(SourceError, match="no file and line"):
        start(make_spec({**work, "source": "range:0:9", "text": "sample_id"}, {}), tmp_path / "another")


@pytest.mark.parametrize("target_bytes", [100, 1 << 30])
@pytest.mark.parametrize("kind", FORMATS)
def test_folders_that_are_named_by_a_value_are_columns(tmp_path: Path, kind: str, target_bytes: int) -> None:
    suffix = kind.partition(" ")[0]
    folders = ("lang=de/day=2026-01-02", "lang=a%20b/day=__HIVE_DEFAULT_PARTITION__")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        FORMATS[kind](tmp_path / folder / f"x.{suffix}", "x")
    found = read([str(tmp_path)], Fields("{lang}: {text}", keep=("day",)), target_bytes)
    assert [row["day"] for row in found] == [None] * ROWS + ["2026-01-02"] * ROWS
    assert found[0]["text"] == "a b: x 0"
    assert found[-1]["text"] == f"de: x {ROWS - 1}"


def test_a_folder_that_only_some_files_are_in_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "lang=de").mkdir()
    write_jsonl(tmp_path / "lang=de" / "x.jsonl", "x")
    write_jsonl(tmp_path / "y.jsonl", "y")
    with pytest.raises(SourceError, match="no field 'lang'"):
        discover([str(tmp_path)], Fields("text", keep=("lang",)))
