"""How long does planning a large file take, and how much of the file is read for it?"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from benchmarks.memory import write_reviews


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, nargs="+", default=(0.1, 1, 10))
    parser.add_argument("--folder", type=Path, help="Folder with space for the largest file.")
    args = parser.parse_args()

    from shardmill.devices import Device
    from shardmill.planner import make_plan
    from shardmill.spec import make_spec

    task = {"task": "shardmill.testing:FakeTask"}
    rows = []
    for gigabytes in args.gb:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            source = Path(folder) / "reviews.jsonl"
            write_reviews(source, int(gigabytes * 10**9))
            spec = make_spec({"source": str(source), "text": "reviewText", "id": "reviewerID", **task})
            before, began = bytes_read(), time.perf_counter()
            plan = make_plan(spec, [Device("cpu", "cpu")])
            took, read = time.perf_counter() - began, bytes_read() - before
        rows.append([f"{gigabytes:g} GB", f"{len(plan.shards):,}", f"{1000 * took:.0f} ms", f"{read / 2**20:.2f} MiB"])
    describe_machine()
    print_table(["source", "shards", "time to plan", "read"], rows)


if __name__ == "__main__":
    main()
