"""`shardmill plugins`: what installed packages bring."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from shardmill.core.console import print_json, say
from shardmill.plan.shared import Printing
from shardmill.plugins import check, installed

if TYPE_CHECKING:
    from shardmill.run.request import Request


class PluginOptions(Printing):
    """What `plugins` takes."""


def show_plugins(request: Request) -> None:
    found = [check(plugin) for plugin in installed()]
    if request.options.as_json:
        print_json([asdict(plugin) for plugin in found])
        return
    for plugin in found:
        fault = f"  cannot be used: {plugin.fault}" if plugin.fault else ""
        print(f"{plugin.group.removesuffix('s'):<8} {plugin.name:<20} {plugin.package} {plugin.version}{fault}")
    if not found:
        say("No installed package brings anything. How to write one: docs/plugins.md")
