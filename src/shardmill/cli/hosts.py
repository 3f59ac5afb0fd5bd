"""`shardmill hosts`: check the hosts of a cluster.toml, stop their workers, clean up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from shardmill._version import __version__
from shardmill.core.console import print_json, say
from shardmill.core.errors import ShardmillError
from shardmill.plan.options import CallOptions, option
from shardmill.plan.shared import Printing
from shardmill.plan.values import Place
from shardmill.run.request import Request

if TYPE_CHECKING:
    from shardmill.engines.ssh.cluster import Host

_COLUMNS = ("host", "python", "shardmill", "disk free", "GPUs", "driver", "clock", "")
_LATE_S = 5.0


class HostsFile(CallOptions):
    """The hosts."""

    file: Place = option(..., "The hosts file, cluster.toml.", metavar="FILE", argument=True)


class HostsOptions(HostsFile, Printing):
    """What commands about hosts take."""


def check(request: Request) -> None:
    """Show what each host has, and whether it can be used as its entry asks."""
    from shardmill.engines.ssh.at_home.environment import check_look

    async def look(host: Host) -> dict[str, Any]:
        from shardmill.engines.ssh.at_home.link import connect

        async with connect(host) as link:
            found = await link.look()
        names = [gpu["name"] for gpu in found.gpus]
        seen = {
            "python": ".".join(map(str, found.python_version)),
            "shardmill": found.shardmill or ("" if host.python or host.conda else "to be sent"),
            "free_bytes": found.free_bytes,
            "work": found.work,
            "gpus": names,
            "driver": found.gpus[0]["driver"] if found.gpus else "",
            "cores": found.cores,
            "clock_skew_s": round(found.skew_s, 3),
        }
        try:
            check_look(host, found)
        except ShardmillError as error:
            return {**seen, "trouble": str(error)}
        return {**seen, "trouble": ""}

    results = _each(request.options.file, look)
    if request.options.as_json:
        print_json(results)
    else:
        _show(results)
    if any(result["trouble"] for result in results):
        raise click.exceptions.Exit(1)


def stop(request: Request) -> None:
    """End the workers of all runs on the hosts. Finished parts stay there, and the runs can resume."""
    _act(request, "stop")


def clean(request: Request) -> None:
    """Stop the workers and remove the work folders: environments, models, copies of sources, logs."""
    _act(request, "clean")


def _act(request: Request, action: str) -> None:
    as_json = request.options.as_json

    async def act(host: Host) -> dict[str, Any]:
        from shardmill.engines.ssh.at_home.link import connect

        async with connect(host) as link:
            return {**await link.remote(action), "trouble": ""}

    results = _each(request.options.file, act)
    if as_json:
        print_json(results)
    for result in results if not as_json else ():
        freed = f", {result['freed_bytes'] / 2**20:,.0f} MiB freed" if "freed_bytes" in result else ""
        say(result["trouble"] or f"{result['host']}: {result['stopped']} workers stopped{freed}.")
    if any(result["trouble"] for result in results):
        raise click.exceptions.Exit(1)


def _each(file: str, do: Any) -> list[dict[str, Any]]:
    """Do something on all hosts in parallel; an error of a host becomes its result."""
    import asyncio

    from shardmill.engines.ssh.cluster import read_cluster

    async def guarded(host: Host) -> dict[str, Any]:
        try:
            return {"host": host.name, **await do(host)}
        except ShardmillError as error:
            return {"host": host.name, "trouble": str(error)}

    async def all_of_them() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(guarded, read_cluster(file).hosts))

    return asyncio.run(all_of_them())


def _show(results: list[dict[str, Any]]) -> None:
    table = Table(box=None)
    for name in _COLUMNS:
        table.add_column(name)
    for found in results:
        if "python" not in found:
            table.add_row(found["host"], *[""] * (len(_COLUMNS) - 2), "cannot be used")
            continue
        gpus = found["gpus"]
        skew = found["clock_skew_s"]
        table.add_row(
            found["host"],
            found["python"],
            found["shardmill"] or "none",
            f"{found['free_bytes'] / 2**30:,.1f} GiB",
            f"{len(gpus)} x {gpus[0]}" if gpus else f"none, {found['cores']} cores",
            found["driver"],
            f"{skew:+.1f} s" if abs(skew) >= _LATE_S else "ok",
            "cannot be used" if found["trouble"] else "ok",
        )
    Console(highlight=False, soft_wrap=True).print(table)
    for found in results:
        if found["trouble"]:
            say(found["trouble"])
    if not any(found["trouble"] for found in results):
        say(f"All hosts can be used with shardmill {__version__}.")
