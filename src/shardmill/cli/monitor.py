"""`shardmill monitor`: the page that shows runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.plan.options import CallOptions, option

if TYPE_CHECKING:
    from shardmill.run.request import Request

SERVER = "Server"


class MonitorOptions(CallOptions):
    """What `monitor` takes."""

    place: str = option(
        ..., "A run folder, or the folder that runs are in: a path or a URL.", metavar="FOLDER", argument=True
    )
    host: str = option("127.0.0.1", "The address to listen on.", group=SERVER, metavar="ADDRESS", common=True)
    port: int | None = option(
        None,
        "The port.",
        group=SERVER,
        metavar="N",
        common=True,
        shown="the first free one from 8321",
        ge=0,
        le=65535,
    )
    token_file: Path | None = option(
        None, "A file with the token.", group=SERVER, metavar="FILE", common=True, shown="a new token"
    )
    root_path: str = option("", "The path at which a proxy serves the page.", group=SERVER, metavar="PATH")
    allow_host: tuple[str, ...] = option(
        (), "Another host name that the page is reached by; repeatable.", group=SERVER, metavar="NAME", repeats=True
    )
    alerts: Path | None = option(
        None, "Tell people and programs what happens: alerts.toml.", group=SERVER, metavar="FILE", common=True
    )
    worker_link: str = option(
        "", "The page of a worker's pod or Slurm job: https://…/{name}", group=SERVER, metavar="URL"
    )
    no_search: bool = option(False, "Offer no search of finished runs.", group=SERVER)
    search: bool = option(True, "Offer a search of finished runs.", group=SERVER)


def monitor(request: Request) -> None:
    from shardmill.watch.monitor.server import serve

    options: MonitorOptions = request.options
    serve(
        options.place,
        host=options.host,
        port=options.port,
        token_file=options.token_file,
        root_path=options.root_path,
        allowed_hosts=options.allow_host,
        alerts=options.alerts,
        search=options.search and not options.no_search,
        worker_link=options.worker_link,
    )
