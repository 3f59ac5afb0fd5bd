"""A study killed at random instants: each trial once, and the same best as in a study that nobody touched.

python -m campaigns.study_kills [--trials 60] [--kills 10] [--workers 2] [--seed 1]

The study runs as users run it: `shardmill tune`, with worker processes. SIGKILL goes to a worker, or to the parent,
which is started again. A trial reports and keeps a checkpoint at each of its steps, and takes a second or two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from shardmill.run import Run

STEPS, STEP_S = 6, 0.2
# One kill in this many is the parent's.
PARENTS = 4
PATIENCE_S = 600.0
STUDY = """
[work]
call = "campaigns.study_kills:objective"
trials = {trials}
seed = 3
pruner = {{ name = "median", n_startup_trials = 8 }}

[space]
x = {{ low = -5.0, high = 5.0 }}
rate = {{ low = 1e-5, high = 1.0, log = true }}
layers = {{ low = 1, high = 6 }}
way = ["a", "b", "c"]

[execution]
device = "cpu"
lease_s = 10
max_restarts = 1000
"""


def objective(parameters: dict[str, Any], context: Any) -> float:
    found = context.checkpoint()
    first, value = (found.step + 1, json.loads(found.read("value.json"))) if found is not None else (0, 10.0)
    goal = (parameters["x"] - 1) ** 2 + abs(parameters["layers"] - 3) + 100 * (parameters["rate"] - 0.01) ** 2
    for step in range(first, STEPS):
        time.sleep(STEP_S)
        value += (goal + (parameters["way"] == "c") - value) / 2
        context.report(step, {"value": value})
        context.keep(step, {"value.json": json.dumps(value).encode()})
    return float(value)


def tune(study: Path, out: Path, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shardmill", "tune", str(study), "--out", str(out), "--workers", str(workers)]
    with open(f"{out}.log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def find_workers(out: Path, killed: set[int]) -> list[int]:
    """The processes that work on a trial now."""
    beats = Run(out).ledger.workers.read() if (out / "plan.json").exists() else []
    found = (int(beat["pid"]) for beat in beats if beat["state"] == "working" and beat.get("open"))
    return [pid for pid in found if pid not in killed and Path(f"/proc/{pid}").exists()]


def run_killed(study: Path, out: Path, workers: int, kills: int, seed: int) -> dict[str, int]:
    """Run the study to its end, and kill as often meanwhile; returns who was killed how often."""
    choose, counts, killed = random.Random(seed), {"worker": 0, "parent": 0}, set[int]()
    parent, deadline = tune(study, out, workers), time.monotonic() + PATIENCE_S
    while parent.poll() != 0:
        if time.monotonic() > deadline:
            raise SystemExit("the study hangs")
        if parent.poll() is not None:
            parent = tune(study, out, workers)
        time.sleep(0.1)
        if sum(counts.values()) >= kills or not (found := find_workers(out, killed)):
            continue
        time.sleep(choose.uniform(0, 1.0))
        role = "parent" if choose.randrange(PARENTS) == 0 else "worker"
        pid = parent.pid if role == "parent" else choose.choice(found)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.add(pid)
        counts[role] += 1
        parent.poll() if role == "worker" else parent.wait()
    return counts


def outcomes(out: Path) -> list[tuple[Any, ...]]:
    study = Run(out).study()
    return [(t.number, t.state, dict(t.parameters), tuple(t.values), dict(t.reports)) for t in study.trials]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        study, calm, killed = (Path(folder) / name for name in ("study.toml", "calm", "killed"))
        study.write_text(STUDY.format(trials=given.trials))
        run_killed(study, calm, given.workers, 0, given.seed)
        counts = run_killed(study, killed, given.workers, given.kills, given.seed)
        first, second = outcomes(calm), outcomes(killed)
        best = [Run(out).study().best[0] for out in (calm, killed)]
        rows = [
            [
                name,
                str(sum(who.values())),
                str(len(each)),
                str(sum(t[1] == "pruned" for t in each)),
                f"{b.values[0]:.6g}",
            ]
            for name, who, each, b in zip(("calm", "killed"), ({}, counts), (first, second), best, strict=True)
        ]
        print_table(["study", "kills", "trials", "pruned", "best"], rows)
        same = first == second and [trial[0] for trial in second] == list(range(given.trials))
        print(f"\n{counts}; each trial once and the same: {same}; same best trial: {best[0].number == best[1].number}")
        return 0 if same and best[0].number == best[1].number and sum(counts.values()) == given.kills else 1


if __name__ == "__main__":
    sys.exit(main())
