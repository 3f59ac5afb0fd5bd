"""The speed of `merge` into files of each format, beside what DuckDB and Polars write from the same rows.

    python -m benchmarks.merge [--rows 100000] [--dims 384] [--rounds 3] [--only .jsonl .csv]

Each is a process of its own, start-up included: ours reads the parts of a run, theirs a Parquet file that `merge` wrote
of it, without compression of the vectors. Rounds are interleaved, and the median counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, print_table
from benchmarks.split import Took, run
from shardmill import make_spec, start
from shardmill.testing import InProcessEngine

SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".parquet", ".arrow")
DUCKDB = "import duckdb, sys; duckdb.sql(f\"COPY (FROM '{sys.argv[1]}') TO '{sys.argv[2]}' (OPTIONS)\")"
POLARS = "import polars as pl, sys; rows = pl.read_parquet(sys.argv[1]); rows.OPTIONS"
# Polars writes no lists into a CSV, so that they are joined first.
JOINED = "with_columns(pl.format('[{}]', pl.col('embedding').cast(pl.List(pl.String)).list.join(',')))"
PEERS: dict[str, dict[str, str]] = {
    ".jsonl": {"DuckDB": "FORMAT json", "Polars": "write_ndjson(sys.argv[2])"},
    ".jsonl.gz": {
        "DuckDB": "FORMAT json, COMPRESSION gzip",
        "Polars": "write_ndjson(sys.argv[2], compression='gzip', compression_level=1)",
    },
    ".csv": {"DuckDB": "FORMAT csv", "Polars": f"{JOINED}.write_csv(sys.argv[2])"},
    ".parquet": {
        "DuckDB": "FORMAT parquet, COMPRESSION zstd",
        "Polars": "write_parquet(sys.argv[2], compression='zstd')",
    },
    ".arrow": {"Polars": "write_ipc(sys.argv[2], compression='zstd')"},
}


def make_run(folder: Path, rows: int, dims: int) -> Path:
    source = folder / "items.parquet"
    texts = [f"item {i}: a text of some ten words, with one comma" for i in range(rows)]
    pq.write_table(pa.table({"id": np.arange(rows), "text": texts}), source)
    work = {"source": str(source), "text": "text", "id": "id", "keep": "text"}
    work |= {"task": "shardmill.testing:FakeTask", "params": {"dims": dims}}
    start(make_spec(work, {"shard_bytes": "1MB"}), folder / "run", engine=InProcessEngine())
    return folder / "run"


def commands(made: Path, rows: Path, out: Path, suffix: str) -> dict[str, list[str]]:
    merge = [sys.executable, "-m", "shardmill", "merge", str(made), "--out", str(out)]
    peers = {
        name: [sys.executable, "-c", {"DuckDB": DUCKDB, "Polars": POLARS}[name].replace("OPTIONS", how)]
        for name, how in PEERS[suffix].items()
    }
    return {"shardmill": merge, **{name: [*command, str(rows), str(out)] for name, command in peers.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=SUFFIXES, choices=SUFFIXES)
    given = parser.parse_args()
    describe_machine()
    table = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A child's peak is at least the memory of what starts it, so that the run is made elsewhere.
        with ProcessPoolExecutor(1, get_context("spawn")) as apart:
            made = apart.submit(make_run, folder, given.rows, given.dims).result()
        rows = folder / "rows.parquet"
        run([sys.executable, "-m", "shardmill", "merge", str(made), "--out", str(rows)])
        for suffix in given.only:
            out = folder / f"out{suffix}"
            took: dict[str, list[Took]] = {}
            sizes: dict[str, int] = {}
            for _ in range(given.rounds):
                for who, command in commands(made, rows, out, suffix).items():
                    took.setdefault(who, []).append(run(command))
                    sizes[who] = out.stat().st_size
                    out.unlink()
            for who, all_took in took.items():
                seconds = statistics.median(each.seconds for each in all_took)
                cpu = statistics.median(each.cpu_s for each in all_took)
                peak = max(each.peak_bytes for each in all_took)
                figures = [f"{given.rows / seconds:,.0f}", f"{cpu:.1f}", f"{peak / 2**20:,.0f} MiB"]
                table.append([suffix, who, *figures, f"{sizes[who] / 1e6:,.0f} MB", f"{os.getloadavg()[0]:.1f}"])
    print_table(["file", "by", "rows/s", "CPU-seconds", "peak RSS", "size", "load after"], table)


if __name__ == "__main__":
    main()
