"""What a run cost: device-seconds by worker, with idle and retried time, and its forecast compared with the result.

cost = read_cost(ledger, plan, usd_per_hour=0.526)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardmill.ledger import Ledger, RunForecast
from shardmill.plan import Plan
from shardmill.plan.sizing.catalogue import Catalogue, load_catalogue
from shardmill.plan.sizing.prices import find_price, find_rented
from shardmill.plan.spec import Execution, make_execution
from shardmill.run.costs.prices import price_around
from shardmill.run.status.state import read_status
from shardmill.run.status.times import RunTimes, compare_forecast

_WORTH_USD = 0.0001


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """Device-seconds of one worker, by use. Workers that share a device each count their share of it.

    `retried_s` went into rows that another attempt committed: they were computed twice, or this worker was lost.
    `sink_s` is the part of `idle_s` in which the device waited for results to be written.
    """

    worker: str
    device: str
    device_s: float
    start_s: float
    work_s: float
    idle_s: float
    sink_s: float
    retried_s: float
    rows: int
    usd: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run cost so far. `seconds` is how long it took, `times` by part, and `price_of` the price's origin.

    `usd_tokens` is the part of `usd` that was paid by tokens, at the prices in the run's `[execution]`, and
    `usd_around` what this machine cost while it prepared and finished the run.
    """

    run: str
    state: str
    rows: int
    tokens: int
    tokens_out: int
    seconds: float
    times: RunTimes
    device_s: float
    start_s: float
    idle_s: float
    sink_s: float
    retried_s: float
    usd: float | None
    usd_tokens: float
    usd_around: float
    usd_per_million: float | None
    device_s_per_million: float | None
    price_of: str
    forecast: RunForecast | None
    off: float | None
    workers: tuple[WorkerCost, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_cost(ledger: Ledger, plan: Plan, usd_per_hour: float | None = None) -> Cost:
    """Add up the records of the workers; without `usd_per_hour`, the catalogue's price is used if there is one."""
    status, catalogue, paid = read_status(ledger, plan), load_catalogue(), make_execution(ledger.execution())
    usd_per_hour = paid.usd_per_hour if usd_per_hour is None else usd_per_hour
    committed: dict[str, int] = {}
    for done in ledger.segments.read(len(plan.shards)).values():
        committed[done.worker] = committed.get(done.worker, 0) + done.rows
    # A host's CPU is included in the price of its GPU.
    with_gpu = {w["host"] for w in status.workers if w.get("kind") == "cuda"}
    free = {w["id"] for w in status.workers if w.get("kind") == "cpu" and w["host"] in with_gpu}
    workers = tuple(_worker(w, committed, 0.0 if w["id"] in free else usd_per_hour, catalogue) for w in status.workers)
    rows = sum(committed.values())
    device_s, start_s, idle_s, sink_s, retried_s = (
        sum(getattr(w, name) for w in workers) for name in ("device_s", "start_s", "idle_s", "sink_s", "retried_s")
    )
    usd_tokens = (status.tokens * (paid.price_in or 0.0) + status.tokens_out * (paid.price_out or 0.0)) / 1e6
    by_tokens = paid.price_in is not None or paid.price_out is not None
    unknown = any(w.usd is None for w in workers) and not by_tokens
    own = [find_price(catalogue, w["device"], w["cores"]) for w in status.workers]
    usd_around = price_around(status.times, paid, own if usd_per_hour is None else [usd_per_hour])
    usd = None if unknown else sum(w.usd or 0.0 for w in workers) + usd_around + usd_tokens
    forecast, times = ledger.notes.forecast(), status.times
    return Cost(
        run=ledger.url,
        state=status.state,
        rows=rows,
        tokens=status.tokens,
        tokens_out=status.tokens_out,
        seconds=times.elapsed_s,
        times=times,
        device_s=device_s,
        start_s=start_s,
        idle_s=idle_s,
        sink_s=sink_s,
        retried_s=retried_s,
        usd=usd,
        usd_tokens=usd_tokens,
        usd_around=usd_around,
        usd_per_million=usd * 1e6 / rows if usd is not None and rows else None,
        device_s_per_million=device_s * 1e6 / rows if rows else None,
        price_of=_price_of(
            usd_per_hour, {(w["device"], w["cores"]) for w in status.workers if w["id"] not in free}, catalogue, paid
        ),
        forecast=forecast,
        off=compare_forecast(forecast, times, status.state),
        workers=workers,
    )


def _worker(
    record: dict[str, Any], committed: dict[str, int], usd_per_hour: float | None, catalogue: Catalogue
) -> WorkerCost:
    started, ended = _span(record)
    share = float(record.get("share", 1.0))
    span_s = max(0.0, ended - started)
    start_s = min(span_s, max(0.0, record["began"] - started)) if record["rows"] else span_s
    sink_s = record.get("sink_wait_s", 0.0)
    idle_s = min(span_s - start_s, record["idle_s"] + sink_s)
    work_s = span_s - start_s - idle_s
    rows = committed.get(record["id"], 0)
    lost = max(0, record["rows"] - rows) if not record["live"] else 0
    retried_s = work_s * lost / record["rows"] if record["rows"] else 0.0
    own = find_price(catalogue, record["device"], record["cores"])
    price = usd_per_hour if usd_per_hour is not None else own
    return WorkerCost(
        worker=record["id"],
        device=record["device"],
        device_s=share * span_s,
        start_s=share * start_s,
        work_s=share * (work_s - retried_s),
        idle_s=share * idle_s,
        sink_s=share * min(idle_s, sink_s),
        retried_s=share * retried_s,
        rows=rows,
        usd=None if price is None else share * span_s * price / 3600,
    )


def _span(record: dict[str, Any]) -> tuple[float, float]:
    """From the start of a worker to its last sign of life."""
    return float(record.get("started", record["began"])), float(record["at"])


def _price_of(usd_per_hour: float | None, devices: set[tuple[str, int]], catalogue: Catalogue, paid: Execution) -> str:
    said = []
    if by_tokens := paid.price_in is not None or paid.price_out is not None:
        said.append(f"${paid.price_in or 0:g} per million tokens read and ${paid.price_out or 0:g} made")
    if usd_per_hour is not None:
        return "; ".join([*said, f"${usd_per_hour:g} per hour, as given"])
    for device, cores in sorted(devices):
        (chip, share), price = find_rented(catalogue, device), find_price(catalogue, device, cores)
        if chip is None or price is None:
            said += [] if by_tokens else [f"the price of {device} is unknown: give --price"]
        else:
            how = (
                f", {share:.0%} of a whole one" if share < 1 else f" by its {cores} cores" if price != chip.usd else ""
            )
            said.append(f"{device} at ${price:g} per hour{how}, {chip.instance}, {chip.date}")
    return "; ".join(said)


def show(cost: Cost) -> None:
    """Print a cost on the terminal."""
    console = Console(highlight=False, soft_wrap=True)
    table = Table(show_header=False, box=None)
    for name, seen in figures(cost):
        table.add_row(name, Text(seen))
    console.print(table)
    console.print()
    by_worker = Table(box=None)
    for name in ("worker", "device", "device-s", "start", "work", "idle", "retried", "rows", "cost"):
        by_worker.add_column(name, justify="left" if name in ("worker", "device") else "right")
    for w in cost.workers:
        seconds = [f"{s:,.1f}" for s in (w.device_s, w.start_s, w.work_s, w.idle_s, w.retried_s)]
        by_worker.add_row(w.worker, w.device, *seconds, f"{w.rows:,}", _money(w.usd))
    console.print(by_worker)


def figures(cost: Cost) -> list[tuple[str, str]]:
    """Each figure with its name."""
    idle = f"{cost.idle_s:,.1f} idle ({cost.sink_s:,.1f} of it waiting for writes)"
    parts = f"{cost.start_s:,.1f} to start, {idle}, {cost.retried_s:,.1f} retried"
    per_million = (
        f"{cost.device_s_per_million:,.0f} device-seconds" if cost.device_s_per_million is not None else "none"
    )
    around = f", of it {_money(cost.usd_around)} to prepare and finish" if cost.usd_around >= _WORTH_USD else ""
    made = f" read, {cost.tokens_out:,} made" if cost.tokens_out else ""
    return [
        ("run", f"{cost.run}, {cost.state}"),
        ("done", f"{cost.rows:,} items, {cost.tokens:,} tokens{made}"),
        ("time", cost.times.describe()),
        ("device-seconds", f"{cost.device_s:,.1f}: {parts}"),
        ("cost", f"{_money(cost.usd)}{around} ({cost.price_of})"),
        ("per million items", f"{per_million}, {_money(cost.usd_per_million)}"),
        ("forecast", _forecast(cost)),
    ]


def _forecast(cost: Cost) -> str:
    if cost.forecast is None:
        return "none: no similar run was measured on this machine before"
    said = f"{cost.forecast.likely_s:,.1f} s ({cost.forecast.low_s:,.1f} to {cost.forecast.high_s:,.1f})"
    took_s = cost.times.start_s + cost.times.work_s
    came = (
        ""
        if cost.off is None
        else f"; start-up and work took {took_s:,.1f} s, so the forecast was {100 * cost.off:+.0f} % off"
    )
    return f"{said}, {cost.forecast.basis}{came}"


def _money(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"
