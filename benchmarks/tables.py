"""How fast are a Delta, an Iceberg and a Lance table scanned, beside their own readers?

    python -m benchmarks.tables [--rows 200000] [--rounds 5]

Each has an id and a text of about 300 characters. The source reads all shards in one process, as rows for a task; the
readers of deltalake, pyiceberg and lance read the same two columns as Arrow, also with the texts made Python's, as a
task needs them. All take turns; the best of the rounds counts. Their readers use every core, the source the one that a
worker has, so the processor time is what compares.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import deltalake
import lance
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.machine import describe_machine, print_table
from shardmill.sources import Fields, discover, open_source

WORDS = ("the", "tea", "leaves", "of", "a", "mountain", "garden", "are", "picked", "by", "hand", "and", "dried")
SHARD_BYTES = 4 << 20


def generate(first: int, rows: int) -> pa.Table:
    draw = random.Random(first)
    texts = [" ".join(draw.choices(WORDS, k=62)) for _ in range(rows)]
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "text": texts, "stars": [3] * rows})


def write_delta(place: Path, parts: Iterable[pa.Table]) -> Callable[[], Iterable[pa.RecordBatch]]:
    for part in parts:
        deltalake.write_deltalake(place, part, mode="append")
    opened = deltalake.DeltaTable(place)
    return lambda: opened.to_pyarrow_dataset().to_batches(columns=["id", "text"])


def write_iceberg(place: Path, parts: Iterable[pa.Table]) -> Callable[[], Iterable[pa.RecordBatch]]:
    catalogue = SqlCatalog("bench", uri="sqlite:///:memory:", warehouse=f"file://{place}")
    catalogue.create_namespace("bench")
    table = None
    for part in parts:
        table = table or catalogue.create_table("bench.rows", part.schema, location=f"file://{place}")
        table.append(part)
    assert table is not None
    return lambda: table.scan(selected_fields=("id", "text")).to_arrow_batch_reader()


def write_lance(place: Path, parts: Iterable[pa.Table]) -> Callable[[], Iterable[pa.RecordBatch]]:
    for part in parts:
        opened = lance.write_dataset(part, place, mode="append")
    return lambda: opened.to_batches(columns=["id", "text"])


def read_ours(place: Path) -> int:
    fields = Fields("text", id=("id",))
    source = open_source(discover([str(place)], fields), fields)
    return sum(len(batch) for shard in source.shards(SHARD_BYTES) for batch in source.read(shard))


def read_theirs(batches: Iterable[pa.RecordBatch], as_python: bool) -> int:
    rows = 0
    for batch in batches:
        rows += len(batch.column("text").to_pylist()) if as_python else batch.num_rows
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    parts = [generate(first, args.rows // 4) for first in range(0, args.rows, args.rows // 4)]
    table = []
    for kind, write in (("Delta", write_delta), ("Iceberg", write_iceberg), ("Lance", write_lance)):
        with tempfile.TemporaryDirectory() as room:
            folder = f"{room}/rows.{kind.lower()}"
            theirs = write(Path(folder), parts)
            readers: dict[str, Callable[[], int]] = {
                "shardmill": lambda folder=folder: read_ours(Path(folder)),
                "its own reader": lambda theirs=theirs: read_theirs(theirs(), as_python=False),
                "its own reader, texts in Python": lambda theirs=theirs: read_theirs(theirs(), as_python=True),
            }
            best = dict.fromkeys(readers, float("inf"))
            cpu = dict.fromkeys(readers, float("inf"))
            for _ in range(args.rounds):
                for name, read in readers.items():
                    began, used = time.perf_counter(), time.process_time()
                    rows = read()
                    best[name] = min(best[name], time.perf_counter() - began)
                    cpu[name] = min(cpu[name], time.process_time() - used)
                    assert rows == sum(part.num_rows for part in parts), (kind, name, rows)
            table += [
                [kind, name, f"{1000 * took:,.0f} ms", f"{1000 * cpu[name]:,.0f} ms", f"{rows / cpu[name]:,.0f}"]
                for name, took in best.items()
            ]
    describe_machine()
    print_table(["table", "reader", "time", "processor time", "rows/s of a core"], table)


if __name__ == "__main__":
    main()
