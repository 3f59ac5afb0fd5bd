"""Turns what was read of a run into what the monitor tells of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import quote

from shardmill.ledger import HistoryPoint
from shardmill.plan import name_place
from shardmill.plugins import find_verb
from shardmill.run.status.state import Status, said_by
from shardmill.run.status.times import compare_forecast
from shardmill.watch.monitor.model import (
    EditionSeen,
    FailedRows,
    HistorySeen,
    PlanSeen,
    RunDetail,
    RunOutlook,
    RunStep,
    RunSummary,
    WorkerSeen,
)
from shardmill.watch.monitor.reading import RunSeen

# Of a thousand workers, the worst are listed.
_MOST_WORKERS = 100
_FEW = 20
_LONGEST_NAME = 253
# A longer time without a record is a gap: the run was stopped.
_GAP_S = 60.0


def summarize_run(seen: RunSeen, now: float) -> RunSummary:
    return RunSummary(**_summary(seen, now))


def _summary(seen: RunSeen, now: float) -> dict[str, Any]:
    status = seen.status
    signs = [worker["at"] for worker in status.workers] if status else []
    live = sum(worker["live"] for worker in status.workers) if status else 0
    return {
        "name": seen.name,
        "key": seen.key,
        "state": status.state if status else "unreadable",
        "share": status.share if status else 0.0,
        "rows": status.rows if status else 0,
        "expected_rows": status.expected_rows if status else None,
        "errors": status.errors if status else 0,
        "rows_per_s": status.rows_per_s if status else 0.0,
        "tokens_per_s": status.tokens_per_s if status else 0.0,
        "eta_s": status.eta_s if status and status.state == "running" else None,
        "eta_low_s": status.eta_low_s if status and status.state == "running" else None,
        "eta_high_s": status.eta_high_s if status and status.state == "running" else None,
        "usd": status.usd if status else None,
        "usd_at_end": status.usd_at_end if status else None,
        "shards": status.shards if status else 0,
        "shard_states": (status.shard_states or {}) if status else {},
        "workers_live": live,
        "workers_lost": sum(is_lost(worker) for worker in status.workers) if status else 0,
        "task": seen.plan.work.task if seen.plan else "",
        "began_at": status.times.began_at if status else None,
        "seen_s": max(0.0, now - max(signs)) if signs else None,
        "age_s": seen.age_s(now),
        "trouble": seen.trouble,
        "hint": seen.hint,
    }


def is_lost(worker: dict[str, Any]) -> bool:
    """Whether a worker fell silent without saying that it ended."""
    return not worker["live"] and worker["state"] not in ("done", "stopped", "failed")


def describe_run(seen: RunSeen, now: float, *, searchable: bool = False, worker_link: str = "") -> RunDetail:
    """Everything that is shown of a run which was read at least once."""
    status, plan, execution = seen.status, seen.plan, seen.execution
    assert status is not None
    assert plan is not None
    assert execution is not None
    shown = sorted((w for w in status.workers if w["live"] or w["state"] not in ("done", "stopped")), key=_goodness)
    ended = [w for w in status.workers if not w["live"] and w["state"] in ("done", "stopped")]
    typical = _median(worker["rows_per_s"] for worker in status.workers if worker["live"] and worker["rows_per_s"])
    listed = [*shown, *sorted(ended, key=lambda worker: -float(worker["at"]))][:_MOST_WORKERS]
    return RunDetail(
        **_summary(seen, now),
        url=seen.url,
        plan_id=plan.id,
        at=status.at,
        mean_rows_per_s=status.mean_rows_per_s,
        mean_tokens_per_s=status.mean_tokens_per_s,
        tokens=status.tokens,
        tokens_out=status.tokens_out,
        truncated=status.truncated,
        placement=status.placement,
        by=status.by,
        cause=status.cause,
        advice=status.hint,
        bound=status.bound,
        view_age_s=status.view_age_s,
        steps=[RunStep(step=step.step, state=step.state) for step in status.steps],
        workers=[_worker(worker, typical, seen.logs, worker_link) for worker in listed],
        workers_listed_of=len(status.workers),
        reasons=None if status.reasons is None else [_failed(record) for record in status.reasons],
        outlook=_outlook(seen, status),
        edition=_edition(status),
        plan=_plan(seen),
        history=_history(seen.history),
        states_version=seen.states_version,
        reports=list(seen.reports),
        searchable=searchable,
    )


def find_searched(seen: RunSeen, others: Iterable[RunSeen]) -> tuple[RunSeen, ...]:
    """The runs whose vectors are searched for a run: itself or, for a map, those of the others that were mapped.

    They are in the order of the map. If one of them is not among the others, there is nothing to search.
    """
    status, plan = seen.status, seen.plan
    if status is None or plan is None or status.state != "complete":
        return ()
    verb = find_verb(plan.work.task)
    if verb.shows_vectors_of:
        known = {other.plan.id: other for other in others if other.plan is not None and find_searched(other, ())}
        mapped = dict.fromkeys(file.run for file in plan.stat.files)
        return tuple(known[run] for run in mapped) if mapped.keys() <= known.keys() else ()
    # A name with a colon is a task of others, of which some make vectors.
    makes_vectors = verb.makes_vectors or ":" in plan.work.task
    made_here = plan.work.to is None and not plan.code and makes_vectors
    return (seen,) if made_here else ()


def _worker(worker: dict[str, Any], typical: float, logs: Collection[str], link: str) -> WorkerSeen:
    live = bool(worker["live"])
    place = worker.get("place") or ""
    held = sorted(int(shard) for shard in worker["open"]) if live else []
    return WorkerSeen(
        id=worker["id"],
        state="lost" if is_lost(worker) else worker["state"],
        live=live,
        straggler=live and bool(held) and 0 < worker["rows_per_s"] < typical / 2,
        host=worker["host"],
        device=worker["device"],
        rows=int(worker["rows"]),
        rows_per_s=worker["rows_per_s"] if live else 0.0,
        tokens_per_s=worker["tokens_per_s"] if live else 0.0,
        memory_bytes=worker["rss_bytes"],
        device_bytes=worker.get("device_bytes"),
        use=worker.get("use"),
        shards=held[:_FEW],
        said=" · ".join(said_by(worker).values()),
        beat_s=max(0.0, float(worker["beat_age_s"])),
        error=worker.get("error") or "",
        place=place,
        link=_link_to(place, link),
        has_log=str(worker.get("log")) in logs,
    )


def _link_to(place: Any, pattern: str) -> str:
    """The page of a pod or a job. Its name is the last word: `pod embed-0-x7k2p`, `Slurm job 12_3`."""
    words = str(place).split()
    return pattern.replace("{name}", quote(words[-1][:_LONGEST_NAME], safe="", errors="replace")) if words else ""


def _goodness(worker: dict[str, Any]) -> tuple[bool, bool, float, float, str]:
    """The lost first, then those that do nothing, then the slowest."""
    return worker["live"], bool(worker["open"]), worker["rows_per_s"], -worker["beat_age_s"], str(worker["id"])


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _failed(record: dict[str, Any]) -> FailedRows:
    key = record.get("id")
    return FailedRows(
        reason=record["reason"],
        count=record["count"],
        file=record.get("file") or "",
        shard=_whole(record.get("shard")),
        line=_whole(record.get("line_in_shard")),
        id=", ".join(str(value) for value in list(key.values())[:_FEW]) if isinstance(key, dict) else "",
        example=record.get("example") or "",
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _outlook(seen: RunSeen, status: Status) -> RunOutlook:
    forecast, staff = seen.forecast, status.staff.now if status.staff is not None else None
    return RunOutlook(
        usd=status.usd,
        usd_at_end=status.usd_at_end,
        budget_usd=status.budget_usd,
        deadline_at=status.deadline_at,
        wanted=staff.wanted if staff is not None else None,
        wanted_why=staff.reason if staff is not None else "",
        began_at=status.times.began_at,
        elapsed_s=None if status.times.began_at is None else status.times.elapsed_s,
        parts_s=status.times.by_part(),
        device_s=status.device_s,
        forecast_s=forecast.likely_s if forecast else None,
        forecast_low_s=forecast.low_s if forecast else None,
        forecast_high_s=forecast.high_s if forecast else None,
        forecast_basis=forecast.basis if forecast else "",
        forecast_off=compare_forecast(forecast, status.times, status.state),
    )


def _edition(status: Status) -> EditionSeen | None:
    seen = status.edition
    return None if seen is None else EditionSeen(**{name: getattr(seen, name) for name in EditionSeen.model_fields})


def _plan(seen: RunSeen) -> PlanSeen:
    plan, execution = seen.plan, seen.execution
    assert plan is not None
    assert execution is not None
    return PlanSeen(
        id=plan.id,
        task=plan.work.task,
        source=[*map(name_place, plan.work.source[:_FEW])],
        format=plan.stat.format,
        files=len(plan.stat.files),
        bytes=plan.stat.size_bytes,
        shards=len(plan.shards),
        largest_bytes=max((shard.weight_bytes for shard in plan.shards), default=0),
        model=plan.work.params.get("model", ""),
        text=plan.work.text,
        kept=[f"{name} {kind}" for name, kind in list(plan.kept.items())[:_FEW]],
        engine=execution.engine,
        fingerprint={name: plan.fingerprint[name] for name in list(plan.fingerprint)[:_FEW]},
    )


def _history(points: Iterable[HistoryPoint]) -> HistorySeen:
    columns: dict[str, list[Any]] = {name: [] for name in HistorySeen.model_fields}
    ended: float | None = None
    for point in points:
        if point.seconds <= 0:
            continue
        began = point.at - point.seconds
        if ended is not None and began - ended > max(_GAP_S, 2 * point.seconds):
            _append(columns, {"at": round((began + ended) / 2, 1)})
        ended = point.at
        _append(
            columns,
            {
                "at": round(point.at, 1),
                "rows_per_s": round(point.rows / point.seconds, 2),
                "tokens_per_s": round(point.tokens / point.seconds, 1),
                "tokens_out_per_s": round(point.tokens_out / point.seconds, 1),
                "memory_bytes": point.memory_bytes,
                "device_bytes": point.device_bytes,
                "use": None if point.use is None else round(point.use, 3),
            },
        )
    return HistorySeen(**columns)


def _append(columns: dict[str, list[Any]], values: dict[str, Any]) -> None:
    for name, column in columns.items():
        column.append(values.get(name))
