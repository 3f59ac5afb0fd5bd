"""Information about a run for people who watch it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_object, read_record
from shardmill.ledger.record import EditionSummary, RefreshState, RunForecast, encode
from shardmill.store import Store


class Notes:
    """Keeps forecast, report, receipt, beginning, what a refresh did and the engine's line about its workers.

    No run depends on them.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock

    def put_forecast(self, forecast: RunForecast) -> None:
        """Store the first forecast of a run; later ones would cover only what is left."""
        self._store.put_if_absent("forecast.json", encode(forecast))

    def forecast(self) -> RunForecast | None:
        try:
            return read_record(RunForecast, self._store.get("forecast.json"), "forecast.json")
        except (FileNotFoundError, CorruptState):
            return None

    def put_placement(self, line: str) -> None:
        """Store the engine's line about workers that have not started yet; "" if there is nothing to say."""
        self._store.put("placement.json", encode({"at": self._clock(), "line": line}))

    def placement(self) -> tuple[str, float]:
        """The engine's last line about its workers, and its time."""
        try:
            said = json.loads(self._store.get("placement.json"))
            return str(said["line"]), float(said["at"])
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            return "", 0.0

    def put_summary(self, summary: EditionSummary) -> None:
        """Store what the refresh that made this edition did."""
        self._store.put("summary.json", encode(summary))

    def summary(self) -> EditionSummary | None:
        """What the refresh that made this edition did; None if no refresh made it, or that is not known."""
        try:
            return read_record(EditionSummary, self._store.get("summary.json"), "summary.json")
        except (FileNotFoundError, CorruptState):
            return None

    def put_refreshes(self, state: RefreshState) -> None:
        """Store how the refreshes go, in the folder of the run itself."""
        self._store.put("refreshes.json", encode(state))

    def refreshes(self) -> RefreshState | None:
        """How the refreshes of the run in this folder go; None if it was never refreshed."""
        try:
            return read_record(RefreshState, self._store.get("refreshes.json"), "refreshes.json")
        except (FileNotFoundError, CorruptState):
            return None

    def put_report(self, report: dict[str, Any]) -> None:
        self._store.put("report.json", json.dumps(report, indent=2, sort_keys=True).encode())

    def put_sample(self, so_far: dict[str, Any]) -> None:
        """Store what a long verification has compared of its sample."""
        self._store.put("sample.json", encode(so_far))

    def sample(self) -> dict[str, Any] | None:
        """What an interrupted verification had compared; None if there is none, or it is damaged."""
        try:
            return read_object(self._store.get("sample.json"), "sample.json")
        except (FileNotFoundError, CorruptState):
            return None

    def drop_sample(self) -> None:
        self._store.delete("sample.json")

    def put_began(self, at: float) -> None:
        """Store when the run began, for its trace."""
        self._store.put_if_absent("trace.json", encode({"began": at}))

    def began(self) -> float | None:
        """When the run began; None if its trace was not asked for then."""
        try:
            return float(read_object(self._store.get("trace.json"), "trace.json")["began"])
        except (FileNotFoundError, CorruptState, ValueError, TypeError, KeyError):
            return None

    def report(self) -> dict[str, Any] | None:
        """The report of the last verification; None if there is none, or it is damaged."""
        try:
            return read_object(self._store.get("report.json"), "report.json")
        except (FileNotFoundError, CorruptState):
            return None

    def put_receipt(self, receipt: bytes) -> None:
        self._store.put("receipt.json", receipt)

    def receipt(self) -> bytes | None:
        """The receipt, as it was written; None if there is none."""
        try:
            return self._store.get("receipt.json")
        except FileNotFoundError:
            return None
