"""`shardmill plugins`: what installed packages bring, and what shardmill has itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shardmill._version import __version__
from shardmill.core.console import print_json, say
from shardmill.plan.options import option
from shardmill.plan.shared import Printing
from shardmill.plugins import Plugin, SinkKind, SourceKind, check, installed, load_part
from shardmill.plugins.builtin import BUILTIN

if TYPE_CHECKING:
    from shardmill.run.request import Request


class PluginOptions(Printing):
    """What `plugins` takes."""

    with_own: bool = option(
        False, "Also list shardmill's own sources, sinks and engines.", flags=("--all",), only="command", common=True
    )


def show_plugins(request: Request) -> None:
    found = [check(plugin) for plugin in installed()]
    if request.options.with_own:
        ours = [(group, *each) for group in ("sources", "sinks", "engines") for each in BUILTIN[group].items()]
        found = [*(Plugin(*each, package="shardmill", version=__version__) for each in ours), *found]
    rows = [{**asdict(plugin), **_describe(plugin)} for plugin in found]
    if request.options.as_json:
        print_json(rows)
        return
    for row in rows:
        taken = " ".join(row["takes"]) + (", one machine" if row["reach"] == "machine" else "")
        fault = f"  cannot be used: {row['fault']}" if row["fault"] else ""
        by = f"{row['package']} {row['version']}"
        print(f"{row['group'].removesuffix('s'):<8} {row['name']:<20} {by:<24} {taken}{fault}".rstrip())
    if not rows:
        say("No installed package brings anything. How to write one: docs/plugins.md")


def _describe(plugin: Plugin) -> dict[str, Any]:
    """The suffixes or schemes of a source or sink, with the option that it is for, and what it reaches."""
    kind = None if plugin.fault else load_part(plugin.place)
    if isinstance(kind, SourceKind):
        return {"takes": [*kind.suffixes, *kind.schemes, *(["--query"] if kind.database else [])], "reach": kind.reach}
    if isinstance(kind, SinkKind):
        option = "--to" if kind.table else "--into" if kind.delivery else "--out"
        return {"takes": [option, *kind.schemes], "reach": kind.reach}
    return {"takes": [], "reach": ""}
