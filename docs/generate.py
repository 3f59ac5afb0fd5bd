"""Writes docs/cli.md from the command line's own help: `python -m docs.generate`; with --check it only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from shardmill.cli import app

PAGE = Path(__file__).parent / "cli.md"


def render() -> str:
    group: Any = typer.main.get_command(app)
    parts = ["# The command line\n\nGenerated from `--help` by `python -m docs.generate`.\n"]
    for name, command in _commands(group):
        parts.append(f"## shardmill {name}\n\n{command.help}\n")
        parts.append("| option | meaning |\n| --- | --- |")
        for parameter in command.params:
            if parameter.name == "help":
                continue
            flags = (
                ", ".join([*parameter.opts, *parameter.secondary_opts])
                if parameter.param_type_name == "option"
                else (parameter.metavar or parameter.name or "")
            )
            parts.append(f"| `{flags}` | {getattr(parameter, 'help', '') or ''} |")
        parts.append("")
    parts.append(STATUSES)
    return "\n".join(parts)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, those of groups too."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


STATUSES = """## Exit status

| status | meaning |
| --- | --- |
| 0 | done |
| 1 | failed, or not verified |
| 2 | wrong usage |
| 75 | try again: a worker was told to stop |
| 130 | interrupted; the same command resumes |
"""


def main() -> None:
    page = render()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page else "docs/cli.md is out of date: run python -m docs.generate")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
