"""Searches of a large run: by meaning, by words and by both, with a condition and without.

    python -m benchmarks.filters [--rows 1000000] [--dims 384] [--dtype float16] [--folder FOLDER]

The vectors are random and made by a task without a model, in a real run over a Parquet file; the texts have twelve of
20,000 words, some of them far more often than others. Each case is a process of its own that searches twice, for two
texts; what is written once, the vectors as one file and the index of words, is told apart. Nothing clears the page
cache: a first search reads from memory what fits there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, print_table
from shardmill import Run
from shardmill import run as runs
from shardmill.core.devices import Device
from shardmill.models.retrieval import words
from shardmill.plan.spec import make_spec
from shardmill.results import search
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.testing import InProcessEngine
from shardmill.worker.tally import peak_rss_bytes

# Imported before the first search, which is not to count that.
IMPORTED = search, words._library()

WORDS = pa.array([f"word{i}" for i in range(20_000)])
WORDS_OF_A_TEXT = 12
TEXTS = ["word17 word300 word4", "word21 word512 word9"]
SOURCE_ROWS = 100_000
CASES: list[tuple[str, dict[str, Any]]] = [
    ("by meaning", {}),
    ("… --where, 1 % of the rows", {"where": "share < 0.01"}),
    ("… --where, 10 %", {"where": "share < 0.1"}),
    ("… --where, 50 %", {"where": "share < 0.5"}),
    ("… --where, 99 %", {"where": "share < 0.99"}),
    ("… --where, 1 %, side by side", {"where": "day = 37"}),
    ("--words", {"words": True}),
    ("… --where, 1 %", {"words": True, "where": "share < 0.01"}),
    ("--hybrid", {"hybrid": True}),
    ("… --where, 1 %", {"hybrid": True, "where": "share < 0.01"}),
]


class Noise(Task):
    """Random vectors."""

    batch_budget = 100_000

    def __init__(self, dims: int, dtype: str) -> None:
        self.dims, self.dtype = dims, np.dtype(dtype)
        self.output = pa.schema([pa.field("embedding", pa.list_(pa.from_numpy_dtype(self.dtype), dims))])
        self._draws = np.random.default_rng(0)

    def open(self, device: Device) -> None:
        pass

    def fingerprint(self) -> dict[str, str]:
        return {"model": "noise"}

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        return Prepared(texts, np.full(len(texts), WORDS_OF_A_TEXT, np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        made = self._draws.standard_normal((len(inputs), self.dims), np.float32).astype(self.dtype)
        column = pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), self.dims)
        return Output(pa.RecordBatch.from_arrays([column], schema=self.output))

    def embed_query(self, text: str) -> np.ndarray[Any, Any]:
        return np.random.default_rng(len(text) + ord(text[5])).standard_normal(self.dims, np.float32)


def make_run(folder: Path, rows: int, dims: int, dtype: str) -> Path:
    rng = np.random.default_rng(1)
    schema = pa.schema({"id": pa.int64(), "share": pa.float64(), "day": pa.int32(), "text": pa.string()})
    with pq.ParquetWriter(folder / "items.parquet", schema) as writer:
        for first in range(0, rows, SOURCE_ROWS):
            ids = np.arange(first, min(rows, first + SOURCE_ROWS))
            drawn = rng.zipf(1.3, (len(ids), WORDS_OF_A_TEXT)) % len(WORDS)
            words = pa.FixedSizeListArray.from_arrays(WORDS.take(pa.array(drawn.ravel())), WORDS_OF_A_TEXT)
            texts = pc.binary_join(words.cast(pa.list_(pa.string())), " ")
            writer.write_table(pa.table([ids, rng.random(len(ids)), ids * 100 // rows, texts], schema=schema))
    work = {"source": str(folder / "items.parquet"), "text": "text", "id": "id", "keep": "text,share,day"}
    work |= {"task": "benchmarks.filters:Noise", "params": {"dims": dims, "dtype": dtype}}
    runs.start(make_spec(work, {"shard_bytes": "4MB"}), folder / "run", engine=InProcessEngine())
    return folder / "run"


def measure(run: Path, how: dict[str, Any]) -> dict[str, float]:
    """Two searches in this process, in seconds, and the peak of its memory in MiB."""
    opened = Run(run, allow_code=True)
    found = {}
    for name, text in zip(("first", "second"), TEXTS, strict=True):
        began, used = time.perf_counter(), time.process_time()
        opened.search(text, 10, **how)
        found[name], found[f"{name} cpu"] = time.perf_counter() - began, time.process_time() - used
    return {**found, "peak": peak_rss_bytes() / 2**20}


def measure_apart(run: Path, how: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.filters", "--one", str(run), "--how", json.dumps(how)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ).stdout
    found: dict[str, float] = json.loads(answer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--folder", type=Path, help="Folder with space for the run.")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--how", type=json.loads, default={}, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(given.one, given.how)))
        return
    describe_machine()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        began = time.perf_counter()
        run = make_run(Path(scratch), given.rows, given.dims, given.dtype)
        print(f"{given.rows:,} rows of {given.dims} {given.dtype}, made in {time.perf_counter() - began:.0f} s\n")
        once = [("the vectors as one file", {}), ("the index of words", {"words": True})]
        rows = []
        for name, how in once:
            found = measure_apart(run, how)
            took, used = (found[f"first{of}"] - found[f"second{of}"] for of in ("", " cpu"))
            rows.append([name, f"{took:.1f} s", f"{used:.1f} s", f"{found['peak']:,.0f} MiB"])
        print_table(["written once", "time", "CPU time", "peak RSS"], rows)
        print()
        rows = []
        for name, how in CASES:
            found = measure_apart(run, how)
            shown = (found[which] for which in ("first", "first cpu", "second", "second cpu"))
            rows.append([name, *(f"{1000 * each:,.0f} ms" for each in shown), f"{found['peak']:,.0f} MiB"])
        print_table(["search", "first", "CPU", "second", "CPU", "peak RSS"], rows)


if __name__ == "__main__":
    main()
