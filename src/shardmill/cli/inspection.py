"""Commands that look at runs: their progress, their content, their cost."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardmill.core.console import clean, print_json, say
from shardmill.plan.options import OTHER, option
from shardmill.plan.shared import OfRun, Printing
from shardmill.plugins import find_verb

if TYPE_CHECKING:
    from shardmill.run.request import Request


class StatusOptions(OfRun, Printing):
    """What `status` takes."""

    watch: bool = option(False, "Follow the run until it is complete or has failed.", common=True)


def status(request: Request) -> None:
    from shardmill.run.costs.outlook import Watched, look_at
    from shardmill.run.status.screen import follow
    from shardmill.run.status.screen import show as show_status

    options: StatusOptions = request.options
    # Not by `shardmill.Run`: to import all that starts and ends a run takes longer than to read a status.
    if options.watch:
        follow(Watched(options.run).status, as_json=options.as_json)
        return
    seen = look_at(options.run)
    print_json(seen.to_json()) if options.as_json else show_status(seen)


class ListOptions(Printing):
    """What `runs` takes."""

    folder: str = option(..., "The folder that the runs are in, a path or a URL.", metavar="FOLDER", argument=True)


def list_runs(request: Request) -> None:
    from shardmill.run.status import runs

    found = runs.list_runs(request.options.folder)
    print_json([line.to_json() for line in found]) if request.options.as_json else runs.show_runs(found)


class CostOptions(OfRun, Printing):
    """What `cost` takes."""

    price: float | None = option(
        None, "USD per GPU-hour.", metavar="USD", common=True, shown="the catalogue's price", ge=0
    )


def cost(request: Request) -> None:
    from shardmill.run.costs.cost import show as show_cost
    from shardmill.run.result import Run

    found = Run(request.options.run).cost(request.options.price)
    print_json(found.to_json()) if request.options.as_json else show_cost(found)


class ShowOptions(OfRun, Printing):
    """What `show` takes."""

    shard: int | None = option(
        None, "Show one shard: its range, its commit, its first rows.", group=OTHER, metavar="N", common=True
    )
    errors: bool = option(False, "List the rows that failed.", common=True)
    editions: bool = option(False, "List the editions of a refreshed run: rows reused and computed, cost.", common=True)
    limit: int = option(100, "Maximum number of errors, or of editions.", metavar="N", common=True, ge=0)


def show(request: Request) -> None:
    from shardmill.run.result import Run
    from shardmill.run.status.shard import describe_shard

    options: ShowOptions = request.options
    if options.editions:
        _show_editions(options)
        return
    opened = Run(options.run)
    if options.shard is not None and not options.errors:
        print_json(describe_shard(opened.ledger, opened.plan, options.shard))
        return
    found = list(islice(opened.errors(), options.limit))
    if options.as_json:
        print_json(found)
        return
    of_study = find_verb(opened.plan.work.task).items_are_trials
    for record in found:
        line = record["line"] or f"{record['line_in_shard']} of shard {record['shard']}"
        where = f"trial {record['shard']}" if of_study else f"{record['file']}:{line}"
        print(clean(f"{where}: {record['reason']}"))
    if not found and options.limit:
        say(f"No {'trial' if of_study else 'row'} has failed.")


def _show_editions(options: ShowOptions) -> None:
    from shardmill.run.editions import list_editions, show_editions
    from shardmill.run.result import Run

    # Refuses a folder that holds no run.
    lines = list_editions(Run(options.run).ledger.url, options.limit or None)
    print_json([line.to_json() for line in lines]) if options.as_json else show_editions(lines)
