"""Hands each new reading of the watcher to the alerts."""

from __future__ import annotations

import threading

from shardmill.core.console import say
from shardmill.core.errors import ShardmillError
from shardmill.watch.alerts import AlertDesk
from shardmill.watch.alerts.rules import SeenRun
from shardmill.watch.monitor.watcher import Watcher


class AlertFeed:
    """Listens to a watcher until it is closed."""

    def __init__(self, watcher: Watcher, desk: AlertDesk) -> None:
        self._watcher, self._desk = watcher, desk
        self._told: dict[str, int] = {}
        self._lock = threading.Lock()
        self._end = watcher.listen(self._hear)
        self._hear()

    def close(self) -> None:
        self._end()

    def _hear(self) -> None:
        """A run that cannot be read keeps its alerts as they are; one that is gone has none."""
        with self._lock:
            try:
                seen = self._watcher.runs()
                for run in seen:
                    if run.status is not None and not run.trouble and self._told.get(run.key) != run.version:
                        self._told[run.key] = run.version
                        self._desk.look(run.key, SeenRun(run.status, run.proof))
                if not self._watcher.trouble:
                    self._desk.keep_only([run.key for run in seen if not run.gone])
            except ShardmillError as error:
                say(f"alerts: {error.message}")
