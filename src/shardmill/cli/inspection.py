"""Verbs that inspect: the plan of a run, its status, its content, its cost."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import shardmill
from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.specs import read_options
from shardmill.console import clean, say

if TYPE_CHECKING:
    from shardmill.devices import Device
    from shardmill.plan import Plan

FAMILY = "Inspect"
ESTIMATE = "Estimate"


Gpus = Annotated[str | None, o.option(ESTIMATE, metavar="NxDEVICE", help="Estimate for these devices: 8xT4, or CPU.")]
Deadline = Annotated[str | None, o.option(ESTIMATE, help="The time it may take: 2h, 90min, 1d.")]
Budget = Annotated[str | None, o.option(ESTIMATE, help="The money it may cost: 5USD.")]
Catalogue = Annotated[Path | None, o.option(ESTIMATE, metavar="FILE", help="Your own devices and prices, TOML.")]


def add_to(app: typer.Typer) -> None:
    app.command("plan", cls=Verb, rich_help_panel=FAMILY, epilog=_PLAN)(plan)
    app.command("status", cls=Verb, rich_help_panel=FAMILY, epilog=_STATUS)(status)
    app.command("runs", cls=Verb, rich_help_panel=FAMILY, epilog=_RUNS)(runs)
    app.command("show", cls=Verb, rich_help_panel=FAMILY, epilog=_SHOW)(show)
    app.command("cost", cls=Verb, rich_help_panel=FAMILY, epilog=_COST)(cost)


_PLAN = """\
shardmill plan reviews.jsonl --text reviewText
shardmill plan reviews.jsonl --text reviewText --out runs/reviews
shardmill plan reviews.jsonl --text reviewText --gpus 8xT4 --deadline 2h --budget 5USD"""
Out = Annotated[str, o.option(o.RESULT, metavar="RUN", help="Write the run folder there; `shardmill work` runs it.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="With --out: delete the run there and plan it anew.")]


@takes(
    *o.CHOOSING,
    *o.READING,
    *o.LOADING,
    *o.EMBEDDING,
    *o.KEEPING,
    "dtype",
    "allow_code",
    *o.PLACING,
    "then",
    *o.LIMITING,
    "batch_rows",
)
def plan(
    out: Out = "",
    fresh: Fresh = False,
    gpus: Gpus = None,
    deadline: Deadline = None,
    budget: Budget = None,
    catalogue: Catalogue = None,
    spec: o.SpecFile = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Show the plan of a run: its source, its shards, its id. Nothing is run.

    It takes the options of `embed`, `load` and `run`. With --out it writes the run folder, and places no worker. With
    --gpus, --deadline or --budget it estimates time, cost and memory, with ranges, on any listed device.
    """
    from shardmill.api import lay_out
    from shardmill.planner import make_plan
    from shardmill.run.planning import open_placer, permit
    from shardmill.spec import make_spec
    from shardmill.tables.load import complete_work

    code = bool(options.pop("allow_code"))
    work, execution = read_options(spec, options)
    if gpus or deadline or budget:
        from shardmill.costs.forecast import make_forecast
        from shardmill.costs.screen import show as show_forecast

        whole = make_spec(work, execution)
        permit(whole, of_model=code)
        forecast = make_forecast(whole, gpus=gpus, deadline=deadline, budget=budget, catalogue=catalogue)
        print_json(forecast.to_json()) if as_json else show_forecast(forecast)
        return
    whole = make_spec(complete_work(work) if work.get("to") else work, execution)
    permit(whole, of_model=code)
    _, devices = open_placer(whole, None, quiet=False)
    if out:
        made = lay_out(work, execution, out, fresh=fresh, quiet=False, allow_code=code).plan
    else:
        made = make_plan(whole, devices, quiet=False)
    print_json(made.to_json()) if as_json else _show_plan(made, devices)
    if out:
        say(f"Written: {out}   Next: shardmill work {out}")


