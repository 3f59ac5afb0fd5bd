"""One large .jsonl.gz with one worker and with two: is the second one busy too? And what does gzip cost?

Rows are compared with those of the plain file. The time of each run includes planning, which builds a new index.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.machine import describe_machine, print_table
from benchmarks.memory import write_reviews

Result = TypeVar("Result")


def compress(plain: Path) -> Path:
    packed = plain.with_name(plain.name + ".gz")
    with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=1) as out:
        shutil.copyfileobj(source, out, 1 << 20)
    return packed


class Measured(NamedTuple):
    seconds: float
    planning_s: float
    shards: int
    rows: str


def measure(source: Path, workers: int, room: Path) -> Measured:
    """A new run of the fake task; planning is also measured separately, and `rows` is a digest of the result."""
    from shardmill.plan.spec import make_spec
    from shardmill.run import start
    from shardmill.run.planner import devices_for, make_plan

    work = {"source": str(source), "text": "reviewText", "id": "reviewerID", "task": "shardmill.testing:FakeTask"}
    spec = make_spec(work, {"workers": workers, "device": "cpu"})
    with tempfile.TemporaryDirectory(dir=room) as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/first"
        planning_s, _ = timed(lambda: make_plan(spec, devices_for(spec)))
        os.environ["XDG_CACHE_HOME"] = f"{folder}/second"
        seconds, run = timed(lambda: start(spec, f"{folder}/run"))
        digest = hashlib.sha256()
        for batch in run.table().to_batches():
            digest.update(str(batch.to_pylist()).encode())
        return Measured(seconds, planning_s, run.status().shards, digest.hexdigest()[:12])


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=1000, help="MB of uncompressed data.")
    parser.add_argument("--folder", type=Path, help="Folder with space for the files and the runs.")
    args = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory(dir=args.folder) as room:
        plain = Path(room) / "reviews.jsonl"
        write_reviews(plain, int(args.mb * 10**6))
        for source in (plain, compress(plain)):
            alone = 0.0
            for workers in (1, 2):
                found = measure(source, workers, Path(room))
                alone = alone or found.seconds
                times = [f"{found.planning_s:.1f}", f"{found.seconds:.1f}", f"{found.seconds / alone:.2f}"]
                size = f"{source.stat().st_size / 10**6:,.0f} MB"
                table.append([source.name, size, str(workers), str(found.shards), *times, found.rows])
    describe_machine()
    print_table(["file", "size", "workers", "shards", "planning, s", "total, s", "vs one worker", "rows"], table)


if __name__ == "__main__":
    main()
