"""The status of a run with a hundred thousand shards and a thousand workers, simulated in its folder.

python -m benchmarks.status_scale --shards 100000 --workers 1000
python -m benchmarks.status_scale --s3

The folder gets a plan, segments, the newest commits, heartbeats and leases; a worker writes the view. Then new
processes ask for the status, and one watches the run for an hour of a simulated clock. Beside the time that passed, the
processor time is measured: that of a machine without other work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from shardmill.ledger import Ledger, view_every_s
from shardmill.ledger.record import DoneShard, encode
from shardmill.plan import Plan, Shard, SourceFile, SourceStat
from shardmill.plan.spec import Work
from shardmill.run.costs.outlook import look
from shardmill.store import LocalStore
from tests.support.counting import CountingStore
from tests.support.ledgers import make_commit
from tests.support.seaweed import seaweed

WEIGHT_BYTES = 1 << 20
# Commits that are in no segment yet.
UNSEALED = 1500
# How often `status --watch` reads the view of a large run.
REFRESH_S = 5.0
_ASK = """
import sys, time
def now():
    return time.perf_counter(), time.process_time()
times = [now()]
import shardmill.cli
from shardmill.run.costs.outlook import look
from shardmill.ledger import Ledger
from shardmill.run.status.screen import show
times.append(now())
ledger = Ledger(sys.argv[1])
plan = ledger.plan()
times.append(now())
look(ledger, plan)
times.append(now())
print(*(b - a for before, after in zip(times, times[1:]) for a, b in zip(before, after)))
"""
# Reads the state at each time that it is told, and answers with its memory and its processor time so far.
_WATCH = """
import sys, time
from shardmill.run.costs.outlook import look
from shardmill.ledger import Ledger
from shardmill.run.status.screen import render
now = 0.0
ledger = Ledger(sys.argv[1], lambda: now)
plan = ledger.plan()
for line in sys.stdin:
    now = float(line)
    status = look(ledger, plan)
    render(status)
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
    print(resident, time.process_time(), status.shards_done, flush=True)
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


