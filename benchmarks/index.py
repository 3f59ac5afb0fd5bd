"""The index of passages over many vectors: killed in the middle of its second group, then built to its end.

    python -m benchmarks.index [--rows 200000] [--dims 64]

The vectors are points around 2,000 random centres, made by a task without a model in a run folder of `embed`. Times and
the peak of memory are those of the process `shardmill index`; recall is what it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import shardmill
from benchmarks.machine import describe_machine, print_table
from shardmill import run as runs
from shardmill.core.devices import Device
from shardmill.plan.spec import make_spec
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.testing import InProcessEngine

CENTRES = 2_000
WORDS = [f"word{i}" for i in range(20_000)]


class Scattered(Task):
    """Vectors around centres, by the number that a text begins with."""

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.output = pa.schema([pa.field("embedding", pa.list_(pa.float32(), dims))])
        self._centres = np.random.default_rng(0).normal(size=(CENTRES, dims)).astype(np.float32)

    def open(self, device: Device) -> None:
        pass

    def fingerprint(self) -> dict[str, str]:
        return {"model": "scattered"}

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        return Prepared([int((text or "0").split()[0]) for text in texts], np.ones(len(texts), np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        noise = np.stack([np.random.default_rng(i).normal(size=self.dims) for i in inputs]).astype(np.float32)
        made = self._centres[np.array(inputs) % CENTRES] + 0.7 * noise
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        column = pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), self.dims)
        return Output(pa.RecordBatch.from_arrays([column], schema=self.output))


def make_run(folder: Path, rows: int, dims: int) -> Path:
    rng = np.random.default_rng(1)
    with (folder / "items.jsonl").open("w") as file:
        for i in range(rows):
            text = " ".join([str(i), *(WORDS[j] for j in rng.zipf(1.3, 12) % len(WORDS))])
            file.write(json.dumps({"id": i, "text": text}) + "\n")
    work = {"source": str(folder / "items.jsonl"), "text": "text", "id": "id", "keep": "text"}
    work |= {"task": "benchmarks.index:Scattered", "params": {"dims": dims}}
    spec = make_spec(work, {"batch_tokens": 4096})
    run = runs.start(spec, folder / "run", engine=InProcessEngine())
    plan = json.loads(run.ledger.store.get("plan.json"))
    # What is indexed is a run of embed; what made these vectors stands in for its model.
    plan["work"] |= {"task": "embed", "params": {}}
    run.ledger.store.put("plan.json", json.dumps(plan).encode())
    return folder / "run"


def build(run: Path, *, kill: bool) -> tuple[float, float, str]:
    """Seconds, the peak of memory in MiB, and what was printed; killed once the first group has its graph."""
    paths = os.pathsep.join([str(Path(shardmill.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "shardmill", "index", str(run), "--json"]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)
    while kill and not list(run.glob("final/*/*.graph")):
        time.sleep(0.05)
    if kill:
        process.send_signal(signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    assert process.stdout is not None
    said = process.stdout.read()
    if not kill and status:
        raise SystemExit(f"index ended with {status}")
    return took, used.ru_maxrss / 1024, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dims", type=int, default=64)
    given = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch), given.rows, given.dims)
        killed = build(run, kill=True)
        kept = {path: path.stat().st_mtime_ns for path in run.glob("final/*/*") if ".partial" not in path.name}
        done = build(run, kill=False)
        if any(path.stat().st_mtime_ns != time for path, time in kept.items()):
            raise SystemExit("a group that was there was written again")
        again = build(run, kill=False)
    seen = json.loads(done[2])
    head = ["call", "time", "peak RSS", "groups there before", "groups there after", "recall@10"]
    before, groups = sum(path.name.endswith(".graph") for path in kept), str(seen["groups"])
    print_table(
        head,
        [
            ["killed in its second group", f"{killed[0]:.0f} s", f"{killed[1]:,.0f} MiB", "0", str(before), ""],
            ["again", f"{done[0]:.0f} s", f"{done[1]:,.0f} MiB", str(before), groups, f"{seen['recall@10']:.4f}"],
            ["once more", f"{again[0]:.1f} s", f"{again[1]:,.0f} MiB", groups, groups, f"{seen['recall@10']:.4f}"],
        ],
    )


if __name__ == "__main__":
    main()
