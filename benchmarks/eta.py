"""How well the end of a run is predicted: runs on a simulated clock, with texts of very different lengths.

python -m benchmarks.eta --runs 300

Items have log-normal lengths, and long ones cost more per byte. Shards are cut by bytes, so they differ in time.
Workers differ in speed, some are stragglers, and in half of the runs one is lost. The estimator sees what `status`
sees: the bytes of committed shards, the workers' own counts, and what they hold.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from benchmarks.machine import describe_machine, print_table
from shardmill.run.status.eta import Eta, WorkerPace, estimate_end

LEASE_S = 60.0
LATE_S = 30.0
SHARD_BYTES = 1 << 20
# Half of the items are shorter; one in a hundred is sixteen times as long. A shard has about 170 of them.
MEDIAN_BYTES = 3000
# Seconds per shard that the mean worker needs, about.
SHARD_S = 60.0


@dataclass(frozen=True, slots=True)
class EtaWorld:
    """One simulated run. `trend` is how much dearer the last shards of the source are than the first."""

    seed: int
    workers: int
    shards: int
    trend: float
    straggling: float
    lost: bool

    @classmethod
    def draw(cls, seed: int) -> EtaWorld:
        chance = random.Random(seed)
        workers = chance.choice([4, 8, 16, 32])
        return cls(
            seed=seed,
            workers=workers,
            shards=workers * chance.randint(16, 48),
            trend=chance.choice([0.0, 0.0, 0.3]),
            straggling=chance.choice([0.0, 0.05]),
            lost=seed % 2 == 1,
        )


@dataclass(slots=True)
class _Holding:
    shard: int
    start: float
    end: float
    alive: bool = True


@dataclass(slots=True)
class SimulatedRun:
    """What happened: who worked on which shard from when to when, and when each was committed."""

    world: EtaWorld
    end: float
    lost_at: float
    lost: int
    held: list[list[_Holding]]
    commits: list[tuple[float, int]]
    weights: list[int]


def simulate(world: EtaWorld) -> SimulatedRun:
    """Run a world to its end. Shards of a lost worker are claimed again after a lease; idle workers overtake others."""
    chance = random.Random(f"eta {world.seed}")
    weights, costs = _cut(world, chance)
    slow = max(0, round(world.straggling * world.workers))
    speeds = [chance.uniform(0.8, 1.2) / (4.0 if i < slow else 1.0) for i in range(world.workers)]
    ideal = sum(costs) / sum(speeds)
    lost = world.workers - 1 if world.lost else -1
    lost_at = chance.uniform(0.1, 0.8) * ideal if world.lost else math.inf
    free = _order(world.workers, len(weights))
    held: list[list[_Holding]] = [[] for _ in range(world.workers)]
    committed: dict[int, float] = {}
    ready = [(chance.uniform(0.0, 5.0), i) for i in range(world.workers)]
    heapq.heapify(ready)
    back: list[tuple[float, int]] = []
    while ready:
        now, worker = heapq.heappop(ready)
        if now >= lost_at and worker == lost:
            continue
        while back and back[0][0] <= now:
            free[0].insert(0, heapq.heappop(back)[1])
        shard = _claim(free, worker)
        if shard < 0:
            shard = _overtake(held, committed, now, costs, speeds[worker])
            if shard < 0:
                if len(committed) < len(weights):
                    soon = [at for at, _ in back] + [h.end for hs in held for h in hs if h.alive and h.end > now]
                    if soon:
                        heapq.heappush(ready, (min(soon) + 1e-6, worker))
                continue
        end = now + costs[shard] / speeds[worker]
        holding = _Holding(shard, now, end)
        if worker == lost and end > lost_at:
            holding.end, holding.alive = lost_at, False
            heapq.heappush(back, (lost_at + LEASE_S, shard))
        else:
            committed[shard] = min(committed.get(shard, math.inf), end)
            heapq.heappush(ready, (end, worker))
        held[worker].append(holding)
    return SimulatedRun(
        world, max(committed.values()), lost_at, lost, held, sorted((at, s) for s, at in committed.items()), weights
    )


def _cut(world: EtaWorld, chance: random.Random) -> tuple[list[int], list[float]]:
    """The bytes and the work of each shard, from the items in it; work is in seconds of a worker of speed 1."""
    draw = np.random.default_rng(chance.getrandbits(32))
    lengths = np.minimum(draw.lognormal(math.log(MEDIAN_BYTES), 1.2, 220 * world.shards), 1e5)
    work = lengths * (1 + lengths / (10 * MEDIAN_BYTES))
    shard = (np.cumsum(lengths) // SHARD_BYTES).astype(int)
    fits = shard < world.shards
    weights, costs = (np.bincount(shard[fits], each[fits]) for each in (lengths, work))
    costs *= 1 + world.trend * np.arange(len(costs)) / len(costs)
    return weights.tolist(), (costs * SHARD_S / costs.mean()).tolist()


def _order(workers: int, shards: int) -> list[list[int]]:
    """The shards as each worker meets them: it starts at its own place in the plan."""
    edges = [worker * shards // workers for worker in range(workers + 1)]
    return [list(range(edges[worker], edges[worker + 1])) for worker in range(workers)]


def _claim(free: list[list[int]], worker: int) -> int:
    """The next shard of the worker's own stretch, or else of the longest that is left."""
    mine = free[worker] or max(free, key=len)
    return mine.pop(0) if mine else -1


