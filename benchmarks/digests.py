"""What the digests of items and rows cost: rows per second of a task without a model, and of an embedding model.

python -m benchmarks.digests --rows 200000 [--model FOLDER --texts 2000] [--device cuda]

Run it with the code before and after in turn (`PYTHONPATH`); the best of `--repeats` counts. Seconds of the processor
do not depend on what else the machine does, so they are shown beside those of the clock.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from shardmill.core.devices import Device, cores, gpus
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run.planner import make_plan
from shardmill.worker import Worker

WORDS = [f"word{i}" for i in range(5000)]


def write_texts(path: Path, rows: int, words: int) -> None:
    choose = random.Random(0)
    with path.open("w") as file:
        for i in range(rows):
            file.write(json.dumps({"id": f"item-{i}", "text": " ".join(choose.choices(WORDS, k=words))}) + "\n")


def measure(source: Path, rows: int, task: str, params: dict[str, Any], device: Device) -> tuple[float, float]:
    """Rows per second of the clock and of the processor, from the first batch to the last commit of one worker."""
    spec = make_spec({"source": str(source), "text": "text", "id": "id", "task": task, "params": params})
    with tempfile.TemporaryDirectory() as out:
        ledger = Ledger(out)
        ledger.create(make_plan(spec, [device]))
        ledger.put_execution(spec.execution.model_dump(mode="json"))
        began: list[tuple[float, float]] = []

        def note(step: str, shard: int) -> None:
            if step == "claimed" and not began:
                began.append((time.perf_counter(), time.process_time()))

        Worker(ledger, device=device, on_step=note).work()
        wall, busy = began[0]
        return rows / (time.perf_counter() - wall), rows / (time.process_time() - busy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--model", default="")
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    describe_machine()
    device = gpus()[0] if asked.device == "cuda" else Device("cpu", "cpu", cores())
    jobs: list[tuple[str, int, str, dict[str, Any]]] = [
        ("the fake task, 384 numbers", asked.rows, "shardmill.testing:FakeTask", {"dims": 384})
    ]
    if asked.model:
        jobs.append((Path(asked.model).name, asked.texts, "embed", {"model": asked.model}))
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for name, rows, task, params in jobs:
            source = Path(folder) / "items.jsonl"
            write_texts(source, rows, asked.words)
            found = [measure(source, rows, task, params, device) for _ in range(asked.repeats)]
            table.append([name, *(f"{max(rates):,.0f}" for rates in zip(*found, strict=True))])
    print_table(["task", "rows/s", "rows per second of the processor"], table)


if __name__ == "__main__":
    main()
