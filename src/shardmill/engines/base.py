"""The contract of an engine: it places workers and watches them. It never touches items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from shardmill.devices import Device
from shardmill.errors import SpecError, nearest


class Placement(Protocol):
    """Workers that were placed. One may have a `note`: what the bar says of them besides."""

    def poll(self) -> bool:
        """Look after the workers; True while some are at work. Raises when they cannot go on."""
        ...

    def stop(self) -> None:
        """End all workers and wait for them; what they hold is given back."""
        ...


class Engine(Protocol):
    @property
    def devices(self) -> Sequence[Device]:
        """What its workers run on, as far as that is known before they do: shards are cut for so many."""
        ...

    def start(self, run: str) -> Placement: ...


def check_options(engine: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse an option that an engine does not have."""
    known = sorted(known)
    for name in given:
        if name not in known:
            raise SpecError(
                f"The engine {engine!r} has no option {name!r}.", hint=nearest(name, known) if known else "It has none."
            )
