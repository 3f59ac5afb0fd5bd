"""What `--precision` costs and gains: the whole command in each precision on the same texts, and its vectors.

Processor time is of the command and its worker. Runs are interleaved; the best of `--repeats` counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, print_table
from shardmill.models.golden import cosines
from shardmill.results.rounding import share_that_stays

PRECISIONS = ("float32", "auto", "int8")
# The nearest are looked for among these.
_NEAREST_AMONG = 2_000


def embed(source: Path, field: str, model: str, precision: str, out: Path) -> tuple[float, float, str, np.ndarray]:
    """Seconds, processor seconds, the kernel and the vectors of one command."""
    command = [sys.executable, "-m", "shardmill", "embed", str(source), "--text", field, "--precision", precision]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "--model", model, "--device", "cpu", "--out", str(out)], check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    parts = sorted((out / "parts").glob("*.parquet"))
    vectors = [pq.read_table(part, columns=["embedding"])["embedding"].combine_chunks() for part in parts]
    made = np.concatenate([part.values.to_numpy(zero_copy_only=False).reshape(len(part), -1) for part in vectors])
    (commit, *_) = sorted((out / "commits").glob("*.json"))
    return took, busy, str(json.loads(commit.read_text()).get("kernel", "")), made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, required=True, help="a JSON Lines file")
    parser.add_argument("--field", required=True)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    best: dict[str, tuple[float, float]] = {}
    made: dict[str, tuple[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.jsonl"
        with args.texts.open() as lines:
            source.write_text("".join(line for line, _ in zip(lines, range(args.count), strict=False)))
        for repeat in range(args.repeats):
            for precision in PRECISIONS:
                *took, kernel, vectors = embed(
                    source, args.field, args.model, precision, Path(folder) / f"{precision}-{repeat}"
                )
                wall, busy = took
                before = best.get(precision, (wall, busy))
                best[precision] = min(wall, before[0]), min(busy, before[1])
                made[precision] = kernel, vectors
                print(f"{precision}: {wall:.1f} s, {busy:.1f} processor seconds", file=sys.stderr, flush=True)
    exact = made["float32"][1]
    rows = []
    for precision, (wall, busy) in best.items():
        kernel, vectors = made[precision]
        # A text that could not be embedded has no vector.
        there = np.isfinite(exact).all(axis=1) & np.isfinite(vectors).all(axis=1)
        close = cosines(vectors[there], exact[there])
        stays = share_that_stays(exact[there][:_NEAREST_AMONG], vectors[there][:_NEAREST_AMONG])
        gain = f"{best['float32'][1] / busy:.2f}x"
        figures = [f"{wall:.1f}", f"{busy:.1f}", gain, f"{close.min():.5f}", f"{close.mean():.5f}", f"{stays:.1%}"]
        rows.append([precision, kernel, *figures])
    describe_machine()
    print_table(["precision", "kernel", "s", "processor s", "gain", "lowest cosine", "mean", "ten nearest stay"], rows)


if __name__ == "__main__":
    main()
