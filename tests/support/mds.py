"""Writes MDS shards, by the description of the format."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ENCODE: dict[str, Callable[[Any], bytes]] = {
    "str": str.encode,
    "int": lambda value: struct.pack("<q", value),
    "json": lambda value: json.dumps(value).encode(),
    "bytes": bytes,
    "pkl": bytes,
}


def encode_shard(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a shard, and what an index says of it."""
    names = sorted(columns)
    sizes = [8 if columns[name] == "int" else None for name in names]
    about = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": sizes,
    }
    samples = []
    for row in rows:
        values = [row[name] if isinstance(row[name], bytes) else ENCODE[columns[name]](row[name]) for name in names]
        told = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
        samples.append(struct.pack(f"<{len(told)}I", *told) + b"".join(values))
    described = json.dumps(about, sort_keys=True).encode()
    bounds = [8 + 4 * len(samples) + len(described)]
    for sample in samples:
        bounds.append(bounds[-1] + len(sample))
    return struct.pack(f"<{len(bounds) + 1}I", len(samples), *bounds) + described + b"".join(samples), about


def write_mds(folder: Path, columns: Mapping[str, str], shards: Sequence[Sequence[Mapping[str, Any]]]) -> Path:
    """Write a dataset with these rows in each shard."""
    folder.mkdir(parents=True, exist_ok=True)
    told = []
    for number, rows in enumerate(shards):
        data, about = encode_shard(columns, rows)
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        told.append({**about, "samples": len(rows), "raw_data": raw, "zip_data": None})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": told}))
    return folder
