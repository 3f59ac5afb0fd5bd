"""A run's progress among Ray's own metrics, for its dashboard."""

from __future__ import annotations

from ray.util.metrics import Gauge

from shardmill.ledger import Ledger


class Gauges:
    def __init__(self, run: str) -> None:
        self._tags = {"run": run}
        self._done = Gauge("shardmill_shards_done", "Committed shards of a run.", ("run",))
        self._rows = Gauge("shardmill_rows", "Rows that a worker has done.", ("run", "worker"))
        self._rate = Gauge("shardmill_rows_per_s", "Rows a worker does in a second.", ("run", "worker"))

    def show(self, ledger: Ledger) -> None:
        self._done.set(len(ledger.commits.shards()), self._tags)
        for beat in ledger.workers.read():
            tags = {**self._tags, "worker": beat["id"]}
            self._rows.set(beat["rows"], tags)
            self._rate.set(beat["rows_per_s"], tags)
