"""SIGKILLs at random steps of `shardmill train`, on one process or on several that train together.

python -m campaigns.train_kills [--kills 20] [--processes 2] [--seed 1]

A tiny model learns made-up pairs. Once the run has kept the checkpoint of a step that was drawn beforehand, one of its
workers is killed. The run is compared with one that nobody disturbed, on the same number of processes: the row of
figures with its curve, and the weights bit for bit.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import describe_machine, print_table
from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.cli import command
from tests.support.training import a_model, topic_pairs

PAIRS, BATCH, EPOCHS = 240, 8, 20
# A run that takes longer hangs.
PATIENCE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A run under kills: at which checkpoints they came, and whether it ended as if there had been none."""

    processes: int
    killed_at: tuple[int, ...]
    steps: int
    same_figures: bool
    same_weights: bool
    verified: bool


def train(folder: Path, processes: int, name: str) -> subprocess.Popen[str]:
    out = folder / name
    spec = folder / f"{processes}.toml"
    spec.write_text(
        f'[work]\nsource = "{folder / "pairs.jsonl"}"\ntask = "train"\n'
        f'[work.params]\nmodel = "{folder / "model"}"\ncolumns = "question,passage"\nbatch = {BATCH}\n'
        f"epochs = {EPOCHS}\nlearning_rate = 1e-3\nheld_out = 0.2\ncheckpoint_every = 1\n"
        f'[execution]\nworkers = "{processes}:{processes}"\nlease_s = 5.0\ndevice = "cpu"\n'
    )
    words = command("train", "--spec", spec, "--out", out)
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(run: subprocess.Popen[str]) -> None:
    _, said = run.communicate(timeout=PATIENCE_S)
    if run.returncode:
        raise SystemExit(f"the run ended with {run.returncode}:\n{said[-4000:]}")


def kept(run: Path) -> int:
    """The step of the newest checkpoint."""
    ledger = Ledger(run)
    if ledger.find_plan() is None:
        return 0
    found = ledger.checkpoints.find(0)
    return found.step if found is not None else 0


def kill_one(parent: int, choose: random.Random) -> bool:
    workers = [
        each
        for each in psutil.Process(parent).children(recursive=True)
        if each.is_running() and "shardmill.worker" in " ".join(each.cmdline())
    ]
    if not workers:
        return False
    chosen = choose.choice(workers)
    chosen.send_signal(signal.SIGKILL)
    chosen.wait(PATIENCE_S)
    return True


def disturb(folder: Path, processes: int, kills: int, seed: int) -> Disturbed:
    choose = random.Random(seed)
    whole = f"whole-{processes}"
    finish(train(folder, processes, whole))
    steps = Run(folder / whole).table()["steps"].to_pylist()[0]
    wanted, killed_at, name = sorted(choose.sample(range(1, steps - 1), kills)), [], f"killed-{processes}"
    run = train(folder, processes, name)
    while wanted and run.poll() is None:
        step = kept(folder / name)
        # Without a newer checkpoint between them, two deaths count as a crash loop.
        if step >= wanted[0] and step > max(killed_at, default=0) and kill_one(run.pid, choose):
            killed_at.append(step)
            wanted.pop(0)
            print(f"{processes} processes: killed at step {step} of {steps}", file=sys.stderr, flush=True)
        time.sleep(0.02)
    finish(run)
    runs = [Run(folder / each) for each in (name, whole)]
    weights = [(folder / each / "model" / "model.safetensors").read_bytes() for each in (name, whole)]
    return Disturbed(
        processes=processes,
        killed_at=tuple(killed_at),
        steps=steps,
        same_figures=runs[0].table().equals(runs[1].table()),
        same_weights=weights[0] == weights[1],
        verified=runs[0].verify().verified,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory(prefix="train-kills-") as name:
        folder = Path(name)
        a_model(folder / "model")
        rows = "".join(json.dumps(row) + "\n" for row in topic_pairs(PAIRS))
        (folder / "pairs.jsonl").write_text(rows)
        done = disturb(folder, asked.processes, asked.kills, asked.seed)
    head = ["processes", "steps", "kills", "after step", "figures", "weights", "verified"]
    said = [
        str(done.processes),
        str(done.steps),
        str(len(done.killed_at)),
        ", ".join(map(str, done.killed_at)),
        "equal" if done.same_figures else "differ",
        "equal" if done.same_weights else "differ",
        "yes" if done.verified else "no",
    ]
    print_table(head, [said])
    sys.exit(not (done.same_figures and done.same_weights and done.verified))


if __name__ == "__main__":
    main()
