"""What `load` says in the end."""

from __future__ import annotations

from shardmill.core.console import print_json, say
from shardmill.core.dialect import shell_command
from shardmill.run.outcome import show_run
from shardmill.run.request import Request
from shardmill.run.result import Run


def show(request: Request, run: Run) -> None:
    """Print where the rows of a finished run were delivered to; of a load, its outcome."""
    options = request.options
    if not options.from_run:
        show_run(request, run)
    elif options.as_json:
        print_json({"run": run.ledger.url, "to": options.to, "rows": len(run)})
    else:
        say(f"{len(run):,} rows of {options.from_run} are in {options.to}")
        say(f"Next: {shell_command('verify', options.from_run)}")
