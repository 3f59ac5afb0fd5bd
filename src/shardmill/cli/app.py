"""All verbs together, and their exit statuses."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

import shardmill
from shardmill.cli import (
    answers,
    bench,
    calls,
    generation,
    going_on,
    hosts,
    inspection,
    manifests,
    maps,
    monitor,
    results,
    split,
    summaries,
    tasks,
    training,
    tuning,
)
from shardmill.cli.command import Verbs
from shardmill.console import say
from shardmill.errors import EXIT_TRY_AGAIN, ShardmillError, Terminated

# The status that typer returns on Ctrl-C.
_INTERRUPTED = 130

# Options that were renamed or moved: verb and old flag -> message.
_MOVED = {
    ("embed", "--to"): "`shardmill load` writes to a table; `shardmill embed` writes a run folder.",
    ("embed", "--table"): "`shardmill load` writes to a table; `shardmill embed` writes a run folder.",
    ("load", "--columns"): "--columns is --keep now.",
    ("split", "--workers"): "--workers is --chunks now: the number of chunks.",
}

app = typer.Typer(
    name="shardmill",
    cls=Verbs,
    help="Run a model over every item of a dataset: split, run, lose nothing, prove the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_FAMILIES = (
    *(tasks, generation, summaries, calls, training, tuning, going_on),
    *(inspection, monitor, results, answers, maps, split),
)
for family in _FAMILIES:
    family.add_to(app)
app.add_typer(bench.app, rich_help_panel="Machines")
app.add_typer(hosts.app, rich_help_panel="Machines")
app.add_typer(manifests.app, rich_help_panel="Machines")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(shardmill.__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["SHARDMILL_DEBUG"] = "1"


def _terminate(*_: object) -> NoReturn:
    raise Terminated(EXIT_TRY_AGAIN)


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    # A task of the user's own may be in this folder, as it is for `python -m shardmill` and for every worker.
    sys.path.append("")
    try:
        status = app(standalone_mode=False, prog_name="shardmill")
    except ShardmillError as error:
        _fail(str(error), error, error.exit_status)
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except Exception as error:
        _usage(error)
    if status == _INTERRUPTED:
        say("Stopped. The same command resumes." if sys.argv[1:2] and sys.argv[1] in tasks.RESUMING else "Stopped.")
    sys.exit(status)


def _usage(error: Any) -> NoReturn:
    """Report an error of the command-line parser; any other exception is a bug of ours."""
    if hasattr(error, "show"):
        verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        moved = _MOVED.get((verb, getattr(error, "option_name", "")))
        if moved:
            _fail(moved, error, 2)
        error.show()
        sys.exit(getattr(error, "exit_code", 2))
    _fail(f"{type(error).__name__}: {error}\nThis is a bug in shardmill; --debug shows where.", error, 1)


def _fail(text: str, error: Exception, status: int) -> NoReturn:
    if os.environ.get("SHARDMILL_DEBUG"):
        raise error
    say(f"error: {text}")
    sys.exit(status)
