"""The contract of an engine: it places workers and watches them. It never touches items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, nearest


class Placement(Protocol):
    """Workers that were placed. An optional attribute `note` adds a text to the progress bar."""

    def poll(self) -> bool:
        """Check the workers; True while some are running. Raises if the run cannot continue."""
        ...

    def stop(self) -> None:
        """End all workers and wait for them; their leases are released."""
        ...

    # An engine whose workers can be left on their own also has `detach`: it returns once they need this process no
    # more. A later placement on the same run adopts them. One whose workers go on if the user interrupts the command
    # has `leave`, which is called instead of `stop`, and says how to come back.


class Engine(Protocol):
    @property
    def devices(self) -> Sequence[Device]:
        """The devices of its workers, as far as known before they start; their number sets the size of shards."""
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
