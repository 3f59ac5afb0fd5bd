"""How long does planning a large file take, or many small ones, and how much is read for it?"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from benchmarks.memory import write_reviews


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def write_small_files(folder: Path, count: int, items: int = 4) -> None:
    """Files of about 2 kB, a hundred in each folder."""
    for i in range(count):
        if i % 100 == 0:
            within = folder / f"{i // 100:05d}"
            within.mkdir()
        rows = [{"reviewerID": f"r{i}-{j}", "reviewText": f"Item {i} {j} lasted a week. " * 18} for j in range(items)]
        (within / f"{i % 100:02d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(source: Path) -> list[str]:
    """The figures of a plan, measured in a process of its own."""
    from shardmill.core.devices import Device
    from shardmill.plan.spec import make_spec
    from shardmill.run.planner import make_plan
    from shardmill.worker.tally import peak_rss_bytes

    task = {"task": "shardmill.testing:FakeTask"}
    spec = make_spec({"source": str(source), "text": "reviewText", "id": "reviewerID", **task})
    before, began, worked = bytes_read(), time.perf_counter(), time.process_time()
    plan = make_plan(spec, [Device("cpu", "cpu")])
    took, worked, read = time.perf_counter() - began, time.process_time() - worked, bytes_read() - before
    return [
        f"{len(plan.shards):,}",
        f"{1000 * took:,.0f} ms",
        f"{1000 * worked:,.0f} ms",
        f"{read / 2**20:.2f} MiB",
        f"{len(plan.encode()) / 2**20:.2f} MiB",
        f"{peak_rss_bytes() / 2**20:.0f} MiB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, nargs="*", default=(0.1, 1, 10))
    parser.add_argument("--files", type=int, nargs="*", default=(), help="Numbers of files of 2 kB to plan.")
    parser.add_argument("--folder", type=Path, help="Folder with space for the largest source.")
    args = parser.parse_args()
    rows = []
    sources = [(f"{size:g} GB", size, 0) for size in args.gb] + [(f"{n:,} files", 0.0, n) for n in args.files]
    for name, gigabytes, files in sources:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            source = Path(folder) / "reviews.jsonl"
            if files:
                source = Path(folder)
                write_small_files(source, files)
            else:
                write_reviews(source, int(gigabytes * 10**9))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows.append([name, *pool.apply(measure, (source,))])
    describe_machine()
    print_table(["source", "shards", "time to plan", "CPU time", "read", "plan.json", "peak RSS"], rows)


if __name__ == "__main__":
    main()
