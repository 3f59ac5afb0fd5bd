"""Plays many seeds of a simulation, on several processes, and prints what happened; or one seed with every request."""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Protocol

from benchmarks.machine import describe_machine, print_table
from campaigns.faulty_run import Outcome

# A process that has played so many seeds gives way to another: what a seed leaves in memory is not collected.
_SEEDS_EACH = 20


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
    parser.add_argument("--seed-minutes", type=float, default=10.0, help="a seed that takes longer has failed")
    parser.add_argument("--mutate", choices=[*bugs], default="", help="plant a bug, and stop when it is found")
    asked = parser.parse_args()
    if asked.seed is not None:
        sys.exit(not show(play(asked.seed, asked.mutate, traced=True)))
    describe_machine()
    began, counts, failed, done, requests = time.monotonic(), Counter[str](), 0, 0, 0
    seeds = range(asked.first, asked.first + asked.seeds)
    mutated = partial(play, mutation=asked.mutate)
    with closing(play_all(mutated, seeds, asked.processes, 60 * asked.seed_minutes)) as outcomes:
        for outcome in outcomes:
            done += 1
            requests += outcome.requests
            counts += outcome.counts
            if outcome.faults:
                failed += 1
                replay = f"{command} --seed {outcome.seed}" + (f" --mutate {asked.mutate}" if asked.mutate else "")
                print(f"seed {outcome.seed}: {outcome.faults[0]}\n  play it again: {replay}", flush=True)
            if (asked.mutate and failed) or time.monotonic() - began > 60 * asked.minutes:
                break
            if done % 500 == 0:
                print(f"{done:,} seeds, {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
    took = time.monotonic() - began
    rows = [["seeds", f"{done:,}"], ["failed", f"{failed:,}"], ["requests", f"{requests:,}"]]
    print_table(["", ""], rows + [[name, f"{count:,}"] for name, count in sorted(counts.items())])
    print(f"\n{took:,.0f} s, {done / took:.1f} seeds per second")
    sys.exit(bool(failed) != bool(asked.mutate))


def play_all(
    play: Callable[[int], Outcome], seeds: Iterable[int], processes: int, seed_s: float
) -> Generator[Outcome, None, None]:
    """The outcomes of seeds, in order. A seed that takes longer than `seed_s`, or whose process dies, has failed."""
    players = [_Player(play, seed_s) for _ in range(processes)]
    idle = SimpleQueue[_Player]()
    for player in players:
        idle.put(player)

    def play_one(seed: int) -> Outcome:
        player = idle.get()
        try:
            return player.play(seed)
        finally:
            idle.put(player)

    try:
        with ThreadPoolExecutor(processes) as threads:
            yield from threads.map(play_one, seeds)
    finally:
        for player in players:
            player.end()


class _Player:
    """Plays seeds in a process of its own."""

    def __init__(self, play: Callable[[int], Outcome], seed_s: float) -> None:
        self._play, self._seed_s = play, seed_s
        self._process: BaseProcess | None = None
        self._left = 0

    def play(self, seed: int) -> Outcome:
        if not self._left:
            self.end()
            self._start()
        self._left -= 1
        began = time.monotonic()
        try:
            self._line.send(seed)
            outcome: Outcome = self._line.recv()
            return outcome
        except (EOFError, OSError):
            self._left = 0
            if time.monotonic() - began >= self._seed_s:
                return Outcome(seed, [f"it did not end within {self._seed_s:g} s; stderr has where it stood"])
            assert self._process is not None
            self._process.join()
            return Outcome(seed, [f"its process ended with status {self._process.exitcode}"])

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_play_seeds, args=(theirs, self._play, self._seed_s), daemon=True)
        self._process.start()
        theirs.close()
        self._left = _SEEDS_EACH

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _play_seeds(line: Connection, play: Callable[[int], Outcome], seed_s: float) -> None:
    """Play each seed that comes. One that takes too long ends this process, after all threads have told where they are.

    That needs none of Python's locks, so it works whatever the seed waits for.
    """
    with suppress(EOFError):
        while True:
            seed = line.recv()
            faulthandler.dump_traceback_later(seed_s, exit=True)
            outcome = play(seed)
            faulthandler.cancel_dump_traceback_later()
            line.send(outcome)


def show(outcome: Outcome) -> bool:
    """Print what happened in one seed; whether nothing was wrong in the end."""
    print("\n".join(outcome.trace))
    print(f"\n{outcome.requests:,} requests, digest {outcome.digest[:16]}")
    print("\n".join(outcome.faults) or "nothing lost, nothing doubled")
    return not outcome.faults
