"""Rows that come to the wrong item, by twenty-two kinds of faults: each must be found, and no sound run be accused.

python -m campaigns.mixups --seeds 5 --sound 100

A fault is found if the worker refuses it, or if `verify` does not verify the run. The sample is left out: it would find
some of them by chance. A seed always plays the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.machine import describe_machine, print_table
from campaigns.planted_mixups import GROUPS, MEAN, MIXUPS, PLAIN, SORTING, WINDOWS, MixUp
from shardmill.core.errors import ShardmillError
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from shardmill.sinks import keeping
from shardmill.sources import batches
from shardmill.testing import InProcessEngine

LAYOUTS = (PLAIN, WINDOWS, MEAN, GROUPS, SORTING)
_ROWS = 60
_PARAMS: dict[str, dict[str, Any]] = {WINDOWS: {"window": 12}, MEAN: {"window": 12, "mean": True}}


class Died(Exception):
    """The worker ends in the middle of a shard."""


def write_source(folder: Path, choose: random.Random) -> Path:
    """Rows with an id, a text, a number and a topic; two have no text."""
    source = folder / "items.jsonl"
    bad = choose.sample(range(_ROWS), 2)
    with source.open("w") as file:
        for i in range(_ROWS):
            words = "".join(choose.choices("abcdefgh ", k=choose.randrange(12, 60)))
            text = "" if i in bad else f"t{i} {words}"
            file.write(json.dumps({"id": f"k{i}", "text": text, "n": i, "topic": f"topic {i % 20:02d}"}) + "\n")
    return source


def make_run(source: Path, layout: str, params: dict[str, Any]) -> Spec:
    task = "campaigns.planted_mixups:SortingTask" if layout == SORTING else "shardmill.testing:FakeTask"
    work = {"source": str(source), "text": "text", "task": task, "params": {**_PARAMS.get(layout, {}), **params}}
    work |= {"id": "topic", "group_by": "topic"} if layout == GROUPS else {"id": "id", "keep": "n"}
    return make_spec(work, {"shard_bytes": 2_000, "batch_tokens": 400, "max_errors": "100%", "lease_s": 30.0})


def play(name: str, seed: int, folder: Path) -> str:
    """Play one fault, or none; by what it was found, or "" if it was not."""
    fault, choose = MIXUPS[name] if name else MixUp(LAYOUTS[seed % len(LAYOUTS)]), random.Random(f"{name} {seed}")
    source, out = write_source(folder, choose), folder / "run"
    spec = make_run(source, fault.layout, dict(fault.params))
    planted = fault.worker(choose) if fault.worker is not None else contextlib.nullcontext(None)
    # In a run without a fault the worker may die, too.
    dies = fault.dies or (not name and fault.layout == PLAIN and bool(choose.randrange(2)))
    dear = (patch.object(keeping, "KEEP_EVERY_S", 0.0), patch.object(batches, "BATCH_ROWS", 4)) if dies else ()
    with contextlib.ExitStack() as stack:
        for each in dear:
            stack.enter_context(each)
        try:
            with planted as once, contextlib.suppress(Died):
                start(spec, out, engine=InProcessEngine(on_step=_die_after(3) if dies else _go_on), quiet=True)
            if once is not None:
                assert once.done, f"{name}, seed {seed}: the fault was not planted"
            run = start(spec, out, engine=InProcessEngine(), quiet=True)
        except ShardmillError as error:
            return f"the worker: {error.message}"
    if fault.after is not None:
        fault.after(run, source, choose)
    report = Run(out).verify(sample=0)
    return "; ".join(f"verify, {check.name}: {check.seen}" for check in report.checks if not check.ok)


def _go_on(step: str, shard: int) -> None:
    pass


def _die_after(kept: int) -> Any:
    seen = 0

    def hook(step: str, shard: int) -> None:
        nonlocal seen
        seen += step == "kept"
        if seen == kept:
            raise Died

    return hook


def play_all(names: list[str], seeds: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(name, []).append(play(name, seed, Path(folder)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each fault")
    parser.add_argument("--sound", type=int, default=100, help="runs without a fault")
    asked = parser.parse_args()
    describe_machine()
    began = time.monotonic()
    found = play_all(list(MIXUPS), asked.seeds)
    alarms = [said for said in play_all([""], asked.sound).get("", []) if said]
    rows = [
        [name, f"{sum(map(bool, said))} of {len(said)}", max(said, default="").partition(":")[0]]
        for name, said in found.items()
    ]
    print_table(["fault", "found", "by"], rows)
    total = [bool(said) for each in found.values() for said in each]
    print(f"\n{sum(total)} of {len(total)} faults found; {len(alarms)} alarms in {asked.sound} runs without a fault")
    print("\n".join(alarms[:5]))
    print(f"{time.monotonic() - began:,.0f} s")
    sys.exit(not all(total) or bool(alarms))


if __name__ == "__main__":
    main()
