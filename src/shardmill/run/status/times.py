"""How long a run took: one definition, for the status, the cost, the report, the page, the metrics and the command.

Design: docs/design/estimates.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.core.console import duration
from shardmill.ledger import RunForecast, Step

_Span = tuple[float, float]
# A part that is shorter is not worth a word.
_WORTH_S = 1.0


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Where the time of a run went, in seconds. Each moment counts once, and time in which nobody did anything never.

    `prepare_s` is what the command did before it placed workers, such as planning or fitting a map. `start_s` is from
    there until a worker works on items: machines, processes, models. `finish_s` are the steps after the last shard.
    `around_s` is the part of preparing and finishing in which no worker was there.
    """

    prepare_s: float = 0.0
    start_s: float = 0.0
    work_s: float = 0.0
    finish_s: float = 0.0
    around_s: float = 0.0
    began_at: float | None = None

    @property
    def elapsed_s(self) -> float:
        return self.prepare_s + self.start_s + self.work_s + self.finish_s

    def by_part(self) -> dict[str, float]:
        return {"prepare": self.prepare_s, "start": self.start_s, "work": self.work_s, "finish": self.finish_s}

    def describe(self) -> str:
        """The time in words, with its parts if it has more than one.

        >>> RunTimes(start_s=52.4, work_s=11.2).describe()
        '1 min 03 s (start-up 52 s, work 11 s)'
        """
        names = {"prepare": "preparing", "start": "start-up", "work": "work", "finish": "finishing"}
        parts = [f"{names[part]} {duration(s)}" for part, s in self.by_part().items() if s >= _WORTH_S]
        return duration(self.elapsed_s) + (f" ({', '.join(parts)})" if len(parts) > 1 else "")


def measure_times(
    workers: Sequence[Mapping[str, Any]], placed: Iterable[_Span], steps: Iterable[Step], now: float
) -> RunTimes:
    """The times of a run. `placed` has, for each time that workers were placed, when that was asked for and done."""
    started = sorted(float(w["started"] or w["began"]) for w in workers if w["started"] or w["began"])
    asked = list(placed)
    prepare, start, work = [], [], []
    for number, (at, done) in enumerate(asked):
        until = asked[number + 1][0] if number + 1 < len(asked) else now
        # A run that was complete placed nobody.
        if (first := next((s for s in started if done <= s <= until), None)) is not None:
            prepare.append((at, done))
            start.append((done, first))
    present = []
    for worker in workers:
        ended, began = float(worker["at"]), float(worker["began"]) if worker["rows"] or worker["open"] else 0.0
        work += [(began, ended)] if began else []
        came = float(worker["started"] or worker["began"] or ended)
        start.append((came, began or ended))
        present.append((came, ended))
    finish = [(step.began_at, step.ended_at or min(now, step.until)) for step in steps if step.began_at]
    finish_s, with_work = _union(finish), _union([*finish, *work])
    with_start, whole = _union([*finish, *work, *start]), [*finish, *work, *start, *prepare]
    return RunTimes(
        prepare_s=_union(whole) - with_start,
        start_s=with_start - with_work,
        work_s=with_work - finish_s,
        finish_s=finish_s,
        around_s=_union([*prepare, *finish, *present]) - _union(present),
        began_at=min((at for at, until in whole if at and until > at), default=None),
    )


def compare_forecast(forecast: RunForecast | None, times: RunTimes, state: str) -> float | None:
    """By how much the forecast of a complete run was too long, as a share; it covers the start-up and the work."""
    took_s = times.start_s + times.work_s
    return forecast.likely_s / took_s - 1 if forecast is not None and state == "complete" and took_s else None


def _union(spans: Iterable[_Span]) -> float:
    """Seconds that are in at least one span.

    >>> _union([(0, 10), (5, 12), (20, 21)])
    13.0
    """
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total
