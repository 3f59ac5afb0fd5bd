"""The verbs in their families. Lists read declarations alone; a verb's options are imported when it is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from shardmill.core.console import say
from shardmill.core.errors import UsageError, nearest
from shardmill.plugins import Verb, find, names
from shardmill.plugins.base import MACHINES


class Verbs(click.Group):
    """All verbs, or those of a group such as `bench`. A verb is imported when it is called."""

    def __init__(self, prefix: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys(name.removeprefix(self._prefix).partition(" ")[0] for name in self._names()))

    def _names(self) -> Iterator[str]:
        return (name for name in names("verbs") if name.startswith(self._prefix))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        whole = self._prefix + name
        if whole in self._names():
            from shardmill.cli.command import VerbCommand

            return VerbCommand(find("verbs", whole))
        if any(each.startswith(f"{whole} ") for each in self._names()):
            return Verbs(f"{whole} ", name=name, help=_GROUPS.get(whole, ""), no_args_is_help=True)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(
                f"There is no verb {self._prefix}{args[0]}.", hint=nearest(args[0], self.list_commands(ctx))
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        families: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            whole = self._prefix + name
            try:
                family, summary = _summary(whole)
            except UsageError as error:
                say(f"warning: {error.message}")
                continue
            if family:
                families.setdefault(family, []).append((name, summary))
        for family, rows in families.items():
            with formatter.section(family):
                formatter.write_dl(rows)


# Groups of verbs, and what they are for.
_GROUPS = {
    "bench": "Measure this machine.",
    "hosts": "Check, stop and clean the hosts of --engine ssh.",
    "kubernetes": "Render and check what --engine kubernetes, argo and pools apply to a cluster.",
}


def _summary(name: str) -> tuple[str, str]:
    """The family of a verb or of a group of verbs, and its sentence."""
    if name in _GROUPS:
        return MACHINES, _GROUPS[name]
    verb: Verb = find("verbs", name)
    return "" if verb.hidden else verb.family, verb.summary


def main_group(**settings: Any) -> Verbs:
    """The group of all verbs."""
    return Verbs(name="shardmill", no_args_is_help=True, **settings)