def _overtake(
    held: list[list[_Holding]], committed: dict[int, float], now: float, costs: list[float], speed: float
) -> int:
    """The shard that gains most if an idle worker does it too; -1 if none does."""
    open_now = [(h.end, h.shard) for hs in held for h in hs if h.alive and h.start <= now < h.end]
    gains = [(end - now - 1.25 * costs[shard] / speed, shard) for end, shard in open_now if committed[shard] == end]
    gain, shard = max(gains, default=(0.0, -1))
    return shard if gain > 0 else -1


def look(run: SimulatedRun, now: float) -> Eta | None:
    """What the estimator says at a time, from what a status would read then."""
    committed = run.commits[: bisect_right(run.commits, (now, len(run.weights)))]
    done = {shard for _, shard in committed}
    totals = list(accumulate((run.weights[shard] for _, shard in committed), initial=0.0))
    grains = [(0.0, 0.0), *zip((at for at, _ in committed), totals[1:], strict=True)]
    paces, taken = [], set(done)
    for worker, holdings in enumerate(run.held):
        gone = worker == run.lost and now >= run.lost_at + LATE_S
        seen = min(now, run.lost_at) if worker == run.lost else now
        work, left = 0.0, []
        for h in holdings:
            if h.start > seen:
                break
            full = h.end - h.start if h.alive else math.inf
            share = min(1.0, (seen - h.start) / full) if h.alive else 0.5
            work += run.weights[h.shard] * share
            if share < 1 and not gone and h.shard not in done:
                left.append(run.weights[h.shard] * (1 - share))
                taken.add(h.shard)
        began = holdings[0].start if holdings else now
        paces.append(WorkerPace(began, max(began, seen), work, not gone, tuple(left)))
    waiting = [weight for shard, weight in enumerate(run.weights) if shard not in taken]
    under_way = sum(run.weights[s] for s in taken - done) - sum(sum(p.held) for p in paces)
    return estimate_end(now, waiting, paces, [*grains, (now, totals[-1] + max(0.0, under_way))])


@dataclass(frozen=True, slots=True)
class Judged:
    """How one run was predicted: the worst error as a share of its duration, and how often the range held."""

    worst: float
    held: int
    asked: int
    width: float


def judge(world: EtaWorld, checks: int = 40) -> Judged:
    """Ask at many times from a fifth of the run on; not while a lost worker's lease lasts, nor before it is lost."""
    run = simulate(world)
    worst, held, asked, width = 0.0, 0, 0, 0.0
    first = max(0.2 * run.end, run.lost_at + LEASE_S if run.world.lost else 0.0)
    for check in range(checks):
        now = run.end * (0.2 + 0.8 * check / checks)
        if now < first:
            continue
        eta = look(run, now)
        assert eta is not None
        truth = run.end - now
        worst = max(worst, abs(eta.likely_s - truth) / run.end)
        held += eta.low_s <= truth <= eta.high_s
        width += (eta.high_s - eta.low_s) / run.end
        asked += 1
    return Judged(worst, held, asked, width / max(1, asked))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    runs = parser.parse_args().runs
    describe_machine()
    judged = {lost: [judge(w) for w in map(EtaWorld.draw, range(runs)) if w.lost is lost] for lost in (False, True)}
    rows = []
    for lost, each in judged.items():
        worst = sorted(j.worst for j in each)
        held, asked = sum(j.held for j in each), sum(j.asked for j in each)
        within = sum(w <= 0.1 for w in worst)
        rows.append(
            [
                "one worker lost" if lost else "no worker lost",
                f"{within} of {len(each)}",
                f"{worst[len(worst) // 2]:.1%}, {worst[-1]:.1%}",
                f"{held / asked:.1%}",
                f"{sum(j.width for j in each) / len(each):.1%}",
            ]
        )
    print_table(["runs", "always within 10 %", "worst error, median and most", "range held", "its width"], rows)


if __name__ == "__main__":
    main()