def compiled(folder: str) -> dict[str, str]:
    """The environment of a process whose modules are compiled already, as those of an installed package are."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def command(place: str, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds that passed and processor time of `shardmill status`, with all that a new process does."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    asked = [sys.executable, "-m", "shardmill", "status", place]
    subprocess.run(asked, stdout=subprocess.DEVNULL, env=environment, check=True)
    passed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Hour:
    """Time that passes in a run: its workers beat and commit, one writes the view, somebody watches."""

    def __init__(self, place: str, shards: int, workers: int) -> None:
        self.place, self.shards, self.workers = place, shards, workers
        self.now = self.start = time.time()
        self.ledger = Ledger(place, lambda: self.now)
        self.plan = self.ledger.plan()
        self.done = shards // 2
        self.seen: list[tuple[int, float]] = []

    def pass_by(self, hours: float) -> None:
        watching = subprocess.Popen(
            [sys.executable, "-c", _WATCH, self.place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert watching.stdin is not None
        assert watching.stdout is not None
        every_s = view_every_s(self.workers)
        while self.now < self.start + 3600 * hours:
            for _ in range(int(every_s / REFRESH_S)):
                print(self.now, file=watching.stdin, flush=True)
                resident, used, done = watching.stdout.readline().split()
                assert int(done) == self.done
                self.seen.append((int(resident), float(used)))
                self.now += REFRESH_S
            self._work(every_s)
        watching.stdin.close()
        watching.wait()

    def _work(self, seconds: float) -> None:
        """Each worker commits a shard per minute; the rest of the plan lasts until the end."""
        count = min(int(self.workers * seconds / 60), self.shards - self.done - self.workers)
        for shard in range(self.done, self.done + count):
            commit = make_commit(
                shard,
                rows=1000,
                tokens=200_000,
                worker=f"w{shard % self.workers:05d}",
                finished_at=self.now - seconds * (self.done + count - shard) / count,
                generation=self.ledger.folder.generation,
                timings={"device_s": 60.0},
            )
            put_quickly(self.ledger, self.ledger.commits.key(shard), encode(commit))
        self.done += count
        for worker in range(self.workers):
            beat = _beat(worker, self.done + worker, self.now, self.start - 3600)
            put_quickly(
                self.ledger, f"workers/w{worker:05d}.json", encode({"id": f"w{worker:05d}", "at": self.now, **beat})
            )
        self.ledger.segments.catch_up(self.shards)
        assert self.ledger.overview.write(self.plan, "w00000", self.workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--place", default="", help="A new folder or URL; default: a temporary folder.")
    parser.add_argument("--s3", action="store_true", help="In a SeaweedFS of its own.")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--hours", type=float, default=1.0, help="How long the run is watched, on a simulated clock.")
    asked = parser.parse_args()
    describe_machine()
    with contextlib.ExitStack() as stack:
        place = asked.place
        if not place:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            place = f"{stack.enter_context(seaweed(Path(folder)))}/scale" if asked.s3 else f"{folder}/run"
        measure(place, asked.shards, asked.workers, asked.times, asked.hours)


def measure(place: str, shards: int, workers: int, times: int, hours: float) -> None:
    ledger = build(place, shards, workers)
    began = time.perf_counter()
    ledger.overview.write(ledger.plan(), "w00000", workers)
    wrote_s = time.perf_counter() - began
    counting = CountingStore(place)
    reader = Ledger(counting)  # type: ignore[arg-type]
    plan = reader.plan()
    counting.reset()
    first = look(reader, plan)
    requests, size = sum(counting.requests.values()), counting.fetched_bytes
    counting.reset()
    began = time.perf_counter()
    look(reader, plan)
    again_s, again = time.perf_counter() - began, sum(counting.requests.values())
    assert first.shard_states == {
        "waiting": shards - shards // 2 - workers,
        "running": workers,
        "done": shards // 2,
        "failed": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        environment = compiled(folder)
        command(place, environment)
        how: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "env": environment}
        runs = [subprocess.run([sys.executable, "-c", _ASK, place], **how).stdout for _ in range(times)]
        wholes = [command(place, environment) for _ in range(times)]
    medians = [statistics.median(column) for column in zip(*(map(float, run.split()) for run in runs), strict=True)]
    whole = [statistics.median(column) for column in zip(*wholes, strict=True)]
    imports, planned, status, all_of_it = (
        f"{passed:.2f} s, {used:.2f} s of a processor"
        for passed, used in [*zip(medians[::2], medians[1::2], strict=True), whole]
    )
    rows = [
        ["`shardmill status`, all of it", all_of_it],
        ["its imports", imports],
        ["reading the plan", planned],
        ["the status", status],
        ["requests of a refresh", f"{requests}, and {again} for the next"],
        ["bytes of a refresh", f"{size:,}"],
        ["the next refresh", f"{again_s:.2f} s"],
        ["writing the view, by one worker", f"{wrote_s:.2f} s"],
    ]
    if hours:
        hour = Hour(place, shards, workers)
        hour.pass_by(hours)
        memory, refreshes = [resident / 2**20 for resident, _ in hour.seen], len(hour.seen)
        quarters = [statistics.fmean(memory[i * refreshes // 4 : (i + 1) * refreshes // 4]) for i in range(4)]
        used = (hour.seen[-1][1] - hour.seen[0][1]) / (refreshes - 1)
        rows += [
            [f"memory of `--watch` over {hours:g} h, {refreshes:,} refreshes", f"{max(memory):.1f} MiB at most"],
            ["its mean in each quarter of that time", ", ".join(f"{mean:.1f}" for mean in quarters) + " MiB"],
            ["processor time of a refresh and its frame", f"{1000 * used:.0f} ms"],
        ]
    print_table([f"{shards:,} shards, {workers:,} workers", "measured"], rows)


if __name__ == "__main__":
    main()
