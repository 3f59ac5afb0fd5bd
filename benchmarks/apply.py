"""What `apply` costs above the function it calls, beside Ray Data and `datasets.map`, in one process each.

    python -m benchmarks.apply [--rows 1000000] [--micros 100] [--peers PYTHON]

The function takes a fixed time per row of the processor, by a loop that is timed when the benchmark begins; a run of
the loop alone, over the same rows, is what all are compared with. `--peers` is the Python of an environment with the
others:

    python -m venv peers && peers/bin/pip install 'ray[data]' datasets
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
HERE = Path(__file__)


def work_for(loops: int, text: str) -> int:
    """Hold the processor for a fixed number of steps."""
    total = len(text)
    for i in range(loops):
        total = (total * 31 + i) & 0xFFFF
    return total


def measure(rows: list[dict]) -> list[dict]:
    loops = int(os.environ["APPLY_LOOPS"])
    return [{"value": work_for(loops, row["text"])} for row in rows]


def measure_columns(batch: dict) -> dict:
    """The same for peers, whose batches are columns."""
    loops = int(os.environ["APPLY_LOOPS"])
    return {"value": [work_for(loops, str(text)) for text in batch["text"]]}


def find_loops(micros: float) -> int:
    """The number of steps that take this long, by the fastest of some tries."""
    best = min(_time_loop() for _ in range(5))
    return max(1, int(micros * 1e-6 / best))


def _time_loop(loops: int = 200_000) -> float:
    began = time.perf_counter()
    work_for(loops, "a text")
    return (time.perf_counter() - began) / loops


def write_source(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, 10_000):
            ids = range(first, min(rows, first + 10_000))
            writer.write_table(pa.table({"id": ids, "text": [f"text {i} " * 12 for i in ids]}, schema=schema))


def function_alone(source: Path) -> tuple[float, float]:
    """Seconds of the function over all rows, which are read before, and those of the processor."""
    import pyarrow.parquet as pq

    rows = pq.read_table(source).to_pylist()
    began, before = time.perf_counter(), time.process_time()
    for first in range(0, len(rows), 1024):
        measure(rows[first : first + 1024])
    return time.perf_counter() - began, time.process_time() - before


def by_shardmill(source: Path, out: Path) -> tuple[float, float, float]:
    """Seconds of a worker of its own from its first claim to its last commit, of the command, and of the processor."""
    from shardmill.api import apply

    began = time.perf_counter()
    run = apply(str(source), f"{HERE}:measure", id="id", column="text", out=out, workers=1)
    whole = time.perf_counter() - began
    worker = run.ledger.workers.read()[0]
    last = max(commit.finished_at for commit in run.ledger.commits.read().values())
    assert run.status().made == run.status().rows
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return last - worker["began"], whole, used.ru_utime + used.ru_stime


def by_ray(source: Path, out: Path) -> tuple[float, float]:
    import ray

    began = time.perf_counter()
    ray.init(num_cpus=1, include_dashboard=False, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ready = time.perf_counter()
    data = ray.data.read_parquet(str(source)).map_batches(measure_columns, batch_size=1024)
    data.write_parquet(str(out))
    return time.perf_counter() - ready, time.perf_counter() - began


def by_datasets(source: Path, out: Path) -> tuple[float, float, float]:
    import datasets

    began, before = time.perf_counter(), time.process_time()
    datasets.disable_progress_bars()
    data = datasets.load_dataset("parquet", data_files=str(source), split="train", cache_dir=str(out / "cache"))
    ready = time.perf_counter()
    made = data.map(measure_columns, batched=True, batch_size=1024, remove_columns=["text"], load_from_cache_file=False)
    made.to_parquet(str(out / "made.parquet"))
    return time.perf_counter() - ready, time.perf_counter() - began, time.process_time() - before


WAYS = {"shardmill": by_shardmill, "ray": by_ray, "datasets": by_datasets}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--micros", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", default="", help="the Python of an environment with ray[data] and datasets")
    parser.add_argument("--one", nargs=3, metavar=("WAY", "SOURCE", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        way, source, out = args.one
        Path(out).mkdir(parents=True, exist_ok=True)
        print(json.dumps(WAYS[way](Path(source), Path(out) / way)))
        return
    os.environ["APPLY_LOOPS"] = str(find_loops(args.micros))
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), args.rows, args.rounds, args.peers)


def compare(folder: Path, rows: int, rounds: int, peers: str) -> None:
    from benchmarks.machine import describe_machine, print_table

    source = folder / "rows.parquet"
    write_source(source, rows)
    alone: list[tuple[float, float]] = []
    taken: dict[str, list[list[float]]] = {}
    for turn in range(rounds):
        alone.append(function_alone(source))
        for way in WAYS:
            python = sys.executable if way == "shardmill" else peers
            if python:
                taken.setdefault(way, []).append(_run_one(python, way, source, folder / f"{way}-{turn}"))
    own, busy = (min(column) for column in zip(*alone, strict=True))
    describe_machine()
    print(f"{rows:,} rows of {own / rows * 1e6:.0f} µs; the best of {rounds} rounds\n")
    lines = [["the function alone", f"{own:.1f}", "", "", f"{busy:.1f}", ""]]
    for way, times in taken.items():
        best, whole, *used = (min(column) for column in zip(*times, strict=True))
        above = [f"{used[0]:.1f}", f"{100 * (used[0] / busy - 1):+.1f} %"] if used else ["", ""]
        lines.append([way, f"{best:.1f}", f"{100 * (best / own - 1):+.1f} %", f"{whole:.1f}", *above])
    print_table(["", "seconds", "above", "with the start", "of the processor", "above"], lines)


def _run_one(python: str, way: str, source: Path, out: Path) -> list[float]:
    command = [python, str(HERE), "--one", way, str(source), str(out)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[float] = json.loads(said.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
