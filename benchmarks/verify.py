"""How long does `verify` take, and how much memory, for many shards and ids? With --before SRC, compared with that
source tree."""

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

from benchmarks.machine import describe_machine, print_table

DIMS = 8


def make_run(folder: Path, shards: int, ids: int, workers: int) -> Path:
    """A finished run of the fake task, made by workers."""
    from shardmill.core.devices import Device
    from shardmill.engines.local import LocalEngine
    from shardmill.plan.spec import make_spec
    from shardmill.run import start

    source = folder / "items.jsonl"
    with source.open("w") as lines:
        for first in range(0, ids, 10_000):
            last = min(first + 10_000, ids)
            lines.writelines(f'{{"id":"item-{i:012d}","text":"review {i}"}}\n' for i in range(first, last))
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    execution = {"shard_bytes": -(-source.stat().st_size // shards), "index": "none"}
    engine = LocalEngine([Device("cpu", "cpu", 1)] * workers)
    start(make_spec(work, execution), str(folder / "run"), engine=engine)
    return folder / "run"


def measure(run: Path, options: dict[str, bool]) -> dict[str, float]:
    """Call it in a process of its own."""
    from shardmill.run import Run
    from shardmill.worker.tally import peak_rss_bytes

    began = time.monotonic()
    found = Run(run)
    report = found.verify(sample=0, **options)
    took = time.monotonic() - began
    assert report.verified, report
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "seconds": took,
        "cpu": sum(each.ru_utime + each.ru_stime for each in used),
        "peak": peak_rss_bytes() / 2**20,
        "helper": used[1].ru_maxrss / 2**10,
        "shards": len(found.plan.shards),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["500:500000", "2000:2000000"], metavar="SHARDS:IDS")
    parser.add_argument(
        "--before", type=Path, metavar="SRC", help="Folder `src` of an earlier version, to compare with."
    )
    parser.add_argument("--folder", type=Path, help="Folder with space for the runs.")
    parser.add_argument("--workers", type=int, default=2, help="Processes that make the runs.")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, default={}, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.one, args.options)))
        return
    versions: list[tuple[str, Path | None, dict[str, bool]]] = [
        ("now", None, {}),
        ("now, --no-source", None, {"source": False}),
    ]
    if args.before is not None:
        versions.insert(0, ("before", args.before, {}))
    rows = []
    for size in args.sizes:
        shards, ids = map(int, size.split(":"))
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            run = make_run(Path(folder), shards, ids, args.workers)
            for version, tree, options in versions:
                env = {**os.environ, **({"PYTHONPATH": f"{tree}:{os.environ.get('PYTHONPATH', '')}"} if tree else {})}
                command = [sys.executable, "-m", "benchmarks.verify", "--one", str(run)]
                command += ["--options", json.dumps(options)]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
                found = json.loads(answer)
                rows.append([f"{found['shards']:,}", f"{ids:,}", version, f"{found['seconds']:.1f}"])
                rows[-1] += [f"{found['cpu']:.1f}", f"{found['peak']:.0f} MiB", f"{found['helper']:.0f} MiB"]
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    describe_machine()
    print_table(["shards", "ids", "version", "seconds", "CPU seconds", "peak RSS", "of a helper"], rows)


if __name__ == "__main__":
    main()
