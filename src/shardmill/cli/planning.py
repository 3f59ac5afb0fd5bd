"""`shardmill plan`: the plan of a run, its folder, or what it will take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.core.console import print_json, say
from shardmill.core.dialect import shell_command
from shardmill.plan import name_place
from shardmill.plan.execution import ComputingVectors
from shardmill.plan.options import RESULT, CallOptions, option
from shardmill.plan.shared import IntoFolder
from shardmill.plan.values import Place
from shardmill.verbs.embed.params import EmbedParams
from shardmill.verbs.run.options import AnyTaskOptions

if TYPE_CHECKING:
    from shardmill.core.devices import Device
    from shardmill.plan import Plan
    from shardmill.run.request import Request

ESTIMATE = "Estimate"


class Estimating(CallOptions):
    """What is estimated, and within which limits."""

    gpus: str | None = option(
        None, "Estimate for these devices: 8xT4, or CPU.", group=ESTIMATE, metavar="NxDEVICE", common=True
    )
    deadline: str | None = option(
        None, "The time it may take: 2h, 90min, 1d.", group=ESTIMATE, metavar="TIME", common=True
    )
    budget: str | None = option(None, "The money it may cost: 5USD.", group=ESTIMATE, metavar="MONEY", common=True)
    catalogue: Path | None = option(None, "Your own devices and prices, TOML.", group=ESTIMATE, metavar="FILE")


class PlanFolder(IntoFolder):
    """Where the run folder may be written."""

    out: Place = option(
        "",
        "Write the run folder there; `shardmill work` runs it.",
        group=RESULT,
        metavar="RUN",
        common=True,
        accepts="Place",
    )


class PlanOptions(ComputingVectors, PlanFolder, Estimating, AnyTaskOptions, EmbedParams):  # type: ignore[misc]
    """What `plan` takes: the options of `embed`, `load` and `run`."""

    rare = ("to", "table", "schema_", "param", "fresh")


def plan(request: Request) -> None:
    from shardmill.plan.spec import make_spec
    from shardmill.run.carrying import prepare_work
    from shardmill.run.loading import complete_work
    from shardmill.run.planner import make_plan
    from shardmill.run.planning import open_placer, permit
    from shardmill.run.request import read_parameters

    options: PlanOptions = request.options
    work, execution, code = request.work, request.execution, options.allow_code
    if given := read_parameters(options.param):
        work = {**work, "params": {**request.params, **given}}
    if options.gpus or options.deadline or options.budget:
        from shardmill.run.costs.forecast import make_forecast
        from shardmill.run.costs.screen import show as show_forecast

        whole = make_spec(work, execution)
        permit(whole, of_model=code)
        limits = {"gpus": options.gpus, "deadline": options.deadline, "budget": options.budget}
        forecast = make_forecast(whole, **limits, catalogue=options.catalogue)
        print_json(forecast.to_json()) if options.as_json else show_forecast(forecast)
        return
    whole = make_spec(complete_work(work) if work.get("to") else work, execution)
    permit(whole, of_model=code)
    _, devices = open_placer(whole, None, quiet=False)
    if options.out:
        made = prepare_work(work, execution, options.out, fresh=options.fresh, quiet=False, allow_code=code).plan
    else:
        made = make_plan(whole, devices, quiet=False)
    print_json(made.to_json()) if options.as_json else _show(made, devices)
    if options.out:
        say(f"Written: {options.out}   Next: {shell_command('work', options.out)}")


def _show(made: Plan, devices: list[Device]) -> None:
    from rich.console import Console
    from rich.table import Table

    from shardmill.verbs.peek.start import describe_items

    table = Table(show_header=False, box=None)
    table.add_row("plan", made.id)
    if made.work.query:
        place, rows = made.stat.files[0].place, made.shards[-1].stop
        table.add_row("source", f"{place}, {rows:,} rows, about {made.stat.size_bytes:,} bytes")
    else:
        first = made.stat.files[0].place
        read = f"{len(made.stat.files)} {made.stat.format} files" if name_place(first) == first else name_place(first)
        table.add_row("source", f"{read}, {made.stat.size_bytes:,} bytes")
    if line := describe_items(made.work):
        table.add_row("items", line)
    table.add_row("columns", ", ".join(f"{n} {t}" for n, t in made.stat.columns.items()) or "none kept")
    table.add_row("model", ", ".join(f"{n} {t}" for n, t in made.fingerprint.items()))
    named = Counter(device.name for device in devices)
    table.add_row("workers", ", ".join(f"{count} x {name}" for name, count in named.items()))
    largest = max((s.weight_bytes for s in made.shards), default=0)
    files = max((s.files for s in made.shards), default=1)
    of_files = f", up to {files:,} files in one" if files > 1 else ""
    table.add_row("shards", f"{len(made.shards)}, the largest {largest:,} bytes{of_files}")
    Console(soft_wrap=True).print(table)
