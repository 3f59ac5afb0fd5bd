"""Vectors as people make them, rightly and wrongly, with a real model: texts, and each mistake by its name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Vectors = NDArray[Any]
Encode = Callable[..., Vectors]


def docstrings(count: int, longest: int = 2500) -> list[str]:
    """Different texts of many lengths: what the standard library says of itself."""
    found: dict[str, None] = {}
    for name in ("os", "re", "json", "socket", "threading", "decimal", "argparse", "statistics", "datetime", "email"):
        for _, member in sorted(vars(importlib.import_module(name)).items(), key=lambda pair: pair[0]):
            for item in (member, *(vars(member).values() if inspect.isclass(member) else ())):
                text = getattr(item, "__doc__", None)
                if isinstance(text, str) and len(text) > 20:
                    found[text[:longest]] = None
    assert len(found) >= count
    texts = sorted(found, key=lambda text: hash_of(text))
    return texts[:count]


def hash_of(text: str) -> int:
    """An order that is the same in every process."""
    import zlib

    return zlib.crc32(text.encode())


def write_vectors(path: Path, texts: list[str], vectors: Any, **columns: Any) -> Path:
    """A Parquet file with a text and a vector per row."""
    if isinstance(vectors, np.ndarray):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table({"id": range(len(texts)), "body": texts, **columns, "embedding": vectors})
    pq.write_table(table, path, row_group_size=50)
    return path


def unit(vectors: Vectors) -> Vectors:
    made: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return made.astype(np.float32)


def as_bfloat16(vectors: Vectors) -> Vectors:
    """float32 numbers rounded to bfloat16."""
    bits = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
    rounded: Vectors = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded
