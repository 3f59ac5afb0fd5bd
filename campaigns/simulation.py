"""A thousand workers on a hundred thousand shards: the real ledger and the real choices, on a simulated clock.

python -m campaigns.simulation --workers 1000 --shards 100000

Each worker is a thread, but only one runs at a time: the one whose time comes first. Every request to the store takes
as long as on S3, so the requests of different workers reach the store in the order of their times.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, fields

import numpy as np

from benchmarks.machine import describe_machine, print_table
from campaigns.simulated import InstantStore, Objects, SlowStore, Turns
from shardmill.ledger import Claim, Commit, History, HistoryPoint, Ledger, view_every_s
from shardmill.plan import Plan, Shard, SourceFile, SourceStat
from shardmill.plan.spec import Work
from shardmill.worker.choice import Choice

LEASE_S = 60.0
# Only one beat per this interval is simulated, since others seldom read them; all requests are counted.
LEAST_BEAT_S = 10.0
# Bytes of a real worker's record, of a commit, of what execution.json says about each file and a view of each worker.
RECORD_BYTES, COMMIT_BYTES, FILE_BYTES, VIEW_BYTES = 1000, 700, 75, 400
HISTORY_EVERY_S = 120.0
OPEN_SHARDS = 2
_SOON_S = 2.0
WEIGHT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated. `spread` is the sigma of the log-normal times of shards, whose mean is `shard_s`.

    A share `straggling` of the workers is `slowness` times as slow; a share `vanishing` disappears during the run, a
    share `late` joins during it, and a share `bad` meets a bad row. With `one_slot` all workers begin to look for
    shards at the same place. The source has N `files`.
    """

    workers: int = 1000
    shards: int = 100_000
    shard_s: float = 60.0
    spread: float = 0.3
    straggling: float = 0.05
    slowness: float = 5.0
    vanishing: float = 0.01
    late: float = 0.0
    bad: float = 0.0
    files: int = 1
    one_slot: bool = False
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    """The result; seconds are those of the simulated clock."""

    makespan_s: float
    ideal_s: float
    tail_s: float
    work_s: float
    wasted_s: float
    claims: int
    claim_s: list[float]
    shadows: int
    requests: Counter[str]
    bytes: Counter[str]
    ledger_bytes: int
    committed: int

    @property
    def tail_share(self) -> float:
        return self.tail_s / self.makespan_s

    @property
    def wasted_share(self) -> float:
        return self.wasted_s / self.work_s


@dataclass(slots=True)
class Open:
    """A shard that a worker works on: on the device from `start` to `end`."""

    claim: Claim
    start: float
    end: float

    def bytes_run(self, now: float) -> int:
        share = (now - self.start) / (self.end - self.start)
        return int(WEIGHT_BYTES * min(1.0, max(0.0, share)))


class Simulation:
    def __init__(self, world: World) -> None:
        self.world, self.turns, self.objects = world, Turns(), Objects()
        chance = np.random.default_rng(world.seed)
        sigma = world.spread
        self.work_s = chance.lognormal(math.log(world.shard_s) - sigma**2 / 2, sigma, world.shards)
        self.plan = _make_plan(world.shards)
        self.objects.sizes = {
            "workers": RECORD_BYTES,
            "commits": COMMIT_BYTES,
            "execution.json": world.files * FILE_BYTES,
            "view.json": world.workers * VIEW_BYTES,
        }
        self.objects.put("execution.json", b'{"generation": "simulated"}')
        self.claim_s: list[float] = []
        self.shadows = 0
        self.spent: list[tuple[int, str, float]] = []
        self.winners: dict[int, str] = {}
        self.dry_at = math.inf
        self.end = 0.0
        slow = set(chance.choice(world.workers, round(world.straggling * world.workers), replace=False).tolist())
        speeds = [1 / world.slowness if i in slow else 1.0 for i in range(world.workers)]
        self.ideal_s = float(self.work_s.sum() / sum(speeds))
        gone = chance.choice(world.workers, round(world.vanishing * world.workers), replace=False).tolist()
        vanish = dict(zip(gone, (chance.uniform(0.05, 0.95, len(gone)) * self.ideal_s).tolist(), strict=True))
        late, bad = (
            dict(zip(some, (chance.uniform(0.05, 0.95, len(some)) * self.ideal_s).tolist(), strict=True))
            for some in (
                chance.choice(world.workers, round(share * world.workers), replace=False).tolist()
                for share in (world.late, world.bad)
            )
        )
        self.workers = [
            Worker(self, i, speeds[i], late.get(i, 0.0), bad.get(i, math.inf), vanish.get(i, math.inf))
            for i in range(world.workers)
        ]

    def run(self) -> Outcome:
        random.seed(self.world.seed)
        for worker in self.workers:
            self.turns.spawn(worker.work)
        self.turns.run()
        return Outcome(
            makespan_s=self.end,
            ideal_s=self.ideal_s,
            tail_s=self.end - min(self.dry_at, self.end),
            work_s=sum(s for _, _, s in self.spent),
            wasted_s=sum(s for shard, attempt, s in self.spent if self.winners.get(shard) != attempt),
            claims=len(self.claim_s),
            claim_s=self.claim_s,
            shadows=self.shadows,
            requests=self.objects.requests,
            bytes=self.objects.bytes,
            ledger_bytes=max(size_of(w.ledger) for w in self.workers),
            committed=len(self.winners),
        )


