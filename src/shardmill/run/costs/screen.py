"""A forecast on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardmill.core.console import duration
from shardmill.plan.sizing.options import Option
from shardmill.plan.sizing.speed import Range
from shardmill.run.costs.forecast import Forecast, rows_of

_NARROWEST = 132


def show(forecast: Forecast) -> None:
    """Print the requested option, then the table of alternatives."""
    console = Console(highlight=False)
    console.width = max(console.width, _NARROWEST)
    table = Table(show_header=False, box=None)
    for name, seen in figures(forecast):
        table.add_row(name, Text(seen))
    console.print(table)
    console.print()
    console.print(_what_if(forecast))
    if forecast.best is not None:
        best = forecast.best
        console.print(f"\n> is the cheapest option within the limits: {best.gpus} x {best.device}.", markup=False)
    if forecast.advice:
        console.print(f"\nNo option is within the limits. {forecast.advice}", markup=False)


def figures(forecast: Forecast) -> list[tuple[str, str]]:
    """Each figure of the requested option, with its name."""
    work, asked = forecast.work, forecast.asked
    size = f", {forecast.parameters / 1e6:,.1f} M parameters" if forecast.parameters else ""
    return [
        ("plan", forecast.plan),
        ("source", f"{forecast.source_bytes:,} bytes, about {work.items:,} items and {work.tokens:,} tokens"),
        (
            "sample",
            f"{forecast.sampled_items:,} items from {forecast.sampled_places} places: "
            f"{work.mean_tokens:.1f} tokens each, {work.longest} at most",
        ),
        ("model", f"{forecast.model}{size}"),
        ("devices", f"{asked.gpus} x {asked.device}{f', {asked.instance}' if asked.instance else ''}"),
        ("batch budget", f"{asked.batch_tokens:,} tokens"),
        ("memory per GPU", f"{asked.memory_gb:.1f} of {asked.device_gb:g} GB, {asked.memory_basis}"),
        ("shards", f"{forecast.shards:,}, the largest of {forecast.largest_shard_bytes:,} bytes"),
        ("speed", f"{asked.items_per_s:,.0f} items/s, bound by {asked.bound}; {asked.basis}"),
        ("time", f"{duration(asked.seconds.likely)} ({_times(asked.seconds)})"),
        ("money", f"{_money(asked.usd)} on demand, {_money(asked.spot_usd)} as spot"),
    ]


def _what_if(forecast: Forecast) -> Table:
    table = Table(box=None)
    for name in ("", "GPUs", "device", "time", "range", "on demand", "spot", "memory", "speed"):
        right = name in ("GPUs", "time", "on demand", "spot")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for option in rows_of(forecast):
        best = forecast.best is not None and option == forecast.best
        table.add_row(*_row(option, best=best), style="bold" if best else None)
    return table


def _row(option: Option, *, best: bool) -> list[str]:
    return [
        ">" if best else "",
        str(option.gpus),
        option.device,
        duration(option.seconds.likely),
        _times(option.seconds),
        _money(option.usd),
        _money(option.spot_usd),
        f"{option.memory_gb:.1f} of {option.device_gb:g} GB{'' if option.fits else ': does not fit'}",
        option.basis.removeprefix("estimated from the "),
    ]


def _times(seconds: Range) -> str:
    return f"{duration(seconds.low)} to {duration(seconds.high)}"


def _money(usd: Range | None) -> str:
    """
    >>> _money(Range(0.2, 0.3, 0.4)), _money(Range(10, 20, 30)), _money(None)
    ('$0.300 (0.200-0.400)', '$20.00 (10.00-30.00)', 'no price')
    """
    if usd is None:
        return "no price"
    digits = 3 if usd.likely < 1 else 2
    return f"${usd.likely:,.{digits}f} ({usd.low:,.{digits}f}-{usd.high:,.{digits}f})"
