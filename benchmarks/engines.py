"""The overhead of each engine, compared with the local engine on the same items.

An engine is NAME, or NAME:KEY=VALUE,KEY=VALUE with its options: `python -m benchmarks.engines local ray:num_cpus=1`.
The task sleeps for each batch, so that other load on the machine hardly changes the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table


def parse_engine(text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition(":")
    return name, dict(pair.split("=", 1) for pair in rest.split(",") if pair)


def write_items(path: Path, count: int) -> None:
    """Write items of equal length, so that all batches have the same number of them."""
    path.write_text("".join(json.dumps({"id": i, "text": f"item {i:09d} of many"}) + "\n" for i in range(count)))


def measure(engine: str, source: Path, folder: Path, args: argparse.Namespace) -> tuple[float, float, float]:
    """Seconds from the command to the first claim, from there to the last commit, and of work per worker (mean).

    The second includes the delay between the first worker and the others; the third does not.
    """
    from shardmill.plan.spec import make_spec
    from shardmill.run import start

    name, options = parse_engine(engine)
    work: dict[str, Any] = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    execution = {
        "engine": name,
        "engine_options": options,
        # The SSH hosts come from their file, with one worker each.
        "workers": None if name == "ssh" else args.workers,
        "device": "cpu",
        "shard_bytes": max(1, source.stat().st_size // args.shards),
        "batch_tokens": args.batch_tokens,
    }
    began = time.time()
    run = start(make_spec({**work, "params": {"delay_s": args.delay_s}}, execution), folder)
    spans: dict[str, tuple[float, float]] = {}
    for commit in run.ledger.commits.read().values():
        first, last = spans.get(commit.worker, (float("inf"), 0.0))
        spans[commit.worker] = min(first, commit.finished_at - commit.seconds), max(last, commit.finished_at)
    assert run.verify().verified
    first, last = min(f for f, _ in spans.values()), max(t for _, t in spans.values())
    return first - began, last - first, sum(t - f for f, t in spans.values()) / args.workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", help="NAME or NAME:KEY=VALUE,…; local is always included.")
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--batch-tokens", type=int, default=250, help="Characters, for the fake task: ten items.")
    parser.add_argument("--delay-s", type=float, default=0.1, help="Minimum seconds per batch.")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    engines = ["local", *(e for e in args.engines if e != "local")]
    taken: dict[str, list[tuple[float, float, float]]] = {engine: [] for engine in engines}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "items.jsonl"
        write_items(source, args.items)
        for turn in range(args.rounds):
            for number, engine in enumerate(engines):
                taken[engine].append(measure(engine, source, Path(folder) / f"run-{turn}-{number}", args))
    describe_machine()
    medians = {e: [statistics.median(values) for values in zip(*each, strict=True)] for e, each in taken.items()}
    rows = []
    for engine, (start_s, span_s, work_s) in medians.items():
        _, local_span_s, local_work_s = medians["local"]
        shares = [f"{100 * (a / b - 1):+.1f} %" for a, b in ((span_s, local_span_s), (work_s, local_work_s))]
        rows.append([engine, f"{start_s:.1f} s", f"{span_s:.2f} s", shares[0], f"{work_s:.2f} s", shares[1]])
    print(f"{args.items:,} items, {args.workers} workers, {args.rounds} alternating rounds, medians\n")
    print_table(["engine", "to the first claim", "to the last commit", "vs local", "work per worker", "vs local"], rows)


if __name__ == "__main__":
    main()
