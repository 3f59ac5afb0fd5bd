"""What `--dtype` costs and saves: bytes, recall and the time of a search, beside float32.

python -m benchmarks.quantised --texts reviews.jsonl --field reviewText [--rows 20000] [--scaled 1000000]

The vectors are those of MiniLM; the queries are 200 of the texts' first sentences. Ranges are measured on 512 of the
rows, as a plan does. For the time of a search in many rows, each vector is repeated with a little noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, print_table
from shardmill.core.devices import Device
from shardmill.core.quantised import BYTE_TYPES, QUANTISED, Quantiser, Ranges
from shardmill.models.embedder import TextEmbedder
from shardmill.models.names import MINILM
from shardmill.models.retrieval.codes import nearest_codes
from shardmill.models.retrieval.vectors import Best, nearest, normalized

K, QUERIES, CALIBRATED, NOISE = 10, 200, 512, 0.05

Search = Callable[[NDArray[np.float32]], list[Best]]


def _embed(texts: list[str]) -> NDArray[np.float32]:
    embedder = TextEmbedder(MINILM)
    embedder.open(Device("cpu", "cpu", threads=2))
    return embedder.embed_texts(texts)


def _searches(vectors: NDArray[np.float32]) -> dict[str, tuple[int, Search]]:
    """By type: the bytes of a vector, and a search."""
    dims, step = vectors.shape[1], max(1, len(vectors) // CALIBRATED)
    ranges = Ranges.of(vectors[::step])
    half = vectors.astype(np.float16)
    found: dict[str, tuple[int, Search]] = {
        "float32": (4 * dims, lambda queries: nearest(vectors, queries, K)),
        "float16": (2 * dims, lambda queries: nearest(half, queries, K)),
    }
    for dtype in QUANTISED:
        quantiser = Quantiser(dtype, dims, ranges if dtype in BYTE_TYPES else None)
        codes = quantiser.encode(vectors)

        def search(queries: NDArray[np.float32], own: Quantiser = quantiser, rows: NDArray = codes) -> list[Best]:
            return nearest_codes(rows, own, queries, K)

        found[dtype] = (quantiser.width, search)
    return found


def _time(search: Search, queries: NDArray[np.float32]) -> float:
    took = []
    for query in queries[:9]:
        began = time.perf_counter()
        search(query[None])
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _recall(search: Search, queries: NDArray[np.float32], exact: list[Best]) -> float:
    found = search(queries)
    return float(np.mean([len(np.intersect1d(a[0], b[0])) / K for a, b in zip(found, exact, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--field", required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--scaled", type=int, default=1_000_000)
    asked = parser.parse_args()
    describe_machine()
    with asked.texts.open() as lines:
        texts = [text for line in lines if (text := json.loads(line)[asked.field].strip())][: asked.rows]
    vectors = _embed(texts)
    vectors = vectors[np.isfinite(vectors).all(axis=1)]
    queries = _embed([text.partition(".")[0] for text in texts[:: max(1, len(texts) // QUERIES)]][:QUERIES])
    exact = nearest(vectors, queries, K)
    recalls = {name: _recall(search, queries, exact) for name, (_, search) in _searches(vectors).items()}
    draw = np.random.default_rng(0)
    many = vectors[draw.integers(len(vectors), size=asked.scaled)]
    many = normalized(many + np.float32(NOISE) * draw.standard_normal(many.shape, np.float32))
    rows = [
        [name, f"{size:,}", f"{recalls[name]:.3f}", f"{_time(search, queries) * 1e3:,.0f} ms"]
        for name, (size, search) in _searches(many).items()
    ]
    print_table(["type", "bytes a vector", f"recall at {K}", f"search of {asked.scaled:,} rows"], rows)
    print(f"{len(vectors):,} texts, {len(queries)} queries")


if __name__ == "__main__":
    main()
