"""How many workers a run should have for its deadline and its budget: arithmetic over what was measured, without I/O.

staff = decide_staff(pace, limits, before)

Design: docs/design/deadlines.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardmill.core.console import count, duration

# With one that ends the run, fewer than ten changes. The last increase is to all that may work.
MOST_INCREASES, MOST_DECREASES = 5, 3
# What a number is chosen to have to spare, as a share of the work that is left: of the cheapest workers plenty, since
# an hour of theirs costs the same early and late; of dearer ones what is needed; and what is too little to keep.
_PLENTY, _SPARE, _TOO_LITTLE = 0.35, 0.15, 0.04
# Kinds that cost up to so much more than the cheapest are as good.
_AS_CHEAP = 1.2
# This share of the whole time is not counted on.
_GUARD = 0.02
# A smaller number must save this share of the workers, this long after the last change, and not near the end.
_WORTH, _HOLD, _EARLY = 0.3, 0.05, 0.6


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Workers of one device and price. `rate` is the work per second of one, as measured; 0 if it was not.

    There may be `most` of them, as far as is known, and `live` work. `usd_per_s` is None if no price is known.
    """

    name: str
    rate: float
    usd_per_s: float | None = None
    live: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RunPace:
    """What was measured of a run up to `now`, in any one unit of work, such as bytes of the source.

    A new worker needs `start_s` before it works. The last shards take `shard_s`, in which some workers have nothing to
    do. `doubt` is how much the rate may be lower than measured, as a share. What workers hold is finished in `hold_s`.
    `spent_usd` is None if a price is unknown.
    """

    now: float
    began: float
    left: float
    kinds: tuple[WorkerKind, ...]
    start_s: float = 0.0
    shard_s: float = 0.0
    doubt: float = 0.05
    hold_s: float = 0.0
    spent_usd: float | None = None


@dataclass(frozen=True, slots=True)
class StaffLimits:
    """What the user said: the least and the most workers, the deadline and the budget."""

    least: int
    most: int
    deadline_at: float | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Staff:
    """The wanted number of workers, with the reason. It has not changed since `at`.

    `by_kind` says how many of each kind there may be, the cheapest first: an engine that can choose fills them in this
    order up to `wanted`. The deadline is `possible` unless all workers that may work would most likely miss it. If the
    decision `ends` the run, its workers finish the shards that they hold, and claim no more.
    """

    wanted: int
    reason: str
    at: float
    by_kind: Mapping[str, int] = field(default_factory=dict)
    possible: bool = True
    ends: bool = False
    increases: int = 0
    decreases: int = 0


def decide_staff(pace: RunPace, limits: StaffLimits, before: Staff | None) -> Staff:
    """The number of workers from now on. The one of before is returned as it is while it will do."""
    if before is not None and before.ends:
        return before
    if (reason := _is_spent(pace, limits)) is not None:
        last = before or Staff(0, "", pace.now)
        return replace(last, wanted=0, reason=reason, at=pace.now, by_kind={}, ends=True)
    kinds = _by_cost(pace.kinds)
    if not any(kind.rate for kind in kinds):
        return before or Staff(limits.most, "no worker has a pace yet: as many as may work", pace.now)
    if limits.deadline_at is None:
        cheapest = {kind.name: limits.most for kind in kinds}
        return before or Staff(limits.most, "there is no deadline: as many as may work", pace.now, cheapest)
    return _settle(pace, kinds, limits, limits.deadline_at, before)


def _is_spent(pace: RunPace, limits: StaffLimits) -> str | None:
    """Why the run is to end now: what the shards that are held still cost would pass the budget."""
    if limits.budget_usd is None or pace.spent_usd is None or pace.left <= 0:
        return None
    holding = sum(kind.live * (kind.usd_per_s or 0.0) for kind in pace.kinds) * pace.hold_s
    if pace.spent_usd + holding < limits.budget_usd:
        return None
    return f"{_usd(pace.spent_usd)} of {_usd(limits.budget_usd)} are spent: what is held is finished, and no more begun"


def _by_cost(kinds: Sequence[WorkerKind]) -> list[WorkerKind]:
    """The cheapest first, for the work that they do, not for the hour; those whose price or rate is unknown last."""

    # One that was not measured yet is taken for as fast as the others.
    rates = [kind.rate for kind in kinds if kind.rate]
    usual = sum(rates) / len(rates) if rates else 0.0
    return sorted(
        (replace(kind, rate=kind.rate or usual) for kind in kinds), key=lambda kind: (_cost(kind), -kind.rate)
    )


def _cost(kind: WorkerKind) -> float:
    """Dollars for a unit of work."""
    return kind.usd_per_s / kind.rate if kind.usd_per_s is not None and kind.rate else math.inf


def _choose(pace: RunPace, kinds: Sequence[WorkerKind], limits: StaffLimits, time_s: float) -> dict[str, int]:
    """How many of each kind, the cheapest first, end in time with something to spare: all, if none do."""
    chosen: dict[str, int] = {}
    total = 0
    for kind in kinds:
        spare = _PLENTY if _cost(kind) <= _AS_CHEAP * _cost(kinds[0]) else _SPARE + pace.doubt
        room = min(limits.most - total, limits.most if kind.most is None else kind.most)
        for _ in range(max(0, room)):
            if total >= limits.least and _done(chosen, pace, kinds, time_s) >= pace.left * (1 + spare):
                break
            chosen[kind.name] = chosen.get(kind.name, 0) + 1
            total += 1
    return chosen


