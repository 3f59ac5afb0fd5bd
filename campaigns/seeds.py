"""Plays many seeds of a simulation, on several processes, and prints what happened; or one seed with every request."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from benchmarks.machine import describe_machine, print_table
from campaigns.faulty_run import Outcome


class Play(Protocol):
    """A module's function that plays one seed, with a planted bug unless its name is ""."""

    def __call__(self, seed: int, mutation: str = "", *, traced: bool = False) -> Outcome: ...


def run_campaign(play: Play, about: str, command: str, bugs: Iterable[str]) -> None:
    """The command line of a campaign; exits with 1 if a seed failed, or if a planted bug was not found."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this seed alone, and print what happens")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="end after this time, whatever is left")
    parser.add_argument("--mutate", choices=[*bugs], default="", help="plant a bug, and stop when it is found")
    asked = parser.parse_args()
    if asked.seed is not None:
        sys.exit(not show(play(asked.seed, asked.mutate, traced=True)))
    describe_machine()
    began, counts, failed, done, requests = time.monotonic(), Counter[str](), 0, 0, 0
    seeds = range(asked.first, asked.first + asked.seeds)
    with multiprocessing.get_context("spawn").Pool(asked.processes, maxtasksperchild=20) as pool:
        for outcome in pool.imap(partial(play, mutation=asked.mutate), seeds, chunksize=10):
            done += 1
            requests += outcome.requests
            counts += outcome.counts
            if outcome.faults:
                failed += 1
                replay = f"{command} --seed {outcome.seed}" + (f" --mutate {asked.mutate}" if asked.mutate else "")
                print(f"seed {outcome.seed}: {outcome.faults[0]}\n  play it again: {replay}", flush=True)
            if (asked.mutate and failed) or time.monotonic() - began > 60 * asked.minutes:
                pool.terminate()
                break
            if done % 500 == 0:
                print(f"{done:,} seeds, {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
    took = time.monotonic() - began
    rows = [["seeds", f"{done:,}"], ["failed", f"{failed:,}"], ["requests", f"{requests:,}"]]
    print_table(["", ""], rows + [[name, f"{count:,}"] for name, count in sorted(counts.items())])
    print(f"\n{took:,.0f} s, {done / took:.1f} seeds per second")
    sys.exit(bool(failed) != bool(asked.mutate))


def show(outcome: Outcome) -> bool:
    """Print what happened in one seed; whether nothing was wrong in the end."""
    print("\n".join(outcome.trace))
    print(f"\n{outcome.requests:,} requests, digest {outcome.digest[:16]}")
    print("\n".join(outcome.faults) or "nothing lost, nothing doubled")
    return not outcome.faults
