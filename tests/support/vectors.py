"""Files with vectors: generated clusters, with texts and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_TOPICS = ("battery charger cable", "leather case colour", "bluetooth headset sound", "screen protector bubbles")


def clusters(count: int, dims: int = 16, seed: int = 0) -> np.ndarray:
    """Vectors around as many centres as there are topics, in turn."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(len(_TOPICS), dims))
    made: np.ndarray = centres[np.arange(count) % len(_TOPICS)] + 0.2 * rng.normal(size=(count, dims))
    return made.astype(np.float32)


def write_vectors(path: Path, vectors: Any, *, rows_in_group: int = 5, **columns: Any) -> Path:
    """Write vectors, None where one is missing, with an id, a text and a price each, or with other columns."""
    count = len(vectors)
    kind = pa.list_(pa.float32(), max(len(v) for v in vectors if v is not None))
    rows = [None if v is None else list(map(float, v)) for v in vectors]
    plain = {
        "id": [f"i{i}" for i in range(count)],
        "body": [f"item {i}: the {_TOPICS[i % len(_TOPICS)]} is as said" for i in range(count)],
        "price": [float(i) for i in range(count)],
    }
    table = pa.table({**(columns or plain), "vector": pa.array(rows, kind)})
    pq.write_table(table, path, row_group_size=rows_in_group)
    return path