def _done(chosen: Mapping[str, int], pace: RunPace, kinds: Sequence[WorkerKind], time_s: float) -> float:
    """The work that these workers do in a time; those who do not live yet begin later."""
    done = 0.0
    for kind in kinds:
        wanted = chosen.get(kind.name, 0)
        there = min(wanted, kind.live)
        done += kind.rate * (there * time_s + (wanted - there) * max(0.0, time_s - pace.start_s))
    return done


def _settle(
    pace: RunPace, kinds: Sequence[WorkerKind], limits: StaffLimits, deadline_at: float, before: Staff | None
) -> Staff:
    """Keep the number of before unless it will not do, or much fewer would do and did so for a while."""
    whole_s = deadline_at - pace.began
    time_s = max(0.0, deadline_at - pace.now - pace.shard_s / 2 - _GUARD * whole_s)
    chosen, everybody = _choose(pace, kinds, limits, time_s), _fill(kinds, limits.most)
    # Having said that the deadline is in doubt, more is needed to say that it is not.
    surely = 1 + pace.doubt + (_SPARE if before is None or not before.possible or not before.by_kind else _TOO_LITTLE)
    possible = _done(everybody, pace, kinds, time_s) >= pace.left * surely
    new = Staff(sum(chosen.values()), "", pace.now, chosen, possible)
    if before is None:
        return replace(new, reason=_explain(new, pace, kinds, deadline_at, None))
    kept = before.by_kind or _fill(kinds, before.wanted)
    new = replace(new, increases=before.increases, decreases=before.decreases)
    is_more = any(number > kept.get(name, 0) for name, number in chosen.items())
    in_danger = _done(kept, pace, kinds, time_s) < pace.left * (1 + _TOO_LITTLE + pace.doubt / 2)
    if is_more and in_danger and before.increases < MOST_INCREASES:
        new = replace(new, increases=before.increases + 1)
        if new.increases == MOST_INCREASES:
            new = replace(new, wanted=sum(everybody.values()), by_kind=everybody)
        return replace(new, reason=_explain(new, pace, kinds, deadline_at, before))
    # Dearer workers are no way to have fewer.
    is_worth = not is_more and new.wanted <= before.wanted * (1 - _WORTH)
    is_time = pace.now - before.at >= _HOLD * whole_s and pace.now - pace.began <= _EARLY * whole_s
    if is_worth and is_time and before.decreases < MOST_DECREASES:
        new = replace(new, decreases=before.decreases + 1)
        return replace(new, reason=_explain(new, pace, kinds, deadline_at, before))
    if possible != before.possible or not before.by_kind:
        # The number stays; whether it will do is news.
        same = replace(before, possible=possible, by_kind=kept)
        return replace(same, reason=_explain(same, pace, kinds, deadline_at, before))
    return before


def _fill(kinds: Sequence[WorkerKind], wanted: int) -> dict[str, int]:
    filled: dict[str, int] = {}
    for kind in kinds:
        room = wanted - sum(filled.values())
        if (some := min(room, room if kind.most is None else kind.most)) > 0:
            filled[kind.name] = some
    return filled


def _explain(staff: Staff, pace: RunPace, kinds: Sequence[WorkerKind], deadline_at: float, before: Staff | None) -> str:
    """The reason in a sentence: when the workers would end, compared with the deadline."""
    ends = f"{count(staff.wanted, 'worker')} end {_compare(staff.by_kind, pace, kinds, deadline_at)}"
    if not staff.possible:
        return f"the deadline cannot be relied on: {ends}{_more(staff, pace, deadline_at, kinds)}"
    if before is None or before.wanted == staff.wanted:
        return ends
    if before.wanted < staff.wanted:
        was = _compare(before.by_kind or _fill(kinds, before.wanted), pace, kinds, deadline_at)
        return f"{before.wanted:,} would end {was}; {ends}"
    return f"fewer will do: {ends}"


def _more(staff: Staff, pace: RunPace, deadline_at: float, kinds: Sequence[WorkerKind]) -> str:
    """How many would do, if that can be said."""
    time_s = deadline_at - pace.now - pace.shard_s - pace.start_s
    rate = kinds[0].rate
    if time_s <= 0 or not rate:
        return ""
    return f"; about {math.ceil(pace.left * (1 + _SPARE) / rate / time_s):,} would do"


def _compare(chosen: Mapping[str, int], pace: RunPace, kinds: Sequence[WorkerKind], deadline_at: float) -> str:
    """When these workers end, as far as is known, compared with the deadline."""
    rate = sum(kind.rate * chosen.get(kind.name, 0) for kind in kinds)
    if not rate:
        return "at an unknown time"
    late_s = pace.now + pace.left / rate + pace.shard_s / 2 - deadline_at
    return f"{duration(abs(late_s))} {'past' if late_s > 0 else 'before'} the deadline"


def _usd(usd: float) -> str:
    return f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"
