"""Writes docs/cli.md from the command line's own help and docs/api.md from the docstrings of the public names.

python -m docs.generate            # writes both
python -m docs.generate --check    # only compares
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import typer

import shardmill
from shardmill.cli import app
from shardmill.cli.command import examples, grouped

FOLDER = Path(__file__).parent


def render_cli() -> str:
    group: Any = typer.main.get_command(app)
    parts = ["# The command line\n\nGenerated from `--help` by `python -m docs.generate`.\n"]
    for name, command in _commands(group):
        parts.append(f"## shardmill {name}\n\n{inspect.cleandoc(command.help)}\n")
        if lines := examples(command):
            parts.append("\n".join(["```", *lines, "```", ""]))
        context = command.context_class(command, info_name=name)
        for title, records in grouped(command, context).items():
            parts.append(f"| {title} | |\n| --- | --- |")
            parts += [f"| `{_cell(flags)}` | {_cell(meaning)} |" for flags, meaning in records if flags != "--help"]
            parts.append("")
    parts.append(STATUSES)
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, those of groups too, in the order of the help."""
    for name, command in group.commands.items():
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
| 69 | try again elsewhere: the workers could not run where they were placed |
| 74 | try again: a store, a source, a database, the model hub or a cluster did not answer; the same command resumes |
| 75 | try again: a worker was told to stop |
| 130 | interrupted; the same command resumes |
"""

INTRODUCTION = """# From Python

Generated from docstrings by `python -m docs.generate`. Everything here is imported from `shardmill`; options mean what
the options of the same name mean on [the command line](cli.md).
"""


def render_api() -> str:
    parts = [INTRODUCTION]
    for name in sorted((n for n in shardmill.__all__ if not n.startswith("__")), key=lambda n: (n[0].isupper(), n)):
        thing = getattr(shardmill, name)
        parts.append(f"## {name}\n")
        if inspect.isclass(thing):
            parts += [_text(thing), *_members(thing)]
        else:
            parts += [_signature(name, thing), _text(thing), *_options(thing)]
    return "\n".join(parts)


def _text(thing: Any) -> str:
    """A docstring as Markdown: indented or doctest lines as code, the rest as it is."""
    blocks = []
    for block in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        is_code = block.startswith((">>>", "import ")) or ("shardmill." in block and "(" in block and "\n" not in block)
        blocks.append(f"```python\n{block}\n```" if is_code else block)
    return "\n\n".join(blocks) + "\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    shown = [_parameter(p) for p in parameters]
    named = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if named is not None:
        shown.insert(named, "*")
    return f"```python\n{name}({', '.join(shown)})\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    """A parameter with its default as source code has it; a function as default is only hinted at."""
    bare = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    if parameter.default is parameter.empty:
        return bare
    default = "…" if callable(parameter.default) else json.dumps(parameter.default)
    return f"{bare}={ {'null': 'None', 'true': 'True', 'false': 'False'}.get(default, default) }"


def _options(function: Callable[..., Any]) -> Iterator[str]:
    """The names of `**options`, where a function takes them."""
    for hint in get_type_hints(function).values():
        if get_origin(hint) is Unpack:
            (options,) = get_args(hint)
            yield f"{inspect.cleandoc(options.__doc__)}\n"
            yield _listed("Options", options.__annotations__)


def _members(kind: type) -> Iterator[str]:
    fields = getattr(kind, "model_fields", {})
    if fields:
        yield _listed("Fields", fields)
    for name, member in vars(kind).items():
        if not name.startswith(("_", "model_")) and inspect.isfunction(member) and member.__doc__:
            yield f"### {kind.__name__}.{name}\n"
            yield _signature(name, member).replace("(self, ", "(").replace("(self)", "()")
            yield _text(member)


def _listed(title: str, names: Iterable[str]) -> str:
    return textwrap.fill(f"{title}: {', '.join(f'`{name}`' for name in names)}.", 118) + "\n"


PAGES = {"cli.md": render_cli, "api.md": render_api}


def main() -> None:
    for name, render in PAGES.items():
        page = render()
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(page)
        elif (FOLDER / name).read_text() != page:
            sys.exit(f"docs/{name} is out of date: run python -m docs.generate")


if __name__ == "__main__":
    main()
