"""How long does `verify` take, and how much memory, for many shards and ids? With --before SRC, compared with that
source tree."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine, print_table

DIMS = 8


def make_run(folder: Path, shards: int, ids: int) -> Path:
    """A finished run of the fake task, its parts written without running the task."""
    import numpy as np
    import pyarrow as pa

    from shardmill.core.ranges import split_evenly
    from shardmill.ledger import Claim, Ledger
    from shardmill.plan import Plan, Shard, SourceFile, SourceStat
    from shardmill.plan.spec import Work
    from shardmill.sinks.parquet import ParquetSink
    from shardmill.sources.files import stat_file
    from shardmill.testing import FakeTask
    from shardmill.worker.tally import OpenShard

    source = folder / "items.jsonl"
    source.write_bytes(b"\n" * ids)
    found = stat_file(str(source))
    assert found is not None
    stat = SourceStat("jsonl", (SourceFile(str(source), ids, found.tag, ""),), {"id": "string"})
    work = Work(source=(str(source),), text="text", id=("id",), task="shardmill.testing:FakeTask")
    spans = split_evenly(0, ids, shards)
    made = [Shard(i, 0, start, stop, stop - start) for i, (start, stop) in enumerate(spans)]
    plan = Plan.of(work, stat, FakeTask().fingerprint(), made)
    ledger = Ledger(folder / "run")
    plan = ledger.create(plan)
    sink = ParquetSink(ledger, pa.schema([pa.field("id", pa.string())]), FakeTask(DIMS).output)
    vectors = np.random.default_rng(7).standard_normal((max(b - a for a, b in spans), DIMS), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for shard, (start, stop) in enumerate(spans):
        claim = Claim(shard, f"{shard:08x}")
        staged = sink.begin(claim)
        names = pa.array([f"item-{i:012d}" for i in range(start, stop)])
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors[: stop - start].reshape(-1)), DIMS)
        staged.write(pa.Table.from_arrays([names, column], schema=sink.schema), np.arange(stop - start))
        staged.seal(stop - start)
        done = OpenShard(claim, time.time(), staged, rows=stop - start, part_rows=stop - start, lines=stop - start)
        staged.commit(done.record(plan, worker="bench", device="cpu", errors_file="", numerics={}))
    return folder / "run"


def measure(run: Path) -> tuple[float, float, int]:
    """Seconds, CPU seconds and peak RSS in bytes; call it in a process of its own."""
    from shardmill.run import Run
    from shardmill.worker.tally import peak_rss_bytes

    began, worked = time.monotonic(), time.process_time()
    report = Run(run).verify(sample=0)
    took, worked = time.monotonic() - began, time.process_time() - worked
    assert report.verified, report
    return took, worked, peak_rss_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["500:500000", "2000:2000000"], metavar="SHARDS:IDS")
    parser.add_argument(
        "--before", type=Path, metavar="SRC", help="Folder `src` of an earlier version, to compare with."
    )
    parser.add_argument("--folder", type=Path, help="Folder with space for the runs.")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.one)))
        return
    rows = []
    for size in args.sizes:
        shards, ids = map(int, size.split(":"))
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            run = make_run(Path(folder), shards, ids)
            for version, tree in (("before", args.before), ("now", None)):
                if version == "before" and tree is None:
                    continue
                env = {**os.environ, **({"PYTHONPATH": str(tree)} if tree else {})}
                command = [sys.executable, "-m", "benchmarks.verify", "--one", str(run)]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
                took, worked, peak = json.loads(answer)
                figures = [f"{took:.1f}", f"{worked:.1f}", f"{peak / 2**20:.0f} MiB"]
                rows.append([f"{shards:,}", f"{ids:,}", version, *figures])
    describe_machine()
    print_table(["shards", "ids", "version", "seconds", "CPU seconds", "peak RSS"], rows)


if __name__ == "__main__":
    main()
