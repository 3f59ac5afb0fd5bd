"""The rules: pure functions of a status, of what was remembered of the run, and of the time in the status.

conditions, memory = judge(rules, seen, memory)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from shardmill.core.console import count, duration
from shardmill.run.status.state import Status
from shardmill.watch.alerts.file import AlertRules

# What goes up and down must hold for this long before it counts, in both directions.
STEADY_S = 60.0
# The end of a run that was over for longer than this when it was first seen is no news.
NEWS_S = 3600.0
# Before this many rows a share of them says little.
_FEW_ROWS = 1000
_NAMED = 3


@dataclass(frozen=True, slots=True)
class SeenRun:
    """What is judged: the status of a run, and its report if it was verified."""

    status: Status
    report: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AlertCondition:
    """Something that holds now. `key` tells two conditions of one rule apart."""

    key: str
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class LostWorkers:
    """Workers that were lost together, and how many lived before."""

    workers: list[str]
    live: int


@dataclass(frozen=True, slots=True)
class RunMemory:
    """What the rules remember of one generation of a run.

    `held` are the rules that need time to change and hold; `turned` says since when one differs from that. `lost` are
    the losses that are still open, by their first worker, `known` the workers whose loss is no news, and `old` the
    rules whose condition was no news when the run was first seen.
    """

    generation: str
    rows: int
    moved_at: float
    live: int = 0
    held: list[str] = field(default_factory=list)
    turned: dict[str, float] = field(default_factory=dict)
    lost: dict[str, LostWorkers] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    old: list[str] = field(default_factory=list)


def judge(rules: AlertRules, seen: SeenRun, memory: RunMemory | None) -> tuple[list[AlertCondition], RunMemory]:
    """The conditions that hold now, and what to remember until the next status."""
    status = seen.status
    if memory is None or memory.generation != status.generation:
        memory = _begin(status)
    if status.rows != memory.rows or not _is_open(status):
        memory = replace(memory, rows=status.rows, moved_at=status.at)
    lost, known = _look_for_lost(status, memory)
    memory, raw = _settle(status, memory, dict(_waver(rules, status)))
    found = [*_hold(rules, seen, memory), *raw]
    old = [rule for rule in memory.old if any(each.rule == rule for each in found)]
    if rules.worker_lost:
        found += [AlertCondition(f"worker_lost:{key}", "worker_lost", _name(each)) for key, each in lost.items()]
    live = sum(1 for worker in status.workers if worker["live"])
    memory = replace(memory, live=live, lost=lost, known=known, old=old)
    return [each for each in found if each.rule not in old], memory


def _begin(status: Status) -> RunMemory:
    """The memory of a run that was not seen before."""
    is_old = status.at - max((worker["at"] for worker in status.workers), default=status.at) > NEWS_S
    silent = [str(w["id"]) for w in status.workers if _is_lost(w) and status.at - w["at"] > NEWS_S]
    live = sum(1 for worker in status.workers if worker["live"])
    newly = sum(1 for worker in status.workers if _is_lost(worker)) - len(silent)
    # A run that is resumed after a long time has just begun to move.
    moved_at = max([status.decided_at, *(worker["progress_at"] or worker["at"] for worker in status.workers)])
    return RunMemory(
        generation=status.generation,
        rows=status.rows,
        moved_at=min(moved_at or status.at, status.at),
        live=live + newly,
        known=silent,
        old=["finished", "verified"] if is_old else [],
    )


def _hold(rules: AlertRules, seen: SeenRun, memory: RunMemory) -> Iterator[AlertCondition]:
    """What holds at once, without a doubt."""
    status, report = seen.status, seen.report
    still_s = status.at - memory.moved_at
    if rules.stalled and _is_open(status) and still_s >= rules.stalled:
        who = count(sum(1 for w in status.workers if w["live"]), "live worker")
        yield AlertCondition("stalled", "stalled", f"no row was finished for {duration(still_s)}; {who}")
    if rules.error_rate and rules.error_rate.exceeded(status.errors, max(status.rows, _FEW_ROWS)):
        share = 100 * status.errors / max(1, status.rows)
        text = f"{status.errors:,} of {status.rows:,} rows failed ({share:.1f}%)"
        yield AlertCondition("error_rate", "error_rate", text)
    if rules.finished and status.state == "complete":
        text = f"complete: {status.rows:,} rows, {status.errors:,} errors"
        yield AlertCondition("finished:complete", "finished", text)
    if rules.finished and status.state == "failed":
        yield AlertCondition("finished:failed", "finished", f"failed: {status.cause or 'a step after the last shard'}")
    if rules.verified and report is not None and status.state == "complete":
        sound = report.get("verified") is True
        text = f"verified: {status.rows:,} rows" if sound else "NOT verified: see `shardmill verify`"
        yield AlertCondition(f"verified:{sound}", "verified", text)
    yield from _hold_of_editions(rules, status)


def _hold_of_editions(rules: AlertRules, status: Status) -> Iterator[AlertCondition]:
    """What holds of a run that is refreshed."""
    seen = status.edition
    if seen is None:
        return
    if rules.edition_age and seen.fresh_at is not None and (age_s := status.at - seen.fresh_at) >= rules.edition_age:
        text = f"edition {seen.edition} was last compared with the source {duration(age_s)} ago"
        yield AlertCondition("edition_age", "edition_age", text)
    if rules.edition_lag and (behind_s := seen.behind_s(status.at)) >= rules.edition_lag:
        text = f"the source has been newer than edition {seen.edition} for {duration(behind_s)}"
        yield AlertCondition("edition_lag", "edition_lag", text)
    if rules.refresh_failures and seen.failures >= rules.refresh_failures:
        text = f"{seen.failures:,} refreshes failed in a row: {seen.error}"
        yield AlertCondition("refresh_failures", "refresh_failures", text)


def _waver(rules: AlertRules, status: Status) -> Iterator[tuple[str, str | None]]:
    """What goes up and down: the text if it holds now, "" if not, None if that cannot be said now."""
    if rules.rate_drop:
        yield "rate_drop", _rate_drop(status, rules.rate_drop)
    if rules.deadline:
        yield "deadline", _deadline(status)
    if rules.budget:
        yield "budget", _budget(status)


def _rate_drop(status: Status, drop: float) -> str | None:
    unit = "tokens" if status.mean_tokens_per_s else "rows"
    now, mean = (status.tokens_per_s, status.mean_tokens_per_s) if unit == "tokens" else _rows(status)
    if not _is_open(status):
        return ""
    if not mean:
        return None
    return f"{now:,.1f} {unit}/s, {mean:,.1f} on average" if now < (1 - drop) * mean else ""


def _rows(status: Status) -> tuple[float, float]:
    return status.rows_per_s, status.mean_rows_per_s


def _deadline(status: Status) -> str | None:
    if status.deadline_at is None or not _is_open(status):
        return ""
    if (late_s := status.at - status.deadline_at) > 0:
        return f"the deadline was {duration(late_s)} ago, and {100 * status.share:.1f} % is done"
    if (past_s := status.past_deadline_s) is None:
        return None
    return f"the expected end is {duration(past_s)} past the deadline" if past_s > 0 else ""


def _budget(status: Status) -> str | None:
    if status.budget_usd is None:
        return ""
    if status.usd is None:
        return None
    if status.usd > status.budget_usd:
        return f"${status.usd:,.4g} are spent, the budget is ${status.budget_usd:,.4g}"
    if status.usd_at_end is None or not _is_open(status):
        return None
    if status.usd_at_end > status.budget_usd:
        return f"${status.usd_at_end:,.4g} are expected at the end, the budget is ${status.budget_usd:,.4g}"
    return ""


def _settle(status: Status, memory: RunMemory, read: dict[str, str | None]) -> tuple[RunMemory, list[AlertCondition]]:
    """Let what goes up and down count once it has been the other way for a while."""
    held, turned, found = [], {}, []
    for rule, text in read.items():
        was = rule in memory.held
        now = was if text is None else bool(text)
        if now != was:
            since = memory.turned.get(rule, status.at)
            # The end of a run ends its conditions at once.
            if status.at - since < STEADY_S and (now or _is_open(status)):
                turned[rule], now = since, was
        if now:
            held.append(rule)
            found.append(AlertCondition(rule, rule, text or ""))
    return replace(memory, held=held, turned=turned), found


def _look_for_lost(status: Status, memory: RunMemory) -> tuple[dict[str, LostWorkers], list[str]]:
    """The losses that are open: those of before that were not made up for, and a new one with all that is new."""
    if not _is_open(status):
        return {}, [str(worker["id"]) for worker in status.workers if _is_lost(worker)]
    live = sum(1 for worker in status.workers if worker["live"])
    gone = {str(worker["id"]) for worker in status.workers if _is_lost(worker)}
    lost = {key: each for key, each in memory.lost.items() if live < each.live and gone & set(each.workers)}
    if new := sorted(gone - set(memory.known)):
        lost[new[0]] = LostWorkers(new, max(memory.live, live + 1))
    return lost, sorted(gone)


def _name(lost: LostWorkers) -> str:
    more = f" and {len(lost.workers) - _NAMED:,} more" if len(lost.workers) > _NAMED else ""
    return f"{count(len(lost.workers), 'worker')} lost: {', '.join(lost.workers[:_NAMED])}{more}"


def _is_open(status: Status) -> bool:
    """Whether the run is wanted and shards are left."""
    return status.wanted and status.shards_done < status.shards


def _is_lost(worker: dict[str, Any]) -> bool:
    return not worker["live"] and worker["state"] not in ("done", "stopped")
