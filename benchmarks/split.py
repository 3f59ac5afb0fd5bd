"""The speed and memory of a split, compared with a plain copy, `zstd -1` and a naive Python loop.

All but plain `cp` are timed until the data is on disk. The naive loop is timed over the first 100 MB, written to files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import describe_machine, print_table
from benchmarks.memory import write_reviews

SLICE_BYTES = 100 * 10**6
WAYS = {
    "jsonl": ["--format", "jsonl"],
    "jsonl, 64 MB per chunk": ["--format", "jsonl", "--bytes", "64MB"],
    "jsonl, zstd": ["--format", "jsonl", "--compress", "zstd"],
    "jsonl, gzip": ["--format", "jsonl", "--compress", "gzip"],
    "json": ["--format", "json"],
    "json, gzip": ["--format", "json", "--compress", "gzip"],
    "parquet": [],
    "jsonl, shuffled": ["--format", "jsonl", "--shuffle", "1"],
}
PEERS = {
    "cp": "cp {source} {copy}",
    "cp, sync": "cp {source} {copy} && sync {copy}",
    "zstd -1": "cat {source} | zstd -q -1 > {copy} && sync {copy}",
}


class Took(NamedTuple):
    """What one command took: seconds, CPU-seconds, and the peak memory of its processes."""

    seconds: float
    cpu_s: float
    peak_bytes: int


def run(command: list[str]) -> Took:
    began = time.monotonic()
    # Without bytecode every start would compile the package again, unlike an installed package.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return Took(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def split(source: Path, folder: Path, way: list[str]) -> Took:
    """`shardmill split`, start-up included."""
    out = folder / "out"
    found = run([sys.executable, "-m", "shardmill", "split", str(source), "--out", str(out), *way])
    shutil.rmtree(out)
    return found


def shell(command: str, source: Path, folder: Path) -> Took:
    copy = folder / "copy"
    found = run(["sh", "-c", command.format(source=source, copy=copy)])
    copy.unlink()
    return found


def naive_loop(source: Path, folder: Path) -> float:
    """Bytes per second of a naive loop: parse, collect, serialise, gzip what is over 1 MB."""
    began, done, items = time.monotonic(), 0, []
    for line in _lines(source):
        items.append(json.loads(line.strip()))
        done += len(line)
        if len(items) == 10_000:
            _write_naive_chunk(items, folder)
            items = []
    _write_naive_chunk(items, folder)
    return done / (time.monotonic() - began)


def _lines(source: Path) -> Iterator[bytes]:
    done = 0
    with open(source, "rb") as file:
        for line in file:
            done += len(line)
            if done > SLICE_BYTES:
                return
            yield line


def _write_naive_chunk(items: list[object], folder: Path) -> None:
    text = json.dumps({"chunk_id": "chunk-000", "items": items, "item_count": len(items)})
    data = gzip.compress(text.encode()) if len(text) > 1024 * 1024 else text.encode()
    with open(folder / "chunk", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def compare(source: Path, small: Path, folder: Path, what: str, naive: float) -> list[str]:
    """One way to split, with its peers before and after it, so that other load on the machine affects all of them."""
    way, size = WAYS[what], source.stat().st_size
    peers = ["cp", "cp, sync"] if "--compress" not in way and "parquet" not in what else ["zstd -1"]
    before = {peer: shell(PEERS[peer], source, folder) for peer in peers}
    ours = split(source, folder, way)
    after = {peer: shell(PEERS[peer], source, folder) for peer in peers}
    shares = {p: (before[p].seconds + after[p].seconds) / 2 / ours.seconds for p in peers}
    speed = size / ours.seconds
    return [
        what,
        f"{speed / 10**6:,.0f}",
        f"{speed / naive:.1f}x",
        ", ".join(f"{100 * share:.0f} % of {peer}" for peer, share in shares.items()),
        f"{ours.cpu_s:.1f}; " + ", ".join(f"{(before[p].cpu_s + after[p].cpu_s) / 2:.1f}" for p in peers),
        f"{split(small, folder, way).peak_bytes / 2**20:,.0f} MiB",
        f"{ours.peak_bytes / 2**20:,.0f} MiB",
        f"{os.getloadavg()[0]:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--only", nargs="*", default=list(WAYS), choices=list(WAYS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, source = folder / "small.jsonl", folder / "reviews.jsonl"
        write_reviews(small, SLICE_BYTES)
        write_reviews(source, int(args.gb * 10**9))
        describe_machine()
        naive = naive_loop(source, folder)
        print(f"the naive loop: {naive / 10**6:,.1f} MB/s\n")
        rows = [compare(source, small, folder, what, naive) for what in args.only]
    head = ["split to", "MB/s", "vs the naive loop", "vs peers", "CPU-seconds: ours; peers"]
    print_table([*head, "peak RSS, 0.1 GB", f"peak RSS, {args.gb:g} GB", "load after"], rows)


if __name__ == "__main__":
    main()
