"""The status of a run with a hundred thousand shards and a thousand workers, simulated in its folder.

python -m benchmarks.status_scale --shards 100000 --workers 1000
python -m benchmarks.status_scale --place s3://bucket/scale

The folder gets a plan, segments, the newest commits, heartbeats and leases; a worker writes the view. Then a new
process asks for the status, and another one asks twice. Beside the time that passed, the processor time is measured:
that of a machine without other work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.machine import describe_machine, print_table
from shardmill.ledger import Ledger
from shardmill.ledger.record import DoneShard, encode
from shardmill.plan import Plan, Shard, SourceFile, SourceStat
from shardmill.spec import Work
from shardmill.status.state import glance
from shardmill.store import LocalStore
from tests.support.counting import CountingStore
from tests.support.ledgers import make_commit

WEIGHT_BYTES = 1 << 20
# Commits that are in no segment yet.
UNSEALED = 1500
_ASK = """
import sys, time
def now():
    return time.perf_counter(), time.process_time()
times = [now()]
from shardmill.run import Run
times.append(now())
run = Run(sys.argv[1])
times.append(now())
status = run.status()
times.append(now())
print(*(b - a for before, after in zip(times, times[1:]) for a, b in zip(before, after)))
"""


def build(place: str, shards: int, workers: int) -> Ledger:
    """A run that is half done."""
    stat = SourceStat("jsonl", (SourceFile("/x.jsonl", shards * WEIGHT_BYTES, "t", "e"),), {"id": "string"})
    cut = [Shard(i, 0, i * WEIGHT_BYTES, (i + 1) * WEIGHT_BYTES, WEIGHT_BYTES) for i in range(shards)]
    ledger, now = Ledger(place), time.time()
    ledger.create(Plan.of(Work(source=("/x.jsonl",), text="text"), stat, {"weights": "1"}, cut))
    ledger.put_execution({})
    done, generation = shards // 2, ledger.folder.generation
    began = now - 3600
    commits = [
        make_commit(
            shard,
            rows=1000,
            tokens=200_000,
            worker=f"w{shard % workers:05d}",
            finished_at=began + 3600 * (shard + 1) / done,
            generation=generation,
            timings={"device_s": 60.0},
        )
        for shard in range(done)
    ]
    sealed = max(0, done - UNSEALED) // 1000
    for number in range(sealed):
        rows = [DoneShard.of(commit) for commit in commits[1000 * number : 1000 * number + 1000]]
        fields = list(DoneShard.__slots__)
        ledger.store.put(
            ledger.folder.key("segments", number),
            encode(
                {
                    "generation": generation,
                    "full": list(range(number + 1)),
                    "fields": fields,
                    "shards": [[getattr(row, name) for name in fields] for row in rows],
                }
            ),
        )
    # What is in a segment is not listed again, so its commits are missed by nobody here; on S3 they take an hour.
    for commit in commits if isinstance(ledger.store, LocalStore) else commits[1000 * sealed :]:
        put_quickly(ledger, ledger.commits.key(commit.shard), encode(commit))
    for worker in range(workers):
        ledger.workers.beat(f"w{worker:05d}", _beat(worker, done + worker, now, began))
        lease = {"worker": f"w{worker:05d}", "host": "h", "pid": 1, "since": now, "until": now + 60}
        put_quickly(ledger, ledger.folder.key("leases", done + worker), json.dumps(lease).encode())
    return ledger


def put_quickly(ledger: Ledger, key: str, data: bytes) -> None:
    """Write without waiting for the disk, where there is one: building is not what is measured."""
    if not isinstance(ledger.store, LocalStore):
        ledger.store.put(key, data)
        return
    target = ledger.store.path(key)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _beat(worker: int, shard: int, now: float, began: float) -> dict[str, Any]:
    return {
        "state": "working",
        "host": f"host-{worker // 8}",
        "pid": 1,
        "device": "NVIDIA A10G",
        "kind": "cuda",
        "started": began - 30,
        "began": began,
        "progress_at": now,
        "rows": 50_000,
        "bytes": 50 * WEIGHT_BYTES,
        "tokens": 10_000_000,
        "errors": 3,
        "commits": 50,
        "rows_per_s": 14.0,
        "bytes_per_s": WEIGHT_BYTES / 60,
        "tokens_per_s": 2800.0,
        "open": {str(shard): {"rows": 500, "bytes": WEIGHT_BYTES // 2, "due": now + 30, "since": now - 30}},
        "timings": {"read_s": 3.0, "prepare_s": 30.0, "device_s": 3000.0, "write_s": 9.0},
        "reasons": [{"reason": "'text' is null", "count": 3, "file": "x.jsonl", "shard": 4, "line_in_shard": 5}],
        "rss_bytes": 2 << 30,
        "device_bytes": 12 << 30,
        "use": 0.97,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--place", default="", help="A new folder or URL; default: a temporary folder.")
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    describe_machine()
    folder = "" if asked.place else tempfile.mkdtemp()
    place = asked.place or f"{folder}/run"
    try:
        ledger = build(place, asked.shards, asked.workers)
        began = time.perf_counter()
        ledger.overview.write(ledger.plan(), "w00000", asked.workers)
        wrote_s = time.perf_counter() - began
        counting = CountingStore(place)
        reader = Ledger(counting)  # type: ignore[arg-type]
        plan = reader.plan()
        counting.reset()
        first = glance(reader, plan)
        requests, size = sum(counting.requests.values()), counting.fetched_bytes
        counting.reset()
        began = time.perf_counter()
        glance(reader, plan)
        again_s, again = time.perf_counter() - began, sum(counting.requests.values())
        assert first.shard_states == {
            "waiting": asked.shards - asked.shards // 2 - asked.workers,
            "running": asked.workers,
            "done": asked.shards // 2,
            "failed": 0,
        }
        runs = [
            subprocess.run([sys.executable, "-c", _ASK, place], capture_output=True, text=True, check=True)
            for _ in range(asked.times)
        ]
        parts = [list(map(float, run.stdout.split())) for run in runs]
        medians = [statistics.median(column) for column in zip(*parts, strict=True)]
        imports, planned, status, whole = (
            f"{passed:.2f} s, {used:.2f} s of a processor"
            for passed, used in [
                *zip(medians[::2], medians[1::2], strict=True),
                (sum(medians[::2]), sum(medians[1::2])),
            ]
        )
        rows = [
            ["a new process: imports", imports],
            ["reading the plan", planned],
            ["the status", status],
            ["all of it", whole],
            ["requests of a refresh", f"{requests}, and {again} for the next"],
            ["bytes of a refresh", f"{size:,}"],
            ["the next refresh", f"{again_s:.2f} s"],
            ["writing the view, by one worker", f"{wrote_s:.2f} s"],
        ]
        print_table([f"{asked.shards:,} shards, {asked.workers:,} workers", "measured"], rows)
    finally:
        if folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
