"""The sources that come with shardmill, as declarations; none of their readers is imported here."""

from __future__ import annotations

from shardmill.plugins.base import SourceKind
from shardmill.sources.documents.names import SUFFIXES as DOCUMENTS
from shardmill.sources.documents.names import TARS

_HERE = "shardmill.sources"

JSONL = SourceKind(
    name="jsonl",
    suffixes=(".jsonl", ".ndjson", ".json"),
    reader=f"{_HERE}.lines",
    unit="line",
    compressible=True,
    located=True,
)
TEXT = SourceKind(
    name="text",
    suffixes=(".txt", ".text"),
    reader=f"{_HERE}.lines",
    unit="line",
    column="text",
    compressible=True,
    located=True,
)
CSV = SourceKind(
    name="csv", suffixes=(".csv",), reader=f"{_HERE}.csv.source", unit="record", compressible=True, located=True
)
TSV = SourceKind(
    name="tsv", suffixes=(".tsv",), reader=f"{_HERE}.csv.source", unit="record", compressible=True, located=True
)
PARQUET = SourceKind(
    name="parquet",
    suffixes=(".parquet", ".pq"),
    reader=f"{_HERE}.parquet",
    counted_remotely=True,
    located=True,
    magic=b"PAR1",
    title="Parquet",
)
ORC = SourceKind(
    name="orc",
    suffixes=(".orc",),
    reader=f"{_HERE}.orc",
    counted_remotely=True,
    located=True,
)
AVRO = SourceKind(
    name="avro",
    suffixes=(".avro",),
    reader=f"{_HERE}.avro.source",
    located=True,
    extras=("files",),
    magic=b"Obj\x01",
    title="an Avro file",
)
ARROW = SourceKind(
    name="arrow",
    suffixes=(".arrow", ".arrows", ".feather"),
    reader=f"{_HERE}.arrow.source",
    counted_remotely=True,
    located=True,
    magic=b"ARROW1",
    title="an Arrow file",
)
JSON = SourceKind(name="json", suffixes=(".json",), reader=f"{_HERE}.json.array", compressible=True, located=True)
PICKLE = SourceKind(name="pickle", suffixes=(".pkl", ".pickle"), reader=f"{_HERE}.pickle.source:READER", located=True)
EXCEL = SourceKind(
    name="excel",
    suffixes=(".xlsx", ".xls", ".xlsb", ".xlsm", ".ods"),
    reader=f"{_HERE}.excel:READER",
    located=True,
    extras=("files",),
)

FILES = SourceKind(
    name="files",
    suffixes=DOCUMENTS,
    reader=f"{_HERE}.documents.source",
    unit="file",
    compressible=True,
    counted_remotely=True,
    extras=("files",),
    bordered=True,
)
# A tar is one of documents, unless it is asked for by name.
WEBDATASET = SourceKind(
    name="webdataset",
    suffixes=TARS,
    reader=f"{_HERE}.webdataset",
    compressible=True,
    binary=True,
    located=True,
)
MDS = SourceKind(
    name="mds",
    suffixes=(".mds",),
    reader=f"{_HERE}.mds.source",
    compressible=True,
    binary=True,
    counted_remotely=True,
    located=True,
)

RUN = SourceKind(name="run", schemes=("run:",), finder=f"{_HERE}.run:find_parts")
RANGE = SourceKind(
    name="range", schemes=("range:",), reader=f"{_HERE}.range", unit="id", column="sample_id", reach="network"
)
POSTGRESQL = SourceKind(
    name="postgresql",
    schemes=("postgresql://", "postgres://"),
    database=f"{_HERE}.sql.postgres:Postgres",
    reach="network",
    extras=("postgres",),
)
MYSQL = SourceKind(
    name="mysql",
    schemes=("mysql://", "mariadb://"),
    database=f"{_HERE}.sql.mysql:MySql",
    reach="network",
    extras=("mysql",),
)
SQLITE = SourceKind(
    name="sqlite",
    schemes=("sqlite:///",),
    database=f"{_HERE}.sql.dbapi:Sqlite",
    reach="machine",
    magic=b"SQLite format 3\0",
    title="an SQLite database",
)
DUCKDB = SourceKind(
    name="duckdb",
    schemes=("duckdb:///",),
    database=f"{_HERE}.sql.dbapi:DuckDb",
    reach="machine",
    extras=("duckdb",),
    magic=b"DUCK",
    magic_at=8,
    title="a DuckDB database",
)
PYTHON = SourceKind(name="python", schemes=("python:",), database=f"{_HERE}.sql.dbapi:Factory", reach="machine")
LANCE = SourceKind(
    name="lance",
    schemes=("lance:",),
    folders=(".lance",),
    reader=f"{_HERE}.lance",
    counted_remotely=True,
    reach="machine",
    extras=("lance",),
)