def _show_plan(made: Plan, devices: list[Device]) -> None:
    table = Table(show_header=False, box=None)
    table.add_row("plan", made.id)
    if made.work.query:
        place, rows = made.stat.files[0].place, made.shards[-1].stop
        table.add_row("source", f"{place}, {rows:,} rows, about {made.stat.size_bytes:,} bytes")
    else:
        table.add_row("source", f"{len(made.stat.files)} {made.stat.format} files, {made.stat.size_bytes:,} bytes")
    table.add_row("columns", ", ".join(f"{n} {t}" for n, t in made.stat.columns.items()) or "none kept")
    table.add_row("model", ", ".join(f"{n} {t}" for n, t in made.fingerprint.items()))
    named = Counter(device.name for device in devices)
    table.add_row("workers", ", ".join(f"{count} x {name}" for name, count in named.items()))
    largest = max((s.weight_bytes for s in made.shards), default=0)
    files = max((s.files for s in made.shards), default=1)
    of_files = f", up to {files:,} files in one" if files > 1 else ""
    table.add_row("shards", f"{len(made.shards)}, the largest {largest:,} bytes{of_files}")
    Console(soft_wrap=True).print(table)


_STATUS = """\
shardmill status runs/reviews --watch
shardmill status s3://bucket/runs/docs --json"""


def status(
    run: o.Run,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run until it is complete or has failed.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Show the progress of a run, from its folder alone: speed, expected end, cost, workers, shards and failed rows."""
    from shardmill.costs.outlook import Watched, look_at
    from shardmill.status.screen import follow
    from shardmill.status.screen import show as show_status

    # Not by `shardmill.Run`: to import all that starts and ends a run takes longer than to read a status.
    if watch:
        follow(Watched(run).status, as_json=as_json)
        return
    seen = look_at(run)
    print_json(seen.to_json()) if as_json else show_status(seen)


_RUNS = """\
shardmill runs runs
shardmill runs s3://bucket/runs --json"""


def runs(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder that the runs are in, a path or a URL.")],
    as_json: o.AsJson = False,
) -> None:
    """List the runs in a folder, one level deep: state, share, rows, rate, and when each was last seen."""
    from shardmill.status.runs import list_runs, show_runs

    found = list_runs(folder)
    print_json([line.to_json() for line in found]) if as_json else show_runs(found)


_COST = """\
shardmill cost runs/reviews
shardmill cost runs/reviews --price 0.526"""


def cost(
    run: o.Run,
    price: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="USD per GPU-hour.  [default: the catalogue's price]"),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show what a run cost: device-seconds per worker, idle and retried time, forecast and actual."""
    from shardmill.costs.cost import show as show_cost

    found = shardmill.Run(run).cost(price)
    print_json(found.to_json()) if as_json else show_cost(found)


_SHOW = """\
shardmill show runs/reviews --errors
shardmill show runs/reviews --shard 42"""


def show(
    run: o.Run,
    shard: Annotated[int | None, typer.Option(help="Show one shard: its range, its commit, its first rows.")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="List the rows that failed.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of errors.")] = 100,
    as_json: o.AsJson = False,
) -> None:
    """Show one shard of a run, or the rows that failed."""
    from shardmill.status.shard import describe_shard
    from shardmill.tuning.study import is_study

    opened = shardmill.Run(run)
    if shard is not None and not errors:
        print_json(describe_shard(opened.ledger, opened.plan, shard))
        return
    found = list(islice(opened.errors(), limit))
    if as_json:
        print_json(found)
        return
    of_study = is_study(opened.plan)
    for record in found:
        line = record["line"] or f"{record['line_in_shard']} of shard {record['shard']}"
        where = f"trial {record['shard']}" if of_study else f"{record['file']}:{line}"
        print(clean(f"{where}: {record['reason']}"))
    if not found and limit:
        say(f"No {'trial' if of_study else 'row'} has failed.")
