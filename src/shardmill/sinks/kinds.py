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
    reach="machine",
    extras=("duckdb",),
)
SQLITE = SinkKind(
    name="sqlite", schemes=("sqlite:",), delivery=f"{_HERE}.databases.sqlite:SqliteDelivery", reach="machine"
)
