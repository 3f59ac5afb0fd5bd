"""The sections of a report, before any format: facts, tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from shardmill.core.console import count, duration
from shardmill.core.dialect import shell_command
from shardmill.core.template import NO_TEXT
from shardmill.ledger import HistoryPoint
from shardmill.plan import Plan, name_place
from shardmill.plugins import find
from shardmill.results.pressure import describe
from shardmill.run.editions import HEADER, to_cells
from shardmill.run.reports.account import Account
from shardmill.run.reports.shape import Chart, Grid, Section

_MOST_REASONS, _MOST_FILES = 20, 10
_LONGEST = 400


def headline(account: Account) -> tuple[tuple[str, str], ...]:
    """The figures that most readers want, with their names."""
    status, cost = account.status, account.cost
    spent = (("time", duration(cost.seconds)), ("cost", _usd(cost.usd)))
    if account.own is not None and (figures := account.own.headline()):
        return (*figures, *spent)
    rate = f"{status.mean_rows_per_s:,.{0 if status.mean_rows_per_s >= 10 else 1}f}"
    rows = (("rows", f"{status.rows:,}"), ("failed rows", f"{status.errors:,}"))
    return (*rows, *spent, *(() if account.has_long_items else (("rows per second", rate),)))


def sections(account: Account) -> list[Section]:
    made = (_task, _proof, _work, _editions, _places, _time, _cost, _throughput, _lengths, _failed, _figures, _versions)
    return [section for make in made if (section := make(account)) is not None]


def _task(account: Account) -> Section | None:
    """What matters most of a study, a training, a map or generated texts."""
    return None if account.own is None else account.own.section()


def _proof(account: Account) -> Section:
    proof = account.proof
    if proof is None:
        return Section("Proof", notes=(f"Not verified. To verify it: {shell_command('verify', account.run)}",))
    checks = tuple(
        ("passed" if check.get("ok") else "FAILED", str(check.get("name")), str(check.get("seen")))
        for check in proof.get("checks", ())
    )
    seconds = proof.get("seconds")
    said = f"{account.verdict.capitalize()}: {proof.get('rows', 0):,} rows, {proof.get('errors', 0):,} of them failed."
    took = (f"The verification took {duration(seconds)}.",) if isinstance(seconds, (int, float)) else ()
    return Section("Proof", grids=(Grid(("", "check", "what was seen"), checks),), notes=(said, *took))


def _work(account: Account) -> Section:
    work = account.plan.work
    facts = [
        ("task", work.task),
        *((name, _text(value)) for name, value in sorted(work.params.items())),
        *_source(account.plan),
        *([("id", ", ".join(work.id))] if work.id else []),
        *([("kept", ", ".join(work.keep))] if work.keep else []),
        *([("table", work.to.table)] if work.to is not None else []),
        ("shards", f"{account.status.shards_done:,} of {account.status.shards:,} committed"),
        ("plan", account.plan.id),
        *((f"fingerprint: {name}", value) for name, value in sorted(account.plan.fingerprint.items())),
    ]
    return Section("What ran", facts=tuple(facts))


def _source(plan: Plan) -> list[tuple[str, str]]:
    work, stat = plan.work, plan.stat
    if _is_numbers(plan):
        return [("items", f"{stat.size_bytes:,}")]
    places = ", ".join(map(name_place, work.source[:_MOST_FILES])) + (" …" if len(work.source) > _MOST_FILES else "")
    kind = "runs" if stat.files[0].run else stat.format
    read = f"{count(len(stat.files), 'file')} of {kind}, {stat.size_bytes:,} bytes"
    return [("source", places), ("read as", read), *([] if work.text == NO_TEXT else [("text", _text(work.text))])]


def _is_numbers(plan: Plan) -> bool:
    """Whether the items are numbers, which come from no file."""
    source = find("sources", plan.stat.format)
    return source is not None and source.unit == "id"


def _editions(account: Account) -> Section | None:
    """Which editions a refreshed run has, and what each refresh did."""
    if not account.editions:
        return None
    rows = tuple(map(to_cells, account.editions))
    note = "Dropped are items of the edition before that were edited, had failed, or are gone."
    return Section("Editions", grids=(Grid(HEADER, rows, (0, 3, 4, 5, 6, 7, 8, 9)),), notes=(note,))


def _places(account: Account) -> Section:
    rows = tuple(
        (
            _cut(use.device),
            f"{use.workers:,}",
            f"{use.hosts:,}",
            f"{use.rows:,}",
            duration(use.device_s),
            f"{use.peak_rss_bytes / 1e9:,.2f} GB",
        )
        for use in account.devices
    )
    header = ("device", "workers", "hosts", "rows", "time on the device", "most memory of a worker")
    computed = () if account.has_long_items else tuple((how, f"{rows:,}") for how, rows in account.computed.items())
    facts = tuple((name.replace("_", " "), _text(value)) for name, value in account.settings.items())
    grids = (Grid(header, rows, (1, 2, 3, 4, 5)), Grid(("computed with", "rows"), computed, (1,)))
    return Section("Where it ran", facts, tuple(grid for grid in grids if grid.rows))


def _time(account: Account) -> Section:
    cost, status = account.cost, account.status
    facts = [
        ("began", _when(account.began_at)),
        ("ended", _when(account.ended_at) if account.ended_at else "not yet"),
        ("time", cost.times.describe()),
        ("time of all workers", duration(cost.device_s)),
        ("of it starting", duration(cost.start_s)),
        ("of it idle", duration(cost.idle_s)),
        ("of it for rows computed twice", duration(cost.retried_s)),
    ]
    if status.bound is not None:
        facts.append(("bounded by", f"the {status.bound['by']}"))
    for step in status.steps:
        if said := describe(step.result.get("pressure") or {}):
            facts.append((step.step, said))
    forecast = cost.forecast
    if forecast is None:
        facts.append(("forecast", "none was made"))
    else:
        expected = f"{duration(forecast.likely_s)} ({duration(forecast.low_s)} to {duration(forecast.high_s)})"
        off = "" if cost.off is None else f"; {abs(cost.off):.0%} too {'long' if cost.off > 0 else 'short'}"
        facts.append(("forecast", f"{expected}, from {forecast.basis}{off}"))
    if status.deadline_at is not None:
        past = status.past_deadline_s if account.ended_at is None else account.ended_at - status.deadline_at
        said = "" if past is None else f", {'missed' if past > 0 else 'kept'} by {duration(abs(past))}"
        facts.append(("deadline", _when(status.deadline_at) + said))
    past_staff = status.staff.past if status.staff is not None else ()
    rows = tuple((_when(each["at"]), f"{each['wanted']:,}", _cut(str(each["reason"]))) for each in past_staff)
    grids = (Grid(("decided", "workers wanted", "why"), rows, (1,)),) if rows else ()
    return Section("Time", tuple(facts), grids)


def _cost(account: Account) -> Section:
    cost, status = account.cost, account.status
    facts = [("cost", _usd(cost.usd)), ("price", cost.price_of)]
    if cost.usd_per_million is not None and not account.has_long_items:
        facts.append(("per million rows", _usd(cost.usd_per_million)))
    if cost.usd_tokens:
        facts.append(("of it for tokens", _usd(cost.usd_tokens)))
    if status.tokens or not account.has_long_items:
        facts.append(("tokens read", f"{status.tokens:,}"))
    if status.tokens_out:
        facts.append(("tokens made", f"{status.tokens_out:,}"))
    if status.budget_usd is not None:
        over = "" if cost.usd is None else f", {'over' if cost.usd > status.budget_usd else 'not reached'}"
        facts.append(("budget", _usd(status.budget_usd) + over))
    return Section("Cost", tuple(facts))


def _throughput(account: Account) -> Section:
    past = account.past
    if len(past) < 2:
        return Section("Throughput over time", notes=("Not recorded.",))
    labels = tuple(_clock(point.at) for point in past)

    def chart(title: str, unit: str, value: Callable[[HistoryPoint], float | None]) -> Chart | None:
        values = tuple(value(point) or 0.0 for point in past)
        return Chart(title, values, labels, unit=unit) if any(values) else None

    charts = (
        None if account.has_long_items else chart("rows per second", "", lambda point: point.rows / point.seconds),
        chart("tokens read per second", "", lambda point: point.tokens / point.seconds),
        chart("tokens made per second", "", lambda point: point.tokens_out / point.seconds),
        chart("memory of all workers", "GB", lambda point: (point.memory_bytes or 0.0) / 1e9),
        chart("memory of all GPUs", "GB", lambda point: (point.device_bytes or 0.0) / 1e9),
        chart("use of the devices", "%", lambda point: 100 * (point.use or 0.0)),
    )
    return Section("Throughput over time", charts=tuple(filter(None, charts)))


def _lengths(account: Account) -> Section | None:
    counts = account.lengths
    if account.has_long_items:
        return None
    first = next((power for power, number in enumerate(counts) if number), None)
    if first is None:
        return Section("Lengths", notes=("Not recorded.",))
    shown = counts[first:]
    labels = tuple(f"{1 << power:,}" for power in range(first, len(counts)))
    named = sum(counts)
    notes = [f"{count(named, 'input')}, by their tokens or what else the task counts: each bar is from one number on."]
    if account.status.truncated:
        notes.append(f"{count(account.status.truncated, 'input')} cut at the limit of the model.")
    chart = Chart("inputs by length", tuple(map(float, shown)), labels, bars=True)
    table = Grid(("from", "inputs"), tuple(zip(labels, (f"{n:,}" for n in shown), strict=True)), (0, 1))
    return Section("Lengths", grids=(table,), charts=(chart,), notes=tuple(notes))


def _failed(account: Account) -> Section:
    status = account.status
    if not status.errors:
        return Section("Failed rows", notes=("None.",))
    if status.reasons is None:
        return Section("Failed rows", notes=(f"{status.errors:,}; their reasons were not rolled up.",))
    rows = tuple(
        (
            f"{reason['count']:,}",
            _cut(str(reason["reason"])),
            _cut(_place(reason, has_files=not _is_numbers(account.plan))),
        )
        for reason in status.reasons[:_MOST_REASONS]
    )
    more = len(status.reasons) - _MOST_REASONS
    notes = (f"{count(more, 'more reason')}.",) if more > 0 else ()
    note = "Failed rows are in the result without a value, and each is on record with its reason."
    return Section("Failed rows", grids=(Grid(("rows", "reason", "example"), rows, (0,)),), notes=(note, *notes))


def _place(reason: dict[str, object], *, has_files: bool) -> str:
    named = reason.get("id")
    ids = ", ".join(map(str, named.values())) if isinstance(named, dict) else ""
    line = f", line {reason['line_in_shard']}" if reason.get("line_in_shard") is not None else ""
    before = f"{reason.get('file')}, " if has_files else ""
    return f"{before}shard {reason.get('shard')}{line}{f', id {ids}' if ids else ''}"


def _figures(account: Account) -> Section | None:
    """What the task measured of its result, such as ROUGE or why answers ended."""
    figures = (account.proof or {}).get("figures") or {}
    return Section("Figures of the task", tuple((str(k), _text(v)) for k, v in figures.items())) if figures else None


def _versions(account: Account) -> Section:
    facts = tuple((name, ", ".join(versions)) for name, versions in account.libraries.items())
    written = f"Written by shardmill {account.version}, {_when(account.made_at)}."
    return Section("Versions", facts, notes=(written,))


def _text(value: object) -> str:
    if isinstance(value, dict):
        return _cut(", ".join(f"{name} {_text(each)}" for name, each in value.items()))
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _cut(", ".join(map(_text, value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _cut(" ↵ ".join(line for line in str(value).splitlines() if line.strip()))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _usd(usd: float | None) -> str:
    if usd is None:
        return "not known"
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"


def _when(at: float | None) -> str:
    return "not known" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %z}"


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
