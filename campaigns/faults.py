"""Thousands of seeded runs in which everything goes wrong that may; each must end with every row exactly once.

python -m campaigns.faults --seeds 10000
python -m campaigns.faults --seed 1234      plays one seed again, with every request and fault

A seed always plays the same. `--mutate NAME` plants a known bug, which must be found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from benchmarks.machine import describe_machine, print_table
from campaigns.faulty_run import Outcome, play
from campaigns.planted_bugs import BUGS, planted


def play_planted(job: tuple[int, str]) -> Outcome:
    seed, mutation = job
    with planted(mutation):
        return play(seed)


def show(seed: int, mutation: str) -> bool:
    """Print what happened in one seed; whether nothing was wrong in the end."""
    with planted(mutation):
        outcome = play(seed, traced=True)
    print("\n".join(outcome.trace))
    print(f"\n{outcome.requests:,} requests, digest {outcome.digest[:16]}")
    print("\n".join(outcome.faults) or "nothing lost, nothing doubled")
    return not outcome.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this seed alone, and print what happens")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="end after this time, whatever is left")
    parser.add_argument("--mutate", choices=list(BUGS), default="", help="plant a bug, and stop when it is found")
    asked = parser.parse_args()
    if asked.seed is not None:
        sys.exit(not show(asked.seed, asked.mutate))
    describe_machine()
    began, counts, failed = time.monotonic(), Counter[str](), []
    requests = 0
    jobs = [(seed, asked.mutate) for seed in range(asked.first, asked.first + asked.seeds)]
    with multiprocessing.get_context("spawn").Pool(asked.processes, maxtasksperchild=20) as pool:
        for done, outcome in enumerate(pool.imap(play_planted, jobs, chunksize=10), 1):
            requests += outcome.requests
            counts += outcome.counts
            if outcome.faults:
                failed.append(outcome.seed)
                replay = f"python -m campaigns.faults --seed {outcome.seed}"
                replay += f" --mutate {asked.mutate}" if asked.mutate else ""
                print(f"seed {outcome.seed}: {outcome.faults[0]}\n  play it again: {replay}", flush=True)
            if (asked.mutate and failed) or time.monotonic() - began > 60 * asked.minutes:
                pool.terminate()
                break
            if done % 500 == 0:
                print(f"{done:,} seeds, {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
    took = time.monotonic() - began
    rows = [["seeds", f"{done:,}"], ["failed", f"{len(failed):,}"], ["requests", f"{requests:,}"]]
    rows += [[name, f"{count:,}"] for name, count in sorted(counts.items())]
    print_table(["", ""], rows)
    print(f"\n{took:,.0f} s, {done / took:.1f} seeds per second")
    sys.exit(bool(failed) != bool(asked.mutate))


if __name__ == "__main__":
    main()
