"""The request and the list of shards made from it: spec, plan, and the arithmetic of sizes."""

from __future__ import annotations

from shardmill.plan.pieces import (
    RUN,
    SPILLED,
    STREAM_END,
    KeyValue,
    NumberedColumn,
    Shard,
    ShardRows,
    SourceFile,
    SourceStat,
    is_spilled,
    name_place,
)
from shardmill.plan.plan import (
    EDITIONS_FORMAT,
    ITEM,
    NEW_NUMERICS,
    NUMBER,
    NUMERICS,
    ROW,
    START,
    STOP,
    WINDOW,
    Plan,
    new_numerics,
    shard_target_bytes,
    without_server,
)

__all__ = [
    "EDITIONS_FORMAT",
    "ITEM",
    "NEW_NUMERICS",
    "NUMBER",
    "NUMERICS",
    "ROW",
    "RUN",
    "SPILLED",
    "START",
    "STOP",
    "STREAM_END",
    "WINDOW",
    "KeyValue",
    "NumberedColumn",
    "Plan",
    "Shard",
    "ShardRows",
    "SourceFile",
    "SourceStat",
    "is_spilled",
    "name_place",
    "new_numerics",
    "shard_target_bytes",
    "without_server",
]
