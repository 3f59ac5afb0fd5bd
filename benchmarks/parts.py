"""What does checking parts cost? Writes and reads one part with and without page checksums, and by its digest."""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, print_table
from shardmill.sinks.parquet import open_writer
from shardmill.store.parts import PartFile, open_part


def make_table(rows: int, dims: int) -> pa.Table:
    """Ids, titles and vectors, as `embed` writes them."""
    matrix = np.random.default_rng(7).standard_normal((rows, dims), np.float32)
    return pa.table(
        {
            "id": [f"item-{i:012d}" for i in range(rows)],
            "title": [f"A title of item {i % 997} with some words" for i in range(rows)],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), dims),
        }
    )


def write(path: Path, table: pa.Table, *, checked: bool, step: int = 8192) -> None:
    """As the sink does, or as earlier versions did."""
    with path.open("wb") as out:
        file = PartFile(out)
        if checked:
            writer = open_writer(file, table.schema)
        else:
            plain = ["id", "title"]
            compression = {**dict.fromkeys(plain, "zstd"), "embedding.list.element": "none"}
            writer = pq.ParquetWriter(file, table.schema, compression=compression, use_dictionary=plain)
        for start in range(0, table.num_rows, step):
            writer.write_table(table.slice(start, step))
        if checked:
            with file.footer():
                writer.close()
        else:
            writer.close()


def read(path: Path, columns: list[str] | None, *, how: str) -> None:
    with path.open("rb") as file:
        if how == "digest":
            hashlib.file_digest(file, "sha256")
            file.seek(0)
        opened = open_part(file, "")[0] if how == "checksums" else pq.ParquetFile(file)
        for _ in opened.iter_batches(8192, columns=columns):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    table = make_table(args.rows, args.dims)
    with tempfile.TemporaryDirectory() as folder:
        checked, plain = Path(folder) / "checked.parquet", Path(folder) / "plain.parquet"
        ways: dict[tuple[str, str], Callable[[], None]] = {
            ("write", "without"): lambda: write(plain, table, checked=False),
            ("write", "page checksums"): lambda: write(checked, table, checked=True),
            ("read all columns", "without"): lambda: read(plain, None, how=""),
            ("read all columns", "page checksums"): lambda: read(checked, None, how="checksums"),
            ("read all columns", "commit's digest"): lambda: read(plain, None, how="digest"),
            ("read the ids", "without"): lambda: read(plain, ["id"], how=""),
            ("read the ids", "page checksums"): lambda: read(checked, ["id"], how="checksums"),
            ("read the ids", "commit's digest"): lambda: read(plain, ["id"], how="digest"),
        }
        took: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        worked: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, do in ways.items():
                began, cpu = time.perf_counter(), time.process_time()
                do()
                took[way].append(time.perf_counter() - began)
                worked[way].append(time.process_time() - cpu)
        sizes = f"{plain.stat().st_size:,} bytes without, {checked.stat().st_size:,} with"
    describe_machine()
    print(f"{args.rows:,} rows, {args.dims} dimensions; {sizes}; best and median of {args.rounds}.")
    rows = []
    for what, how in ways:
        times, cpu_s = took[what, how], min(worked[what, how])
        base = min(worked[what, "without"])
        best, middle = 1000 * min(times), 1000 * median(times)
        rows.append(
            [what, how, f"{best:.0f}", f"{middle:.0f}", f"{1000 * cpu_s:.0f}", f"{100 * (cpu_s / base - 1):+.1f} %"]
        )
    print_table(["what", "checked by", "best ms", "median ms", "best CPU ms", "CPU, compared with unchecked"], rows)


if __name__ == "__main__":
    main()
