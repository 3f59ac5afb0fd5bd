"""What a run did over time: as its workers recorded it, and since then as it was seen from here."""

from __future__ import annotations

from shardmill.ledger import History, HistoryPoint, Ledger
from shardmill.run.status.past import read_past
from shardmill.run.status.state import Status


class Recorded:
    """The history of one run, from its folder, continued with each status that is read."""

    def __init__(self) -> None:
        self._written: list[HistoryPoint] = []
        self._live = History()
        self._last: Status | None = None

    def read(self, ledger: Ledger, status: Status) -> None:
        """Read what the workers recorded."""
        self._written = read_past(ledger, status)

    def add(self, status: Status) -> None:
        """Continue with what a status shows that was read after the one before, while the run is under way.

        A view has a history of its own.
        """
        last, self._last = self._last, status
        if last is None or last.state != "running" or status.at <= last.at or status.view_age_s is not None:
            return
        live = [worker for worker in status.workers if worker["live"]]
        uses = [float(worker["use"]) for worker in live if worker.get("use") is not None]
        self._live.add(
            HistoryPoint(
                at=status.at,
                seconds=status.at - last.at,
                # Rows of a shard that was given up are computed again.
                rows=max(0, status.rows - last.rows),
                tokens=max(0, status.tokens - last.tokens),
                tokens_out=max(0, status.tokens_out - last.tokens_out),
                memory_bytes=float(sum(worker["rss_bytes"] for worker in live)),
                device_bytes=float(sum(worker.get("device_bytes") or 0 for worker in live)),
                use=sum(uses) / len(uses) if uses else None,
            )
        )

    def points(self) -> tuple[HistoryPoint, ...]:
        until = self._written[-1].at if self._written else 0.0
        return (*self._written, *(point for point in self._live.points if point.at - point.seconds >= until))
