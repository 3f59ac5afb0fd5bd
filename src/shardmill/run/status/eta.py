"""When a run will end: a pure function of what was done, who works and what is left.

eta = estimate_end(now, left, paces, done)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev

# A worker's own pace is known after this time; until then it is taken for as fast as the others.
_KNOWN_S = 10.0
# The past is compared in this many stretches of equal length, to see how much the pace of a run varies.
_STRETCHES = 8
# Student's t for seven degrees of freedom: nine of ten ends are within the range.
_NINE_OF_TEN = 1.9
# A range is never narrower than this share of what is left.
_LEAST_SPREAD = 0.02
# A holder that needs this many times as long as another worker is overtaken by it.
_OVERTAKEN = 1.25


@dataclass(frozen=True, slots=True)
class WorkerPace:
    """What one worker did: `bytes` of the source from `began` to `until`. `held` are the bytes left of its shards."""

    began: float
    until: float
    bytes: float
    live: bool = True
    held: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Bytes per second; 0 while unknown."""
        seconds = self.until - self.began
        return self.bytes / seconds if seconds >= _KNOWN_S else 0.0


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until the last shard is committed: the likely ones, and a range that holds nine times of ten.

    It assumes that no worker is lost or joins.
    """

    likely_s: float
    low_s: float
    high_s: float


def estimate_end(
    now: float,
    waiting: Sequence[float],
    paces: Sequence[WorkerPace],
    done: Sequence[tuple[float, float]],
) -> Eta | None:
    """When the run ends. `waiting` are the bytes of shards that nobody holds; `done` are bytes done up to each time.

    None while no living worker has a pace. Shards of workers that are lost count as waiting. Where the clocks of hosts
    differ, the latest of them counts.
    """
    rates = _rates(paces)
    if not rates:
        return None
    done = list(zip(accumulate((at for at, _ in done), max), (total for _, total in done), strict=True))
    now = max([now, *(at for at, _ in done[-1:]), *(at for pace in paces for at in (pace.began, pace.until))])
    live = [pace for pace in paces if pace.live]
    drift, spread = _compare(now, paces, done)
    rates = [rate * drift for rate in rates]
    mean = fmean(rates)
    busy = [sum(pace.held) / rate for pace, rate in zip(live, rates, strict=True)]
    free = float(sum(waiting))
    usual = free / len(waiting) if waiting else _usual_shard(live)
    level = _level(free, busy, rates)
    # When nothing is left to claim, workers end one after another, over the time of one shard.
    count = len(rates)
    shard_s = usual / mean
    tail_s = shard_s / 2 * (count - 1) / (count + 1)
    if waiting:
        largest_s = max(waiting) / mean
        likely = max(level + tail_s, min(largest_s, level + largest_s))
        last_s = largest_s
    else:
        likely = _last(live, busy, rates)
        last_s = shard_s / 2
    behind = now - min(pace.began for pace in live)
    ahead = max(likely, 1e-9)
    relative = max(_LEAST_SPREAD, _NINE_OF_TEN * spread * math.sqrt(1 / _STRETCHES + _ahead(behind, ahead)))
    low = max(likely * (1 - min(0.9, relative)) - tail_s, 0.0)
    return Eta(likely, low, likely * (1 + relative) + max(tail_s, last_s / 2))


def _rates(paces: Sequence[WorkerPace]) -> list[float]:
    """The bytes per second of each living worker; one whose pace is unknown counts as the mean of the others."""
    known = [pace.rate for pace in paces if pace.live and pace.rate]
    if not known:
        known = [pace.rate for pace in paces if pace.rate]
    usual = fmean(known) if known else 0.0
    found = [pace.rate or usual for pace in paces if pace.live]
    return found if all(found) else []


def _compare(now: float, paces: Sequence[WorkerPace], done: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How the pace of late differs from that of the whole past, and how much it varies from stretch to stretch.

    Each stretch is compared with what the workers that lived then do on average, so that one that was lost or joined
    is no change of pace.
    """
    # What was done before a stop or a restart of all workers says little about those of now.
    began = min((pace.began for pace in paces if pace.live), default=now)
    length = (now - began) / _STRETCHES
    if length <= 0 or len(done) < 2:
        return 1.0, 0.5
    seen = []
    edges = [began + i * length for i in range(_STRETCHES + 1)]
    totals = [_total_at(edge, done) for edge in edges]
    for i in range(_STRETCHES):
        expected = sum(
            pace.rate * max(0.0, min(pace.until, edges[i + 1]) - max(pace.began, edges[i])) for pace in paces
        )
        if expected:
            seen.append(((totals[i + 1] - totals[i]) / expected, expected))
    if len(seen) < 3:
        return 1.0, 0.5
    ratios = [ratio for ratio, _ in seen]
    late = ratios[len(ratios) // 2 :]
    usual = fmean(ratios) or 1.0
    varies = stdev(ratios) / usual
    drift = fmean(late) / usual
    # A difference that chance explains is no drift.
    doubt = varies / math.sqrt(len(late))
    drift = 1.0 if abs(drift - 1) <= 2 * doubt else (1 + drift) / 2
    return drift, varies


def _total_at(when: float, done: Sequence[tuple[float, float]]) -> float:
    """Bytes done at a time, between two that are known."""
    after = bisect_left(done, (when, 0.0))
    if after == len(done):
        return done[-1][1]
    at, total = done[after]
    before_at, before = done[after - 1] if after else (at, total)
    return before + (total - before) * (when - before_at) / (at - before_at) if at > before_at else total


def _level(free: float, busy: Sequence[float], rates: Sequence[float]) -> float:
    """When all is done if what is free could be cut at will: workers join in as they finish what they hold."""
    done_at = sorted(zip(busy, rates, strict=True))
    rate, at, left = 0.0, 0.0, free
    for ready, one in done_at:
        if rate and left <= rate * (ready - at):
            break
        left -= rate * (ready - at)
        rate, at = rate + one, ready
    return at + left / rate if rate else 0.0


def _last(live: Sequence[WorkerPace], busy: Sequence[float], rates: Sequence[float]) -> float:
    """When the last held shard is done. A slow holder is overtaken by the first worker that is free."""
    first, fastest = min(busy), max(rates)
    ends = []
    for pace, until in zip(live, busy, strict=True):
        overtaken = first + _OVERTAKEN * max(pace.held, default=0.0) / fastest
        ends.append(min(until, max(overtaken, first)) if pace.held else 0.0)
    return max(ends, default=0.0)


def _usual_shard(live: Sequence[WorkerPace]) -> float:
    held = [left for pace in live for left in pace.held]
    return fmean(held) if held else 0.0


def _ahead(behind: float, ahead: float) -> float:
    """One over the number of stretches that are still to come; few of them may all be slow."""
    return min(1.0, behind / _STRETCHES / ahead) if ahead else 0.0
