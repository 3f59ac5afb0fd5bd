"""Runs with a deadline, in simulated time: the real decision about the number of workers, and a world against it.

python -m campaigns.deadlines --runs 300

A run has skewed shards, spot workers that are reclaimed in waves, workers that vanish or are slow, and a price of spot
that changes. Once a minute the decision is asked, with what a ledger would tell; an engine follows it. The cost is
compared with a bound that knew everything: the linear program that buys worker-seconds of usual speed, with no start,
loss or tail, at the prices and within the numbers of each minute.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.machine import describe_machine, print_table
from shardmill.plan.sizing.staff import RunPace, Staff, StaffLimits, WorkerKind, decide_staff

SPOT, ON_DEMAND = "spot", "on demand"
ON_DEMAND_USD_PER_H = 1.0
STEP_S, ASK_EVERY_S = 20.0, 60.0
# As planning cuts them.
LONGEST_SHARD_S = 900.0
# The rates of the last half hour count; a wish that the cloud did not fulfil is remembered for so long.
_WINDOW_S, _REFUSED_S = 1800.0, 300.0
# Work is counted in seconds of a usual worker. A run that took this many times its deadline is given up.
_GIVE_UP = 4.0


@dataclass(slots=True)
class DeadlineWorld:
    """What is simulated, drawn from a seed. `forecast` is the rate expected before anything is measured, or 0."""

    seed: int
    horizon_s: float
    most: int
    shards: list[float]
    start_s: float
    vanish_s: float
    slow_share: float
    slowness: float
    spot_most: list[int]
    spot_usd_per_h: list[float]
    forecast: float

    @classmethod
    def drawn(cls, seed: int) -> DeadlineWorld:
        draw = random.Random(seed)
        horizon_s = draw.uniform(1, 12) * 3600
        most = draw.randint(8, 48)
        # From far too many workers to half as many as are needed.
        work_s = horizon_s * most / math.exp(draw.uniform(math.log(0.5), math.log(6)))
        spread, mean_s = draw.uniform(0.3, 1.0), draw.uniform(30, 120)
        shards = []
        left = work_s
        while left > 0:
            shards.append(min(left, LONGEST_SHARD_S, mean_s * draw.lognormvariate(-spread * spread / 2, spread)))
            left -= shards[-1]
        minutes = math.ceil(_GIVE_UP * horizon_s / 60)
        spot_most = [round(most * draw.uniform(0.6, 1.5))] * minutes
        for _ in range(draw.randint(0, 4)):
            begin = int(draw.uniform(0, horizon_s) / 60)
            taken = draw.uniform(0.3, 0.9)
            for minute in range(begin, min(minutes, begin + draw.randint(10, 60))):
                spot_most[minute] = round(spot_most[minute] * (1 - taken))
        price, prices = draw.uniform(0.3, 0.5), []
        for minute in range(minutes):
            if minute % 60 == 0 and minute:
                price = min(0.9, price * draw.lognormvariate(0, 0.03))
            prices.append(price * ON_DEMAND_USD_PER_H)
        return cls(
            *(seed, horizon_s, most, shards),
            start_s=draw.uniform(30, 240),
            vanish_s=draw.uniform(10, 60) * 3600,
            slow_share=draw.uniform(0, 0.1),
            slowness=draw.uniform(2, 4),
            spot_most=spot_most,
            spot_usd_per_h=prices,
            # Every other run is the first of its kind: nothing was measured before.
            forecast=draw.lognormvariate(0, 0.15) if draw.random() < 0.5 else 0.0,
        )


@dataclass(slots=True)
class DeadlineOutcome:
    """What came of a run. `told_at_s` is when the deadline was first called lost, `changes` those of the number."""

    seed: int
    horizon_s: float
    took_s: float
    usd: float
    bound_usd: float | None
    told_at_s: float | None
    changes: int
    staffs: list[Staff] = field(default_factory=list)

    @property
    def met(self) -> bool:
        return self.took_s <= self.horizon_s

    @property
    def told(self) -> bool:
        return self.told_at_s is not None and self.told_at_s <= self.horizon_s / 10

    @property
    def over(self) -> float | None:
        """By how much more than the bound it cost, as a share; None if nothing could have met the deadline."""
        return None if self.bound_usd is None else self.usd / self.bound_usd - 1


@dataclass(slots=True)
class _Simulated:
    kind: str
    rate: float
    ready_at: float
    dies_at: float
    shard: float = 0.0
    done: float = 0.0


def simulate(world: DeadlineWorld) -> DeadlineOutcome:
    """Play one run to its end."""
    draw = random.Random(world.seed + 1_000_000)
    limits = StaffLimits(1, world.most, deadline_at=world.horizon_s)
    waiting, workers = list(reversed(world.shards)), list[_Simulated]()
    back: list[tuple[float, float]] = []
    left, usd, now, asked_at = sum(world.shards), 0.0, 0.0, -math.inf
    short_since: float | None = None
    refused: tuple[int, float] | None = None
    staff: Staff | None = None
    staffs: list[Staff] = []
    # Work done and seconds worked up to each minute, by kind.
    totals = dict.fromkeys((SPOT, ON_DEMAND), (0.0, 0.0))
    history: list[tuple[float, dict[str, tuple[float, float]]]] = []
    told_at = None
    while left > 1e-6 and now < _GIVE_UP * world.horizon_s - 60:
        minute = int(now / 60)
        price = {SPOT: world.spot_usd_per_h[minute] / 3600, ON_DEMAND: ON_DEMAND_USD_PER_H / 3600}
        # What the cloud takes back, and who vanishes: the shard is free once its lease has ended.
        spot = [worker for worker in workers if worker.kind == SPOT]
        gone = draw.sample(spot, max(0, len(spot) - world.spot_most[minute]))
        gone += [worker for worker in workers if worker.dies_at <= now and worker not in gone]
        for worker in gone:
            workers.remove(worker)
            left += worker.done
            if worker.shard:
                back.append((now + 75, worker.shard))
        waiting += [shard for at, shard in back if at <= now]
        back = [(at, shard) for at, shard in back if at > now]
        if now - asked_at >= ASK_EVERY_S:
            asked_at = now
            history = [entry for entry in history if entry[0] > now - _WINDOW_S] or history[-1:]
            since = history[0][1] if history else dict.fromkeys(totals, (0.0, 0.0))
            history.append((now, dict(totals)))
            kinds = []
            for kind in (SPOT, ON_DEMAND):
                did, seconds = (totals[kind][i] - since[kind][i] for i in range(2))
                known = did / seconds if seconds > 60 else world.forecast
                live = sum(worker.kind == kind for worker in workers)
                most = refused[0] if kind == SPOT and refused is not None else None
                kinds.append(WorkerKind(kind, known, price[kind], live, most))
            doubt = 0.05 if any(did for did, _ in totals.values()) else 0.2
            longest_s = max(
                (*waiting, *(shard for _, shard in back), *(worker.shard for worker in workers)), default=0.0
            )
            pace = RunPace(now, 0.0, left, tuple(kinds), world.start_s, longest_s, doubt)
            decided = decide_staff(pace, limits, staff)
            if decided is not staff:
                staff = decided
                staffs.append(staff)
            if told_at is None and not staff.possible:
                told_at = now
        assert staff is not None
        # The engine: spot as far as there is some, then on demand as far as it may.
        spots = sum(worker.kind == SPOT for worker in workers)
        dear = len(workers) - spots
        may_dear = staff.by_kind.get(ON_DEMAND, 0) if staff.by_kind else 0
        want_spot = min(staff.wanted, world.spot_most[minute])
        want_dear = min(may_dear, staff.wanted - want_spot)
        if want_spot < staff.wanted and spots >= want_spot:
            short_since = now if short_since is None else short_since
        else:
            short_since = refused = None
        if short_since is not None and now - short_since >= _REFUSED_S:
            refused = (spots, now)
        for kind, have, want in ((SPOT, spots, want_spot), (ON_DEMAND, dear, want_dear)):
            for _ in range(want - have):
                rate = 1 / world.slowness if draw.random() < world.slow_share else 1.0
                workers.append(_Simulated(kind, rate, now + world.start_s, now + draw.expovariate(1 / world.vanish_s)))
            for worker in sorted((w for w in workers if w.kind == kind), key=lambda w: w.rate)[: max(0, have - want)]:
                workers.remove(worker)
                left += worker.done
                if worker.shard:
                    waiting.append(worker.shard)
        for worker in workers:
            usd += price[worker.kind] * STEP_S
            if worker.ready_at > now:
                continue
            able = worker.rate * STEP_S
            while able > 0:
                if not worker.shard:
                    if not waiting:
                        break
                    worker.shard, worker.done = waiting.pop(), 0.0
                some = min(able, worker.shard - worker.done)
                able -= some
                worker.done += some
                left -= some
                did, seconds = totals[worker.kind]
                totals[worker.kind] = did + some, seconds + some / worker.rate
                if worker.done >= worker.shard - 1e-9:
                    worker.shard = worker.done = 0.0
        now += STEP_S
    changes = sum((a.wanted, dict(a.by_kind)) != (b.wanted, dict(b.by_kind)) for a, b in pairwise(staffs))
    return DeadlineOutcome(world.seed, world.horizon_s, now, usd, bound_usd(world), told_at, changes, staffs)


def bound_usd(world: DeadlineWorld) -> float | None:
    """What the work costs at least by the deadline, for one who knew all; None if it cannot be done.

    The linear program has one sum to reach and a limit for each minute and kind, so the cheapest minutes first solve
    it.
    """
    offers: list[tuple[float, float]] = []
    for minute in range(int(world.horizon_s / 60)):
        spot = min(world.most, world.spot_most[minute])
        offers.append((world.spot_usd_per_h[minute], 60.0 * spot))
        offers.append((ON_DEMAND_USD_PER_H, 60.0 * (world.most - spot)))
    left, usd = sum(world.shards), 0.0
    for price, seconds in sorted(offers):
        some = min(left, seconds)
        usd += some * price / 3600
        left -= some
    return None if left > 1e-6 else usd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this run alone, and print what was decided")
    asked = parser.parse_args()
    if asked.seed is not None:
        outcome = simulate(DeadlineWorld.drawn(asked.seed))
        for staff in outcome.staffs:
            print(f"{staff.at:8,.0f} s  {staff.wanted:3} {dict(staff.by_kind)}  {staff.reason}")
        print(f"{outcome.took_s:,.0f} of {outcome.horizon_s:,.0f} s, ${outcome.usd:,.2f}, over {outcome.over}")
        sys.exit(not (outcome.met or outcome.told))
    describe_machine()
    outcomes = [simulate(DeadlineWorld.drawn(seed)) for seed in range(asked.first, asked.first + asked.runs)]
    sys.exit(not report(outcomes))


def report(outcomes: list[DeadlineOutcome]) -> bool:
    """Print what came of the runs; whether at least 98 of 100 deadlines were met or told as lost in time."""
    met = [each for each in outcomes if each.met]
    fine = [each for each in outcomes if each.met or each.told]
    late = [each for each in outcomes if not each.met and not each.told]
    over = sorted(each.over for each in met if each.over is not None)
    rows = [
        ["runs", f"{len(outcomes):,}"],
        ["deadline met", f"{len(met):,}"],
        ["missed, told in the first tenth", f"{len(fine) - len(met):,}"],
        ["missed, told later or not", f"{len(late):,}"],
        ["met, though called doubtful in the first tenth", f"{sum(each.told for each in met):,}"],
        ["could not be met by anybody", f"{sum(each.bound_usd is None for each in outcomes):,}"],
        ["changes of the number, at most", f"{max(each.changes for each in outcomes)}"],
    ]
    if over:
        within = sum(each <= 0.1 for each in over)
        rows += [
            ["cost over the bound, median", f"{100 * statistics.median(over):.1f} %"],
            ["cost over the bound, 90th percentile", f"{100 * over[int(0.9 * (len(over) - 1))]:.1f} %"],
            ["met runs within 10 % of the bound", f"{within:,} of {len(over):,}"],
        ]
    print_table(["", ""], rows)
    for each in late:
        told = "never told" if each.told_at_s is None else f"told at {100 * each.told_at_s / each.horizon_s:.0f} %"
        print(f"seed {each.seed}: {each.took_s / each.horizon_s:.3f} of the time, {told}", file=sys.stderr)
    return len(fine) >= 0.98 * len(outcomes)


if __name__ == "__main__":
    main()