class Worker:
    """A worker without items: its shards only take time; everything else is as in the real worker."""

    def __init__(
        self, simulation: Simulation, number: int, speed: float, start_at: float, bad_at: float, vanish_at: float
    ) -> None:
        self.simulation, self.turns, self.speed = simulation, simulation.turns, speed
        self.start_at, self.bad_at, self.vanish_at = start_at, bad_at, vanish_at
        self.name = f"w{number:05d}"
        world = simulation.world
        self.store = SlowStore(simulation.objects, self.turns, random.Random(f"{world.seed}/{number}"))
        self.ledger = Ledger(self.store, self.turns.clock)
        # Each real worker reads the plan once at its start; parsing it a thousand times would only waste time.
        self.ledger.folder.generation = simulation.plan.generation
        self.heart = self._beside("heartbeat")
        slot = 0.0 if world.one_slot else number / world.workers
        self.choice = Choice(self.ledger, simulation.plan, self.name, kind="cuda", slot=slot, lease_s=LEASE_S)
        self.open: list[Open] = []
        self.state = "working"
        self.history, self.recorded_at = History(), 0.0

    def _beside(self, name: str) -> Ledger:
        """A ledger for requests beside the work, from one thread."""
        ledger = Ledger(InstantStore(self.simulation.objects, name), self.turns.clock)
        ledger.folder.generation = self.simulation.plan.generation
        ledger.folder.ask_each = lambda ask, asked: list(map(ask, asked))  # type: ignore[method-assign]
        return ledger

    def work(self) -> None:
        self.turns.pause(self.start_at)
        self._beat()
        renew_at = self.turns.now + LEASE_S / 4
        look_at, pause = self.turns.now, 0.05
        while self.turns.now < self.vanish_at:
            if self.open and self.open[0].end <= self.turns.now:
                self._commit(self.open[0])
                look_at, pause = self.turns.now, 0.05
            elif renew_at <= self.turns.now:
                renew_at = self.turns.now + LEASE_S / 4
                self._renew()
            elif look_at <= self.turns.now and len(self.open) < OPEN_SHARDS:
                if spare_s := self.choice.spare_s(self._held()):
                    look_at = self.turns.now + max(0.01, spare_s)
                elif self._claim():
                    look_at, pause = self.turns.now, 0.05
                elif not self.open and self.choice.is_over():
                    break
                else:
                    look_at = self.turns.now + pause
                    pause = min(self.choice.longest_pause_s(), pause * 1.5)
            else:
                soon = [renew_at, self.vanish_at, *(o.end for o in self.open[:1])]
                self.turns.pause(min([*soon, look_at] if len(self.open) < OPEN_SHARDS else soon))
        for shard in self.open:
            self._spent(shard)
        self.state = "done" if self.turns.now < self.vanish_at else "gone"
        if self.state == "done":
            self._beside("history").history.put(self.name, self.history)
            self._view(view_every_s(self.choice.crowd()))

    def _claim(self) -> bool:
        began = self.turns.now
        claim = self.choice.claim(self._held())
        now = self.turns.now
        simulation = self.simulation
        if (claim is None and not self.choice.leaves) or (claim is not None and claim.shadow):
            simulation.dry_at = min(simulation.dry_at, began)
        if claim is None:
            return False
        simulation.claim_s.append(now - began)
        simulation.shadows += claim.shadow
        self.ledger.suspects.get(claim.shard)
        start = max(self.turns.now, self.open[-1].end if self.open else 0.0)
        self.open.append(Open(claim, start, start + float(simulation.work_s[claim.shard]) / self.speed))
        return True

    def _held(self) -> dict[int, int]:
        now = self.turns.now
        if self.open and now - self.open[0].start > _SOON_S:
            self.choice.pace = WEIGHT_BYTES / (self.open[0].end - self.open[0].start)
        return {o.claim.shard: o.bytes_run(now) for o in self.open}

    def _renew(self) -> None:
        held = self._held()
        for shard in list(self.open):
            if not self.ledger.leases.renew(shard.claim, self.name, LEASE_S, self.choice.due(shard.claim.shard, held)):
                self._drop(shard)
                self.ledger.leases.release(shard.claim, self.name)

    def _drop(self, shard: Open) -> None:
        """End the work on a shard; the shards waiting behind it start earlier."""
        self._spent(shard)
        self.open.remove(shard)
        free_at = self.turns.now
        for behind in self.open:
            if behind.start > free_at:
                behind.start, behind.end = free_at, free_at + behind.end - behind.start
            free_at = behind.end

    def _spent(self, shard: Open) -> None:
        seconds = min(self.turns.now, shard.end) - shard.start
        if seconds > 0:
            self.simulation.spent.append((shard.claim.shard, shard.claim.attempt, seconds))

    def _commit(self, shard: Open) -> None:
        claim, simulation = shard.claim, self.simulation
        self.store.put(f"parts/{claim.shard:06d}.{claim.attempt}.parquet", b"")
        if self.ledger.commits.add(_record(claim, self.name, self.turns.now)):
            simulation.winners[claim.shard] = claim.attempt
            if len(simulation.winners) % 10_000 == 0:
                print(f"{len(simulation.winners):,} shards at {self.turns.now:,.0f} s", file=sys.stderr, flush=True)
            simulation.end = max(simulation.end, self.turns.now)
            if self.ledger.segments.is_turn(len(simulation.plan.shards)):
                self._beside("roll-up").segments.catch_up(len(simulation.plan.shards))
        if self.turns.now >= self.bad_at:
            self.bad_at = math.inf
            self._count_errors()
        self.choice.committed(self.turns.now - shard.start)
        self.choice.pace = WEIGHT_BYTES / (shard.end - shard.start)
        self._drop(shard)
        self.ledger.suspects.delete(claim.shard)
        self.ledger.leases.retire(claim.shard)

    def _count_errors(self) -> None:
        """The first bad row: the worker reads how many rows failed so far."""
        segments = self._beside("error limit").segments
        segments.read(len(self.simulation.plan.shards))
        segments.seal()

    def _beat(self) -> None:
        """The heartbeat: scheduled on the simulated clock, but its requests take no time."""
        if self.state == "gone" or self.turns.now > self.vanish_at:
            return
        self._held()
        state = {"state": self.state, "host": "elsewhere", "pid": 1, "kind": "cuda", "bytes_per_s": self.choice.pace}
        self.heart.workers.beat(self.name, state)
        self.heart.state.is_wanted()
        beat_s = self.choice.beat_s()
        pause_s = max(beat_s, LEAST_BEAT_S)
        self.simulation.objects.requests["heartbeat"] += round(2 * (pause_s / beat_s - 1))
        self._record(pause_s)
        self._view(pause_s)
        if self.state == "working":
            self.turns.at(self.turns.now + pause_s, self._beat)

    def _record(self, pause_s: float) -> None:
        """The history, as long as that of a real worker."""
        done = int(self.choice.pace * pause_s)
        seen = {"memory_bytes": 2.5e9, "device_bytes": 12.5e9, "use": 0.975}
        self.history.add(HistoryPoint(self.turns.now, pause_s, done // 1000, done, done // 4, **seen))
        if self.turns.now - self.recorded_at >= HISTORY_EVERY_S:
            self.recorded_at = self.turns.now
            self._beside("history").history.put(self.name, self.history)

    def _view(self, waited_s: float) -> None:
        plan = self.simulation.plan
        if self.ledger.overview.is_turn(len(plan.shards), self.choice.crowd(), waited_s):
            self._beside("view").overview.write(plan, self.name, self.choice.crowd())


def _make_plan(shards: int) -> Plan:
    stat = SourceStat("jsonl", (SourceFile("/x.jsonl", shards * WEIGHT_BYTES, "t", "e"),), {"id": "string"})
    cut = [Shard(i, 0, i * WEIGHT_BYTES, (i + 1) * WEIGHT_BYTES, WEIGHT_BYTES) for i in range(shards)]
    plan = Plan.of(Work(source=("/x.jsonl",), text="text"), stat, {"weights": "1"}, cut)
    return Plan(**{f.name: getattr(plan, f.name) for f in fields(plan)} | {"generation": "simulated"})


def _record(claim: Claim, worker: str, now: float) -> Commit:
    counts = dict.fromkeys(("part_bytes", "rows", "lines", "errors", "tokens", "truncated"), 0)
    texts = dict.fromkeys(("plan", "generation", "part", "digest", "errors_file", "device"), "")
    return Commit(claim.shard, attempt=claim.attempt, worker=worker, finished_at=now, seconds=0.0, **counts, **texts)


def size_of(thing: object, seen: set[int] | None = None) -> int:
    """The bytes that a ledger holds, without what it shares with others."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, SlowStore | Turns | type) or callable(thing):
        return 0
    seen.add(id(thing))
    inside: list[object] = list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, dict):
        inside += [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set) or type(thing).__name__ == "deque":
        inside += list(thing)  # type: ignore[call-overload]
    return sys.getsizeof(thing) + sum(size_of(part, seen) for part in inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in fields(World):
        kind = type(name.default)
        if kind is bool:
            parser.add_argument(f"--{name.name.replace('_', '-')}", action="store_true")
        else:
            parser.add_argument(f"--{name.name.replace('_', '-')}", type=kind, default=name.default)
    world = World(**vars(parser.parse_args()))
    describe_machine()
    began = time.monotonic()
    simulation = Simulation(world)
    outcome = simulation.run()
    claim_s = np.array(outcome.claim_s)
    rows = [
        ["committed shards", f"{outcome.committed:,}"],
        ["makespan", f"{outcome.makespan_s:,.0f} s"],
        ["all work at full speed", f"{outcome.ideal_s:,.0f} s ({outcome.makespan_s / outcome.ideal_s - 1:+.1%})"],
        ["tail", f"{outcome.tail_s:,.0f} s ({outcome.tail_share:.2%} of the makespan)"],
        ["duplicate work", f"{outcome.wasted_s:,.0f} s ({outcome.wasted_share:.2%} of all work)"],
        ["shadows", f"{outcome.shadows:,}"],
        ["claims", f"{outcome.claims:,} ({outcome.claims / outcome.makespan_s:,.1f} per second)"],
        ["time per claim, median", f"{np.quantile(claim_s, 0.5) * 1000:,.0f} ms"],
        ["time per claim, 99th percentile", f"{np.quantile(claim_s, 0.99) * 1000:,.0f} ms"],
        ["memory of a ledger", f"{outcome.ledger_bytes / 1024:,.0f} KiB"],
    ]
    rows += [[f"{kind} per shard", f"{count / world.shards:.2f}"] for kind, count in sorted(outcome.requests.items())]
    minutes = outcome.makespan_s / 60
    rows += [[f"{kind}, MB per minute", f"{size / minutes / 1e6:,.2f}"] for kind, size in sorted(outcome.bytes.items())]
    print_table(["", ""], rows)
    print(f"\n{world}\nsimulated in {time.monotonic() - began:,.0f} s")


if __name__ == "__main__":
    main()
