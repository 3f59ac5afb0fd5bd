"""The door: verbs, sources, sinks and engines by name: shardmill's own, and those that installed packages bring.

A package names its declarations as entry points of the groups `shardmill.verbs`, `shardmill.sources`,
`shardmill.sinks` and `shardmill.engines`. Names of shardmill's own are found without looking at what is installed.

Design: docs/design/verbs-and-options.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from shardmill.core.errors import MissingExtra, UsageError
from shardmill.plugins.base import EngineKind, SinkKind, SourceKind, Verb, load_part
from shardmill.plugins.builtin import BUILTIN

__all__ = [
    "EngineKind",
    "Group",
    "Plugin",
    "SinkKind",
    "SourceKind",
    "Verb",
    "check",
    "check_packages",
    "declared",
    "find",
    "find_brought",
    "find_by_scheme",
    "find_verb",
    "installed",
    "load_part",
    "names",
    "packages_of",
    "schemes",
]

Group = Literal["verbs", "sources", "sinks", "engines"]
_GROUPS: tuple[Group, ...] = ("verbs", "sources", "sinks", "engines")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A name that an installed package brings, and where it comes from. `fault` says why it cannot be used."""

    group: str
    name: str
    place: str
    package: str
    version: str
    fault: str = ""


def find(group: Group, name: str) -> Any:
    """The declaration of a name; None if there is none. Raises UsageError if its package is broken."""
    if place := BUILTIN[group].get(name):
        return load_part(place)
    return find_brought(group, name)


def find_brought(group: Group, name: str) -> Any:
    """The declaration of a name that an installed package brings; None if it is shardmill's own, or nobody's."""
    for plugin in installed():
        if (plugin.group, plugin.name) == (group, name) and name not in BUILTIN[group]:
            return _load(plugin)
    return None


def find_verb(task: str) -> Verb:
    """What is declared of a task; a task of the user's own, package.module:Class, has the defaults."""
    found = None if ":" in task else find("verbs", task)
    return found if found is not None else Verb(name=task, runs_code=":" in task)


def names(group: Group) -> list[str]:
    """All names of a group that can be used: shardmill's own first."""
    return [*BUILTIN[group], *(plugin.name for plugin in installed() if plugin.group == group and not plugin.fault)]


def declared(group: Group) -> tuple[Any, ...]:
    """All declarations of a group, shardmill's own first. One that cannot be imported is left out, with a warning."""
    return _declared(group, tuple(names(group)), installed())


@cache
def _declared(group: Group, known: tuple[str, ...], plugins: tuple[Plugin, ...]) -> tuple[Any, ...]:
    from shardmill.core.console import say

    found = []
    for name in known:
        try:
            found.append(find(group, name))
        except UsageError as error:
            say(f"warning: {error.message}")
    return tuple(found)


def schemes(group: Literal["sources", "sinks"]) -> list[str]:
    """What addresses of sources or sinks begin with."""
    return list(dict.fromkeys(scheme for kind in declared(group) for scheme in kind.schemes))


def find_by_scheme(group: Literal["sources", "sinks"], address: str) -> Any:
    """The source or sink whose scheme an address begins with; None if there is none.

    Schemes of shardmill's own are found without looking at what is installed. Raises UsageError if several packages
    bring the scheme.

    >>> find_by_scheme("sources", "range:0:10").name
    'range'
    """
    if ":" not in address:
        return None
    for place in BUILTIN[group].values():
        if address.startswith((kind := load_part(place)).schemes):
            return kind
    found = [kind for kind in declared(group) if address.startswith(kind.schemes)]
    if len(found) > 1:
        scheme = next(scheme for scheme in found[0].schemes if address.startswith(scheme))
        brought = [f"{p.package} {p.version}" for kind in found for p in installed() if _brings(p, group, kind.name)]
        raise UsageError(
            f"The scheme {scheme!r} is that of several {group}: {', '.join(brought)}.",
            hint=f"Remove all but one of them: pip uninstall {brought[0].partition(' ')[0]}",
        )
    return found[0] if found else None


def _brings(plugin: Plugin, group: str, name: str) -> bool:
    return (plugin.group, plugin.name) == (group, name)


@cache
def installed() -> tuple[Plugin, ...]:
    """What installed packages bring, in the order of their names. Nothing of it is imported."""
    found = sorted(_entries(), key=lambda plugin: (plugin.group, plugin.name, plugin.package))
    several = {
        (p.group, p.name) for i, p in enumerate(found) for o in found[:i] if (o.group, o.name) == (p.group, p.name)
    }
    made = []
    for plugin in found:
        fault = ""
        if plugin.name in BUILTIN[plugin.group]:
            fault = "shardmill has one of this name"
        elif (plugin.group, plugin.name) in several:
            others = [o.package for o in found if (o.group, o.name) == (plugin.group, plugin.name)]
            fault = f"several packages have one of this name: {', '.join(others)}"
        made.append(Plugin(plugin.group, plugin.name, plugin.place, plugin.package, plugin.version, fault))
    return tuple(made)


def _entries() -> Iterator[Plugin]:
    from importlib.metadata import entry_points

    for group in _GROUPS:
        for entry in entry_points(group=f"shardmill.{group}"):
            about = entry.dist
            name, version = (about.name, about.version) if about is not None else ("", "")
            yield Plugin(group, entry.name, entry.value, name, version)


def packages_of(used: Iterable[tuple[Group, str]]) -> dict[str, str]:
    """The packages that bring these names, with their versions; shardmill's own names are left out.

    >>> packages_of([("verbs", "embed")])
    {}
    """
    wanted = {(group, name) for group, name in used if name not in BUILTIN[group] and ":" not in name}
    if not wanted:
        return {}
    return {f"{p.group}/{p.name}": f"{p.package} {p.version}" for p in installed() if (p.group, p.name) in wanted}


def check_packages(needed: Mapping[str, str]) -> None:
    """Refuse to go on without the packages that a run was planned with, or with other versions of them."""
    for what, wanted in needed.items():
        group, _, name = what.partition("/")
        here = next((f"{p.package} {p.version}" for p in installed() if (p.group, p.name) == (group, name)), "")
        if here != wanted:
            package, _, version = wanted.partition(" ")
            state = f"and this machine has {here}" if here else "which is not installed here"
            raise MissingExtra(
                f"The run needs the {group.removesuffix('s')} {name!r} of {wanted}, {state}.",
                hint=f"Install it with: pip install {package}=={version}",
            )


def check(plugin: Plugin) -> Plugin:
    """A plug-in with its fault, after an attempt to import it and to find it by its schemes."""
    try:
        kind = _load(plugin)
        for scheme in getattr(kind, "schemes", ()):
            if find_by_scheme(plugin.group, scheme) is not kind:  # type: ignore[arg-type]
                return replace(plugin, fault=f"shardmill has a source or sink with its scheme {scheme!r}")
    except UsageError as error:
        return replace(plugin, fault=plugin.fault or error.message)
    return plugin


def _load(plugin: Plugin) -> Any:
    """Import a declaration. A package that fails costs its own names, and says so in one line."""
    if plugin.fault:
        raise UsageError(f"The name {plugin.name!r} cannot be used: {plugin.fault}.", hint="See: shardmill plugins")
    try:
        return load_part(plugin.place)
    except Exception as error:
        raise UsageError(
            f"{plugin.name!r} of the package {plugin.package} {plugin.version} cannot be imported: "
            f"{type(error).__name__}: {error}.",
            hint=f"Repair or remove it: pip uninstall {plugin.package}",
        ) from error
