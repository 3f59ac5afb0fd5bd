"""Does a worker's memory grow with the dataset? Peak RSS over a small and a large source, each in its own worker.

A fake task replaces the model, whose memory does not depend on the source, so only the pipeline is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine, print_table

WORDS = (
    *("battery", "screen", "case", "charger", "works", "broke", "after", "a", "week", "great", "value"),
    *("would", "not", "buy", "again", "phone", "holds", "well"),
)


def write_reviews(path: Path, size_bytes: int) -> int:
    """Write reviews of mixed lengths, about 600 bytes each; return their number."""
    choose = random.Random(7)
    block = []
    while sum(map(len, block)) < 8 << 20:
        words = " ".join(choose.choices(WORDS, k=int(choose.lognormvariate(4.2, 0.8)) + 1))
        row = {"reviewerID": f"A{choose.randrange(10**9):010d}", "asin": f"B{len(block):07d}", "reviewText": words}
        block.append(json.dumps(row).encode() + b"\n")
    data = b"".join(block)
    with open(path, "wb") as file:
        while file.tell() < size_bytes:
            file.write(data)
    return file_rows(path)


def file_rows(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def measure(source: Path, folder: Path) -> tuple[float, int]:
    """Seconds and peak RSS in bytes of one worker over one source; call it in a separate process."""
    from shardmill.core.devices import Device
    from shardmill.ledger import Ledger
    from shardmill.plan.spec import make_spec
    from shardmill.run.planner import make_plan

    task = {"task": "shardmill.testing:FakeTask", "params": {"dims": 384}}
    spec = make_spec({"source": str(source), "text": "reviewText", "id": "reviewerID", "keep": "asin", **task})
    ledger = Ledger(folder / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "shardmill.worker", ledger.url], check=True)
    return time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, nargs=2, default=(50, 1000))
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.one.parent)))
        return
    rows, peaks = [], []
    for megabytes in args.mb:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "reviews.jsonl"
            items = write_reviews(source, megabytes * 10**6)
            command = [sys.executable, "-m", "benchmarks.memory", "--one", str(source)]
            seconds, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        peaks.append(peak)
        rows.append([f"{megabytes:,} MB", f"{items:,}", f"{peak / 2**20:.1f} MiB", f"{items / seconds:,.0f}"])
    describe_machine()
    print_table(["source", "items", "peak RSS of the worker", "items/s"], rows)
    print(f"\nThe worker's memory over the large source: {100 * (peaks[1] / peaks[0] - 1):+.1f}%.")


if __name__ == "__main__":
    main()
