"""The command `shardmill`: all verbs together, and their exit statuses."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

import shardmill
from shardmill.cli.completion import install_completion, show_completion
from shardmill.cli.group import Verbs, main_group
from shardmill.core.console import say
from shardmill.core.dialect import set_dialect
from shardmill.core.errors import EXIT_TRY_AGAIN, ShardmillError, Terminated
from shardmill.plugins import find, names

_INTERRUPTED = 130

# Options that were renamed or moved: verb and old flag -> message.
_MOVED = {
    ("embed", "--to"): "`shardmill load` writes to a table; `shardmill embed` writes a run folder.",
    ("embed", "--table"): "`shardmill load` writes to a table; `shardmill embed` writes a run folder.",
    ("load", "--columns"): "--columns is --keep now.",
    ("split", "--workers"): "--workers is --chunks now: the number of chunks.",
}


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        print(shardmill.__version__)
        ctx.exit()


def _debug(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        os.environ["SHARDMILL_DEBUG"] = "1"


def _at_root(*flags: str, help: str, call: Any) -> click.Option:
    return click.Option([*flags], is_flag=True, is_eager=True, expose_value=False, callback=call, help=help)


app: Verbs = main_group(
    help="Run a model over every item of a dataset: split, run, lose nothing, prove the result.",
    params=[
        _at_root("--debug", help="Show tracebacks.", call=_debug),
        _at_root("--version", help="Print the version.", call=_print_version),
        _at_root("--install-completion", help="Complete commands and options in this shell.", call=install_completion),
        _at_root("--show-completion", help="Print what --install-completion adds.", call=show_completion),
    ],
)


def _terminate(*_: object) -> NoReturn:
    raise Terminated(EXIT_TRY_AGAIN)


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    set_dialect("command")
    # A task of the user's own may be in this folder, as it is for `python -m shardmill` and for every worker.
    sys.path.append("")
    try:
        status = app(standalone_mode=False, prog_name="shardmill")
    except ShardmillError as error:
        _fail(str(error), error, error.exit_status)
    except (KeyboardInterrupt, click.Abort):
        status = _INTERRUPTED
    except Exception as error:
        _usage(error)
    if status == _INTERRUPTED:
        say("Stopped. The same command resumes." if _resumes() else "Stopped.")
    sys.exit(status)


def _verb() -> str:
    """The verb that was typed."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _resumes() -> bool:
    try:
        verb = find("verbs", _verb())
    except ShardmillError:
        return False
    return verb is not None and bool(verb.resumes)


def _usage(error: Any) -> NoReturn:
    """Report an error of the command-line parser; any other exception is a bug of ours."""
    if isinstance(error, click.ClickException):
        moved = _MOVED.get((_verb(), getattr(error, "option_name", "")))
        if moved:
            _fail(moved, error, 2)
        if isinstance(error, click.NoSuchOption) and (others := _verbs_with(error.option_name)):
            _fail(f"{_verb()} has no option {error.option_name}. It is an option of {', '.join(others)}.", error, 2)
        error.show()
        sys.exit(error.exit_code)
    _fail(f"{type(error).__name__}: {error}\nThis is a bug in shardmill; --debug shows where.", error, 1)


def _verbs_with(flag: str) -> list[str]:
    """A few verbs that have an option, by its flag."""
    from shardmill.plan.options import declared

    found = []
    for name in names("verbs"):
        model = find("verbs", name).part("options")
        if any(
            flag in (each.about.flags or (each.flag,)) and each.about.only in ("", "command")
            for each in declared(model)
        ):
            found.append(name)
    return found[:3]


def _fail(text: str, error: Exception, status: int) -> NoReturn:
    if os.environ.get("SHARDMILL_DEBUG"):
        raise error
    say(f"error: {text}")
    sys.exit(status)
