"""What other programs write is read: each row once, in order, in any number of shards, from every store.

A program that is not on the machine is stood in for by a file that it wrote (tests/data/programs/README.md).
"""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.sources import SourceStat, discover
from shardmill.sources.compressed import entries
from shardmill.store import open_store
from shardmill.verbs.split import split_files
from tests.support.debian import require
from tests.support.services import PostgresServer, unavailable
from tests.support.sources import FIELDS, Row, as_csv, as_jsonl, as_tsv, put, read_all

KEPT = Path(__file__).parents[2] / "data" / "programs"
COMPRESSORS = {
    "gzip": (["gzip", "-nc"], "gz"),
    "pigz": (["pigz", "-nc", "-b", "32"], "gz"),
    "pigz, independent blocks": (["pigz", "-nci", "-b", "32"], "gz"),
    "bgzip": (["bgzip", "-c"], "gz"),
    "zstd": (["zstd", "-qc"], "zst"),
    "zstd from a pipe": (["zstd", "-qc", "--no-content-size"], "zst"),
    "bzip2": (["bzip2", "-c"], "bz2"),
    "xz": (["xz", "-c"], "xz"),
}
PACKAGES = {"gzip": "gzip", "pigz": "pigz", "bgzip": "tabix", "zstd": "zstd", "bzip2": "bzip2", "xz": "xz-utils"}


def program_rows() -> list[Row]:
    """Rows with what programs quote, escape or trip over; more than a block of bgzip has."""
    texts = (f'{i}, "é"\tand\n{{"a": [1, 2]}}\\{chr(0x1F600)} \\n ' + "word " * (i % 23) for i in range(1200))
    return [{"key": f"k{i}", "body": text + "end", "n": i - 600} for i, text in enumerate(texts)]


ROWS = program_rows()
PLAIN = {
    "jsonl": as_jsonl(ROWS, "\n", True),
    "csv": as_csv(ROWS, "\r\n", True),
    "tsv": as_tsv(ROWS, "\n", False),
    "json": json.dumps(ROWS).encode(),
}


def compress(command: list[str], path: Path) -> bytes:
    return subprocess.run([*command, str(path)], capture_output=True, check=True).stdout


def kept_name(compressor: str, format: str = "jsonl") -> str:
    return f"{compressor.replace(', ', ' ').replace(' ', '-')}.{format}.{COMPRESSORS[compressor][1]}"


