"""A run's progress as Ray metrics, for the Ray dashboard."""

from __future__ import annotations

from ray.util.metrics import Gauge

from shardmill.ledger import Ledger


class Gauges:
    def __init__(self, run: str) -> None:
        self._tags = {"run": run}
        self._done = Gauge("shardmill_shards_done", "Committed shards of a run.", ("run",))
        self._rows = Gauge("shardmill_rows", "Rows that a worker has finished.", ("run", "worker"))
        self._rate = Gauge("shardmill_rows_per_s", "Rows per second of a worker.", ("run", "worker"))

    def show(self, ledger: Ledger) -> None:
        self._done.set(len(ledger.commits.shards()), self._tags)
        for beat in ledger.workers.read():
            tags = {**self._tags, "worker": beat["id"]}
            self._rows.set(beat["rows"], tags)
            self._rate.set(beat["rows_per_s"], tags)
