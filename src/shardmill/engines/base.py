"""The contract of an engine: it places workers and watches them. It never touches items."""

from __future__ import annotations

from typing import Protocol


class Placement(Protocol):
    """Workers that were placed."""

    def poll(self) -> bool:
        """Look after the workers; True while some are at work. Raises when they cannot go on."""
        ...

    def stop(self) -> None:
        """End all workers and wait for them; what they hold is given back."""
        ...


class Engine(Protocol):
    def start(self, run: str) -> Placement: ...
