"""The sinks that come with shardmill, as declarations; nothing of them is imported here."""

from __future__ import annotations

from shardmill.plugins.base import SinkKind

_HERE = "shardmill.sinks"

PARTS = SinkKind(name="parts", writer=f"{_HERE}.parquet:open_sink")
POSTGRESQL = SinkKind(
    name="postgresql",
    schemes=("postgresql://", "postgres://"),
    writer=f"{_HERE}.postgres:open_sink",
    table=f"{_HERE}.table",
    delivery=f"{_HERE}.databases.postgres:PostgresDelivery",
    marks_gone=True,
    progress="shardmill.postgres.batches:read_progress",
    extras=("postgres",),
)

LANCE = SinkKind(name="lance", schemes=("lance:",), delivery=f"{_HERE}.lakes.lance:LanceDelivery", extras=("lance",))
DELTA = SinkKind(name="delta", schemes=("delta:",), delivery=f"{_HERE}.lakes.delta:DeltaDelivery", extras=("delta",))
ICEBERG = SinkKind(
    name="iceberg",
    schemes=("iceberg:",),
    delivery=f"{_HERE}.lakes.iceberg:IcebergDelivery",
    extras=("iceberg",),
)
DUCKDB = SinkKind(
    name="duckdb",
    schemes=("duckdb:",),
    delivery=f"{_HERE}.databases.duckdb:DuckDbDelivery",
    marks_gone=True,
    reach="machine",
    extras=("duckdb",),
)
SQLITE = SinkKind(
    name="sqlite",
    schemes=("sqlite:",),
    delivery=f"{_HERE}.databases.sqlite:SqliteDelivery",
    marks_gone=True,
    reach="machine",
)

# A server before a file: the address of either begins with the name of the store.
QDRANT = SinkKind(
    name="qdrant", schemes=("qdrant://",), delivery=f"{_HERE}.points.qdrant:QdrantDelivery", extras=("qdrant",)
)
QDRANT_LOCAL = SinkKind(
    name="qdrant_local",
    schemes=("qdrant:",),
    delivery=f"{_HERE}.points.qdrant:QdrantDelivery",
    reach="machine",
    extras=("qdrant",),
)
MILVUS = SinkKind(
    name="milvus", schemes=("milvus://",), delivery=f"{_HERE}.points.milvus:MilvusDelivery", extras=("milvus",)
)
MILVUS_LITE = SinkKind(
    name="milvus_lite",
    schemes=("milvus:",),
    delivery=f"{_HERE}.points.milvus:MilvusDelivery",
    reach="machine",
    extras=("milvus",),
)
CHROMA = SinkKind(
    name="chroma", schemes=("chroma://",), delivery=f"{_HERE}.points.chroma:ChromaDelivery", extras=("chroma",)
)
REDIS = SinkKind(name="redis", schemes=("redis://",), delivery=f"{_HERE}.points.redis:RedisDelivery", extras=("redis",))
