"""A map of generated clusters, or of an embed run: how long it takes, how much memory, and what its figures say.

python -m benchmarks.map --rows 250010 --dims 1024
python -m benchmarks.map --run runs/reviews

The vectors lie around 200 centres, which lie around 20, as float16; each has a text. `shardmill map` runs as a user
would run it; memory is that of all its processes together, looked at twice a second. Beside the time that passed, the
time of all its processors is measured: it does not depend on what else the machine does.
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
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, print_table

_BLOCK = 10_000
_COARSE, _FINE = 20, 200


def write_source(path: Path, rows: int, dims: int, seed: int = 0) -> None:
    """Write generated clusters, block by block."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(_COARSE, dims))
    fine = coarse[np.arange(_FINE) % _COARSE] + 0.5 * rng.normal(size=(_FINE, dims))
    # Points of a cluster differ along few directions, as real vectors do, and a little along all.
    axes = rng.normal(size=(_FINE, 6, dims))
    schema = pa.schema([("id", pa.int64()), ("body", pa.string()), ("vector", pa.list_(pa.float16(), dims))])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, rows, _BLOCK):
            count = min(_BLOCK, rows - start)
            own = rng.integers(0, _FINE, count)
            inner = 0.15 * np.einsum("ij,ijk->ik", rng.normal(size=(count, 6)), axes[own])
            vectors = fine[own] + inner + 0.1 * rng.normal(size=(count, dims))
            texts = [f"item {start + i} of kind{k} in group{k % _COARSE}, with some words" for i, k in enumerate(own)]
            flat = pa.array(vectors.astype(np.float16).ravel())
            listed = pa.FixedSizeListArray.from_arrays(flat, dims)
            writer.write_batch(pa.record_batch([pa.array(range(start, start + count)), texts, listed], schema=schema))


def measure(command: list[str]) -> tuple[float, float, int]:
    """Run a command: seconds, those of its processors, and the most memory that its processes had together."""
    began, most = time.monotonic(), 0
    process = psutil.Popen(command)
    while process.poll() is None:
        seen = 0
        try:
            for each in (process, *process.children(recursive=True)):
                seen += each.memory_info().rss
        except psutil.NoSuchProcess:
            pass
        most = max(most, seen)
        time.sleep(0.5)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, used.ru_utime + used.ru_stime, most


def _beside(quality: dict[str, dict[str, float]], figure: str) -> str:
    ours, *others = (f"{quality[name][figure]:.3f}" for name in ("map", "pca", "chance"))
    return f"{ours} ({', '.join(others)})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--dims", type=int, default=1024)
    options.add_argument("--run", help="Map this embed run, as it is.")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--sample", type=int, default=20_000)
    asked = options.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "vectors.parquet", Path(folder) / "map"
        what = [asked.run]
        if not asked.run:
            write_source(source, asked.rows, asked.dims)
            what = [str(source), "--id=id", "--text=body"]
        words = ["map", *what, f"--out={out}", f"--workers={asked.workers}", f"--sample={asked.sample}"]
        seconds, busy, most = measure([sys.executable, "-m", "shardmill", *words])
        figures = json.loads((out / "map.json").read_text())
        quality = figures["quality"]
        fit = json.loads(next(out.glob("fit/*/fit.json")).read_text())
        row = {
            "rows": f"{figures['points']:,}",
            "dims": f"{fit['dims']:,}",
            "anchors": f"{fit['anchors']:,}",
            "seconds": f"{seconds:.0f}",
            "processor seconds": f"{busy:.0f}",
            "peak RSS": f"{most / 2**30:.2f} GiB",
            "trust (PCA, chance)": _beside(quality, "trust"),
            "kept (PCA, chance)": _beside(quality, "kept"),
            "clusters": ", ".join(map(str, figures["clusters"])),
            "map.html": f"{(out / 'map.html').stat().st_size / 2**20:.1f} MiB",
        }
        print_table([*row], [[*row.values()]])


if __name__ == "__main__":
    main()
