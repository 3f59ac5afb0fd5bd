"""`shardmill monitor`: the page that shows runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb

FAMILY = "Inspect"
SERVER = "Server"


def add_to(app: typer.Typer) -> None:
    app.command("monitor", cls=Verb, rich_help_panel=FAMILY, epilog=_MONITOR)(monitor)


_MONITOR = """\
shardmill monitor runs
shardmill monitor s3://bucket/runs --port 9000
shardmill monitor runs --host 0.0.0.0 --token-file token.txt --allow-host runs.example.org
shardmill monitor runs --alerts alerts.toml"""


def monitor(
    place: Annotated[str, o.argument("FOLDER", "A run folder, or the folder that runs are in: a path or a URL.")],
    host: Annotated[
        str, o.option(SERVER, metavar="ADDRESS", help="The address to listen on.  [default: 127.0.0.1]")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, o.option(SERVER, min=0, max=65535, help="The port.  [default: the first free one from 8321]")
    ] = None,
    token_file: Annotated[
        Path | None, o.option(SERVER, metavar="FILE", help="A file with the token.  [default: a new token]")
    ] = None,
    root_path: Annotated[str, o.option(SERVER, metavar="PATH", help="The path at which a proxy serves the page.")] = "",
    allow_host: Annotated[
        list[str] | None, o.option(SERVER, metavar="NAME", help="Another host name that the page is reached by.")
    ] = None,
    alerts: Annotated[
        Path | None, o.option(SERVER, metavar="FILE", help="Tell people and programs what happens: alerts.toml.")
    ] = None,
    worker_link: Annotated[
        str, o.option(SERVER, metavar="URL", help="The page of a worker's pod or Slurm job: https://…/{name}")
    ] = "",
    search: Annotated[bool, o.option(SERVER, "--search/--no-search", help="Offer a search of finished runs.")] = True,
) -> None:
    """Serve a live page of runs: progress, workers, errors and cost. It reads, and changes nothing.

    It prints the address with its token. `/healthz` answers without it; machines send it as a bearer token.
    """
    from shardmill.monitor.server import serve

    serve(
        place,
        host=host,
        port=port,
        token_file=token_file,
        root_path=root_path,
        allowed_hosts=allow_host or (),
        alerts=alerts,
        search=search,
        worker_link=worker_link,
    )
