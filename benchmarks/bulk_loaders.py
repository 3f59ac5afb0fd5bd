"""How each store is loaded by its own library: the loader that its documentation names for many rows, over Parquet.

Each function imports its library and returns what loads the files into an address of ours.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from shardmill.sinks.points.places import find_file, find_server

Load = Callable[[list[Path]], Any]
COLUMNS = ["id", "share", "day", "embedding"]
# Rows of one request: about the 4 MB that ours have.
BATCH = 2500


def by_lance(address: str, dims: int) -> Load:
    import lance

    def load(parts: list[Path]) -> None:
        lance.write_dataset(_reader(parts), address.partition(":")[2])

    return load


def by_deltalake(address: str, dims: int) -> Load:
    import deltalake

    def load(parts: list[Path]) -> None:
        deltalake.write_deltalake(address.partition(":")[2], _reader(parts))

    return load


def by_pyiceberg(address: str, dims: int) -> Load:
    from pyiceberg.catalog import load_catalog

    def load(parts: list[Path]) -> None:
        catalogue, _, name = address.partition(":")[2].partition("/")
        opened = load_catalog(catalogue)
        opened.create_namespace(name.partition(".")[0])
        rows = _files(parts).to_table(columns=COLUMNS)
        opened.create_table(name, rows.schema).append(rows)

    return load


def by_duckdb(address: str, dims: int) -> Load:
    import duckdb

    path, _, table = address.partition(":")[2].partition("#")

    def load(parts: list[Path]) -> None:
        with duckdb.connect(path) as opened:
            opened.execute(f"CREATE TABLE {table} (id BIGINT, share DOUBLE, day INTEGER, embedding FLOAT[{dims}])")
            files = ", ".join(f"'{part}'" for part in parts)
            opened.execute(f"INSERT INTO {table} SELECT {', '.join(COLUMNS)} FROM read_parquet([{files}])")

    return load


def by_sqlite(address: str, dims: int) -> Load:
    path, _, table = address.partition(":")[2].partition("#")

    def load(parts: list[Path]) -> None:
        with sqlite3.connect(path) as opened:
            opened.execute(f"CREATE TABLE {table} (id INTEGER, share REAL, day INTEGER, embedding BLOB)")
            for batch in _batches(parts, BATCH):
                columns = [batch.column(name).to_pylist() for name in COLUMNS[:3]]
                blobs = (row.tobytes() for row in _matrix(batch, dims))
                opened.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", zip(*columns, blobs, strict=True))

    return load


def by_copy(address: str, dims: int) -> Load:
    """psycopg's binary COPY with the type that pgvector's Python package would register: float4s after a header."""
    import psycopg
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    url, _, table = address.partition("#")

    class VectorDumper(Dumper):
        format = Format.BINARY

        def dump(self, obj: Any) -> bytes:
            head: bytes = dims.to_bytes(2, "big") + bytes(2)
            return head + obj.astype(">f4").tobytes()

    def load(parts: list[Path]) -> None:
        with psycopg.connect(url) as opened:
            opened.execute("CREATE EXTENSION IF NOT EXISTS vector")
            opened.execute(f"CREATE TABLE {table} (id bigint, share float8, day int, embedding vector({dims}))")
            (VectorDumper.oid,) = opened.execute("SELECT 'vector'::regtype::oid").fetchone() or (0,)
            opened.adapters.register_dumper(np.ndarray, VectorDumper)
            with opened.cursor().copy(f"COPY {table} FROM STDIN WITH (FORMAT BINARY)") as copy:
                copy.set_types(["bigint", "float8", "int4", VectorDumper.oid])
                for batch in _batches(parts, BATCH):
                    columns = [batch.column(name).to_pylist() for name in COLUMNS[:3]]
                    for row in zip(*columns, _matrix(batch, dims), strict=True):
                        copy.write_row(row)

    return load


def by_qdrant(address: str, dims: int) -> Load:
    from qdrant_client import QdrantClient, models

    folder, collection = find_file(address, "qdrant:")

    def load(parts: list[Path]) -> None:
        client = QdrantClient(path=folder)
        client.create_collection(collection, models.VectorParams(size=dims, distance=models.Distance.COSINE))
        for batch in _batches(parts, BATCH):
            rows, ids = batch.select(COLUMNS[:3]).to_pylist(), batch.column("id").to_pylist()
            client.upload_collection(collection, _matrix(batch, dims), rows, ids, batch_size=BATCH)
        client.close()

    return load


def by_milvus(address: str, dims: int) -> Load:
    from milvus_lite.server_manager import server_manager_instance
    from pymilvus import DataType, MilvusClient

    server = find_server(address, 0)
    uri, collection = (f"http://{server.host}:{server.port}", server.path) if server else find_file(address, "milvus:")

    def load(parts: list[Path]) -> None:
        client = MilvusClient(uri)
        schema = MilvusClient.create_schema(enable_dynamic_field=True)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=dims)
        index = MilvusClient.prepare_index_params()
        index.add_index("embedding", index_type="AUTOINDEX", metric_type="COSINE")
        client.create_collection(collection, schema=schema, index_params=index)
        for batch in _batches(parts, BATCH):
            rows = batch.select(COLUMNS[:3]).to_pylist()
            for row, vector in zip(rows, _matrix(batch, dims), strict=True):
                row["embedding"] = vector
            client.insert(collection, rows)
        client.close()
        if server is None:
            # Ends when the file has everything.
            server_manager_instance.release_server(uri)

    return load


def by_chroma(address: str, dims: int) -> Load:
    import chromadb

    server = find_server(address, 0)
    assert server is not None

    def load(parts: list[Path]) -> None:
        client = chromadb.HttpClient(host=server.host, port=server.port)
        rows = client.create_collection(
            server.path, configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )
        for batch in _batches(parts, client.get_max_batch_size()):
            rows.add(
                ids=[str(id) for id in batch.column("id").to_pylist()],
                embeddings=_matrix(batch, dims),
                metadatas=batch.select(COLUMNS[:3]).to_pylist(),
            )

    return load


def by_redis(address: str, dims: int) -> Load:
    import redis

    server = find_server(address, 0)
    assert server is not None

    def load(parts: list[Path]) -> None:
        client = redis.Redis(host=server.host, port=server.port)
        for batch in _batches(parts, BATCH):
            with client.pipeline(transaction=False) as pipe:
                rows = batch.select(COLUMNS[:3]).to_pylist()
                for row, vector in zip(rows, _matrix(batch, dims), strict=True):
                    pipe.execute_command(
                        *("VADD", server.fragment, "FP32", vector.tobytes(), row["id"]),
                        *("NOQUANT", "SETATTR", json.dumps(row)),
                    )
                pipe.execute()
        client.close()

    return load


def _files(parts: list[Path]) -> ds.Dataset:
    return ds.dataset(list(map(str, parts)), format="parquet")


def _reader(parts: list[Path]) -> pa.RecordBatchReader:
    return _files(parts).scanner(columns=COLUMNS).to_reader()


def _batches(parts: list[Path], rows: int) -> Iterator[pa.RecordBatch]:
    return _files(parts).to_batches(columns=COLUMNS, batch_size=rows)


def _matrix(batch: pa.RecordBatch, dims: int) -> np.ndarray[Any, Any]:
    flat: np.ndarray[Any, Any] = batch.column("embedding").flatten().to_numpy()
    return flat.reshape(-1, dims)


LOADERS: dict[str, Callable[[str, int], Load]] = {
    "lance": by_lance,
    "delta": by_deltalake,
    "iceberg": by_pyiceberg,
    "duckdb": by_duckdb,
    "sqlite": by_sqlite,
    "postgres": by_copy,
    "qdrant": by_qdrant,
    "milvus": by_milvus,
    "milvus_server": by_milvus,
    "chroma": by_chroma,
    "redis": by_redis,
}
