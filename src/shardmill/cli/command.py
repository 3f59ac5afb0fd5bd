"""The help of a verb: a sentence, examples, options in groups; and how a verb gets shared options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

from shardmill.cli.options import GROUPS, OPTIONS, OTHER
from shardmill.errors import UsageError


class Verb(TyperCommand):
    """A command whose help shows examples, then options in groups. It takes each option with one value once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        once = [p for p in order if isinstance(p, TyperOption) and not (p.multiple or p.is_flag or p.count)]
        if again := next((p for i, p in enumerate(once) if p in once[:i]), None):
            raise UsageError(f"{again.opts[0]} is given twice.", hint="Give it once; a list is written with commas.")
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, records in grouped(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Print nothing: examples are shown below the sentence, not at the end."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        if lines := examples(self):
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class Verbs(TyperGroup):
    """A group of commands, listed by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        families: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            family = getattr(command, "rich_help_panel", None) or "Commands"
            families.setdefault(str(family), []).append((name, command.get_short_help_str(limit=90)))
        for family, rows in families.items():
            with formatter.section(family):
                formatter.write_dl(rows)


def grouped(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Flags and help of each option, by group: shared groups in their order, then a verb's own."""
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in GROUPS}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        flags, meaning = record
        if parameter.param_type_name == "argument":
            flags = parameter.metavar or flags
        groups.setdefault(str(getattr(parameter, "rich_help_panel", None) or OTHER), []).append((flags, meaning))
    others = groups.pop(OTHER, [])
    return {title: records for title, records in {**groups, OTHER: others}.items() if records}


def examples(command: Any) -> list[str]:
    """The example command lines of a verb."""
    return (command.epilog or "").splitlines()


def takes(
    *names: str, own: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options from `OPTIONS` to a verb, and others of its own; it receives them as `**options`."""
    declared = {**{name: OPTIONS[name] for name in names}, **own}

    def adorn(verb: Callable[..., None]) -> Callable[..., None]:
        fixed = [p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in declared.items()
        ]
        every = _in_order([*shared, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in fixed)])

        def call(**values: Any) -> None:
            verb(**values)

        call.__name__, call.__doc__ = verb.__name__, verb.__doc__
        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in every}
        return call

    return adorn


def _in_order(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Put the argument `source` first: arguments without a flag are read from left to right."""
    every = list(parameters)
    return [*(p for p in every if p.name == "source"), *(p for p in every if p.name != "source")]


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # Half a surrogate, as in the name of a file on a disk of another encoding, can only be written escaped.
    print(text.encode("utf-8", "backslashreplace").decode())
