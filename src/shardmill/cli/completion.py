"""Completion of verbs, options and their values in a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from shardmill.core.console import say
from shardmill.core.errors import UsageError

_VARIABLE = "_SHARDMILL_COMPLETE"
# Files that a shell reads at its start.
_STARTS = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/shardmill.fish"}


def show_completion(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Print the script that completes `shardmill` in this shell."""
    if wanted and not ctx.resilient_parsing:
        print(_script(ctx, _shell()))
        ctx.exit()


def install_completion(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Let this shell complete `shardmill` from its next start on."""
    if not wanted or ctx.resilient_parsing:
        return
    shell = _shell()
    file = Path.home() / _STARTS[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    line = _script(ctx, shell) if shell == "fish" else f'eval "$({_VARIABLE}={shell}_source shardmill)"'
    if not file.exists() or line not in file.read_text():
        with file.open("a") as opened:
            opened.write(f"\n{line}\n")
    say(f"Written to {file}. A new {shell} completes `shardmill`.")
    ctx.exit()


def _shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in _STARTS:
        raise UsageError(
            f"The shell {shell or 'is not known'!r}.", hint="Completion is for bash, zsh and fish: set SHELL."
        )
    return shell


def _script(ctx: click.Context, shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(ctx.command, {}, "shardmill", _VARIABLE).source()
