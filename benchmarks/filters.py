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
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from benchmarks.noise import make_run
from shardmill import Run
from shardmill.models.retrieval import words
from shardmill.results import search
from shardmill.worker.tally import peak_rss_bytes

# Imported before the first search, which is not to count that.
IMPORTED = search, words._library()

TEXTS = ["word17 word300 word4", "word21 word512 word9"]
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
        run = make_run(Path(scratch), given.rows, given.dims, given.dtype, keep="text,share,day")
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