@pytest.fixture(autouse=True)
def small_spacing(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small files are entered as large ones are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(entries, "ENTRIES_FROM_BYTES", 1)
    monkeypatch.setattr(entries, "SPACING_BYTES", 4000)
    monkeypatch.setattr(entries, "_MOST_ENTRIES", 10**9)


def check_shards(stat: SourceStat, shards: int) -> None:
    found = read_all(stat, max(1, stat.size_bytes // shards))
    assert found == ROWS


in_any_number = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@in_any_number
@given(shards=st.integers(1, 40))
@pytest.mark.parametrize("format", PLAIN)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_compressors(tmp_path: Path, compressor: str, format: str, shards: int) -> None:
    command, ending = COMPRESSORS[compressor]
    place = tmp_path / f"a.{format}.{ending}"
    if not place.exists():
        require(command[0], PACKAGES[command[0]])
        (tmp_path / format).write_bytes(PLAIN[format])
        place.write_bytes(compress(command, tmp_path / format))
    check_shards(discover([str(place)], FIELDS), shards)


@in_any_number
@given(shards=st.integers(1, 40))
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_files_of_compressors_that_may_be_missing(compressor: str, shards: int) -> None:
    check_shards(discover([str(KEPT / kept_name(compressor))], FIELDS), shards)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_compressed_files_in_every_store(place: str, compressor: str) -> None:
    """Twice the file, one after the other, is a file of two members or frames."""
    name = kept_name(compressor)
    put(place, name, 2 * (KEPT / name).read_bytes())
    assert read_all(discover([f"{place}/{name}"], FIELDS), 50_000) == 2 * ROWS


# pandas and DuckDB.


def pandas_files(folder: Path) -> Iterator[Path]:
    frame = library("pandas").DataFrame(ROWS)
    for ending in ("", ".gz", ".zst", ".bz2", ".xz"):
        frame.to_json(path := folder / f"lines.jsonl{ending}", orient="records", lines=True)
        yield path
        frame.to_csv(path := folder / f"frame.csv{ending}", index=False)
        yield path
    frame.to_csv(path := folder / "frame.tsv", sep="\t", index=False)
    yield path
    frame.to_json(path := folder / "array.json", orient="records", indent=1, force_ascii=False)
    yield path
    frame.to_json(path := folder / "array.json.gz", orient="records")
    yield path
    for compression in ("snappy", "gzip", "zstd", None):
        frame.to_parquet(path := folder / f"{compression}.parquet", compression=compression, row_group_size=100)
        yield path
    frame.astype({"body": "category"}).to_parquet(path := folder / "category.parquet", row_group_size=100)
    yield path
    frame.to_feather(path := folder / "frame.feather")
    yield path


def duckdb_files(folder: Path) -> Iterator[Path]:
    duckdb = library("duckdb")
    (folder / "rows.jsonl").write_bytes(PLAIN["jsonl"])
    with duckdb.connect() as connection:
        connection.execute(
            f"create table t as select * from read_json('{folder}/rows.jsonl', columns={{key: 'varchar', body: "
            "'varchar', n: 'bigint'})"
        )
        for name, options in {
            "d.csv": "header",
            "d.csv.gz": "header, compression gzip",
            "d.csv.zst": "header, compression zstd",
            "quoted.csv": "header, force_quote *",
            "d.tsv": "header, delimiter '\t'",
            "d.jsonl": "format json",
            "d.json": "",
            "d.jsonl.gz": "format json, compression gzip",
            "d.jsonl.zst": "format json, compression zstd",
            "array.json": "array true",
            "array.json.gz": "array true, compression gzip",
            "d.parquet": "",
            "zstd.parquet": "compression zstd, row_group_size 300",
            "v2.parquet": "compression gzip, parquet_version v2",
        }.items():
            connection.execute(f"copy t to '{folder}/{name}' {f'({options})' if options else ''}")
            yield folder / name


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        unavailable(f"{name} is not installed: pip install --requirement tests/requirements.txt")


def of_a_library(write: Callable[[Path], Iterator[Path]], folder: Path) -> list[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(write(folder))


@pytest.mark.parametrize("write", [pandas_files, duckdb_files])
def test_libraries(tmp_path: Path, write: Callable[[Path], Iterator[Path]]) -> None:
    for path in of_a_library(write, tmp_path):
        stat = discover([str(path)], FIELDS)
        for shards in (1, 13):
            check_shards(stat, shards)


@pytest.mark.parametrize("write", [pandas_files, duckdb_files])
def test_files_of_libraries_in_every_store(
    place: str, tmp_path_factory: pytest.TempPathFactory, write: Callable[[Path], Iterator[Path]]
) -> None:
    for path in of_a_library(write, tmp_path_factory.mktemp("library")):
        put(place, path.name, path.read_bytes())
        check_shards(discover([f"{place}/{path.name}"], FIELDS), 5)


@pytest.mark.parametrize("write", [pandas_files, duckdb_files])
def test_files_of_libraries_are_split(tmp_path: Path, write: Callable[[Path], Iterator[Path]]) -> None:
    for path in of_a_library(write, tmp_path):
        store = open_store(f"memory://split-{path.parent.name}-{path.name}")
        done = split_files([str(path)], store.url, items=500, format="jsonl", name="d", quiet=True)
        lines = [line for c in done.metadata["chunks"] for line in store.get(f"datasets/d/{c['path']}").splitlines()]
        rows = [json.loads(line) for line in lines]
        assert [{**row, "n": int(row["n"])} for row in rows] == ROWS, path.name


# PostgreSQL.


@pytest.fixture(scope="module")
def copied(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what COPY TO writes."""
    import psycopg

    folder = tmp_path_factory.mktemp("postgres")
    rows = "json_to_recordset(%s::json) AS t(key text, body text, n int)"
    with psycopg.connect(postgres.url()) as connection:
        connection.execute(f"CREATE TEMPORARY TABLE rows AS SELECT * FROM {rows}", [json.dumps(ROWS)])
        for name, options in {"postgres.csv.gz": "FORMAT csv, HEADER", "postgres.tsv.gz": "HEADER"}.items():
            with connection.cursor().copy(f"COPY rows TO STDOUT WITH ({options})") as copy:
                (folder / name).write_bytes(gzip.compress(b"".join(map(bytes, copy)), mtime=0))
    return folder


@pytest.mark.services
@in_any_number
@given(shards=st.integers(1, 40))
def test_postgres_copy_csv(copied: Path, shards: int) -> None:
    check_shards(discover([str(copied / "postgres.csv.gz")], FIELDS), shards)
    check_shards(discover([str(KEPT / "postgres.csv.gz")], FIELDS), shards)


@pytest.mark.services
def test_postgres_copy_text_is_not_tsv(copied: Path) -> None:
    """Its escapes are text to a reader of TSV, which cannot know better: a file with `\\n` in it may mean just that."""
    for folder in (copied, KEPT):
        found = read_all(discover([str(folder / "postgres.tsv.gz")], FIELDS), 10_000)
        escaped = [str(row["body"]).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n") for row in ROWS]
        assert [row["body"] for row in found] == escaped
