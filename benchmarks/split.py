"""How fast is a split? Against a plain copy, `zstd -1` and the loop of the seed document, and does its memory grow?

Everything is timed until it is on the disk. The seed's loop is timed over the first 100 MB, written to files.
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

from benchmarks.machine import describe_machine, print_table
from benchmarks.memory import write_reviews

SLICE_BYTES = 100 * 10**6
WAYS = {
    "jsonl": ["--format", "jsonl"],
    "jsonl, 64 MB a chunk": ["--format", "jsonl", "--bytes", "64MB"],
    "jsonl, zstd": ["--format", "jsonl", "--compress", "zstd"],
    "jsonl, gzip": ["--format", "jsonl", "--compress", "gzip"],
    "json": ["--format", "json"],
    "json, gzip": ["--format", "json", "--compress", "gzip"],
    "parquet": [],
    "jsonl, shuffled": ["--format", "jsonl", "--shuffle", "1"],
}


def run(command: list[str]) -> tuple[float, int]:
    """Seconds and peak RSS in bytes of one command."""
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return time.monotonic() - began, usage.ru_maxrss * 1024


def split(source: Path, folder: Path, way: list[str]) -> tuple[float, int]:
    """Seconds, start-up included, and peak RSS of `shardmill split`."""
    out = folder / "out"
    found = run([sys.executable, "-m", "shardmill.cli", "split", str(source), "--out", str(out), *way])
    shutil.rmtree(out)
    return found


def shell(command: str, source: Path, folder: Path) -> float:
    copy = folder / "copy"
    seconds, _ = run(["sh", "-c", f"{command.format(source=source)} > {copy} && sync {copy}"])
    copy.unlink()
    return seconds


def seed_loop(source: Path, folder: Path) -> float:
    """Bytes a second of the loop: parse, gather, serialise, gzip what is over 1 MB."""
    began, done, items = time.monotonic(), 0, []
    for line in _lines(source):
        items.append(json.loads(line.strip()))
        done += len(line)
        if len(items) == 10_000:
            _write_seed_chunk(items, folder)
            items = []
    _write_seed_chunk(items, folder)
    return done / (time.monotonic() - began)


def _lines(source: Path) -> Iterator[bytes]:
    done = 0
    with open(source, "rb") as file:
        for line in file:
            done += len(line)
            if done > SLICE_BYTES:
                return
            yield line


def _write_seed_chunk(items: list[object], folder: Path) -> None:
    text = json.dumps({"chunk_id": "chunk-000", "items": items, "item_count": len(items)})
    data = gzip.compress(text.encode()) if len(text) > 1024 * 1024 else text.encode()
    with open(folder / "chunk", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, source = folder / "small.jsonl", folder / "reviews.jsonl"
        write_reviews(small, SLICE_BYTES)
        write_reviews(source, int(args.gb * 10**9))
        size = source.stat().st_size
        describe_machine()
        seed = seed_loop(source, folder)
        peers = {"copy (cat)": size / shell("cat {source}", source, folder)}
        if shutil.which("zstd"):
            peers["zstd -1"] = size / shell("cat {source} | zstd -q -1", source, folder)
        rows = [["the seed's loop", f"{seed / 10**6:,.0f}", "1.0x", "", "", ""]]
        rows += [[what, f"{speed / 10**6:,.0f}", f"{speed / seed:.1f}x", "", "", ""] for what, speed in peers.items()]
        for what, way in WAYS.items():
            seconds, peak = split(source, folder, way)
            _, small_peak = split(small, folder, way)
            speed = size / seconds
            peer = peers.get("zstd -1" if "zstd" in way else "copy (cat)", speed)
            rss = [f"{small_peak / 2**20:,.0f} MiB", f"{peak / 2**20:,.0f} MiB"]
            share = "" if "gzip" in way else f"{100 * speed / peer:.0f} %"
            rows.append([f"split: {what}", f"{speed / 10**6:,.0f}", f"{speed / seed:.1f}x", share, *rss])
    print_table(
        ["", "MB/s", "of the seed's loop", "of copy or zstd -1", "peak RSS, 0.1 GB", f"peak RSS, {args.gb:g} GB"], rows
    )


if __name__ == "__main__":
    main()
