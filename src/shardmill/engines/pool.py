"""The engine `pool`: the run is left in a folder whose workers are already there, or come by themselves."""

from __future__ import annotations

from shardmill.core.console import say
from shardmill.core.devices import Device
from shardmill.core.dialect import shell_command
from shardmill.engines.base import check_options
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution


class PoolEngine:
    """Places nobody: workers that serve the folder (`shardmill work FOLDER`) find the run there and do all of it."""

    def __init__(self, execution: Execution) -> None:
        check_options("pool", execution.engine_options, ())
        self._kind = "cpu" if execution.device == "cpu" else "cuda"
        self._count = execution.workers or 1

    @property
    def devices(self) -> list[Device]:
        """As many as workers are expected; which devices they have is known once they come."""
        return [Device(self._kind, f"pool {self._kind}", 1, visible=str(i)) for i in range(self._count)]

    def start(self, run: str) -> PoolPlacement:
        return PoolPlacement(run)


class PoolPlacement:
    """A run that waits for the workers of its pool, or has them. They stay when this process ends."""

    def __init__(self, run: str) -> None:
        self._ledger = Ledger(run)
        self._shards = len(self._ledger.plan().shards)

    def poll(self) -> bool:
        return not self._ledger.commits.is_complete(self._shards)

    def leave(self) -> None:
        """Leave the run to the pool, as the user does."""
        url = self._ledger.url
        resume, stop = (shell_command(verb, url) for verb in ("resume", "stop"))
        say(f"The pool goes on with the run. Come back: {resume}   End it: {stop}")

    def stop(self) -> None:
        """Nobody was placed here; whether the run is wanted is in its folder."""

    def detach(self) -> None:
        """Nothing holds the workers here."""
