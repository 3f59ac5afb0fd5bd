"""The open alerts and the messages about them that are still to be sent: what must not be lost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardmill.core.records import check_record, read_object
from shardmill.watch.alerts.rules import AlertCondition, RunMemory

RAISED, CLEARED = "raised", "cleared"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert from its beginning to its end; both are told under one id."""

    id: str
    run: str
    key: str
    rule: str
    text: str
    link: str
    raised_at: float


@dataclass(slots=True)
class AlertMessage:
    """What one target is told of an alert. It stays in the book until the target has it."""

    alert: Alert
    event: str
    target: str
    at: float
    faults: int = 0

    def to_json(self) -> dict[str, Any]:
        """What a command reads on its standard input."""
        told = {name: value for name, value in asdict(self.alert).items() if name != "key"}
        return {**told, "event": self.event, "at": self.at}


@dataclass(slots=True)
class AlertBook:
    """Compares what holds with what is open, run by run. It sends nothing and writes nothing."""

    runs: dict[str, RunMemory] = field(default_factory=dict)
    open: dict[str, Alert] = field(default_factory=dict)
    outbox: list[AlertMessage] = field(default_factory=list)

    def note(
        self, run: str, conditions: Iterable[AlertCondition], *, targets: Collection[str], link: str, now: float
    ) -> bool:
        """Raise what is new and clear what holds no more; True if there is something to send."""
        holds = {condition.key: condition for condition in conditions}
        known = {alert.key: alert for alert in self.open.values() if alert.run == run}
        before = len(self.outbox)
        for key, condition in holds.items():
            if key not in known:
                alert = Alert(_make_id(run, key, now), run, key, condition.rule, condition.text, link, now)
                self.open[alert.id] = alert
                self.outbox += [AlertMessage(alert, RAISED, target, now) for target in targets]
        for key, alert in known.items():
            if key not in holds:
                del self.open[alert.id]
                self.outbox += [AlertMessage(alert, CLEARED, target, now) for target in targets]
        return len(self.outbox) > before

    def forget(self, run: str, *, targets: Collection[str], now: float) -> None:
        """The run is gone: its alerts are cleared."""
        self.runs.pop(run, None)
        self.note(run, (), targets=targets, link="", now=now)

    def next_for(self, target: str) -> AlertMessage | None:
        """The next message for a target: one that failed lets others go first, but an end never precedes its start."""
        waiting = [message for message in self.outbox if message.target == target]
        unstarted = {message.alert.id for message in waiting if message.event == RAISED}
        ready = [m for m in waiting if m.event == RAISED or m.alert.id not in unstarted]
        return min(ready, key=lambda message: message.faults, default=None)

    def drop_strangers(self, targets: Collection[str]) -> int:
        """Forget messages for targets that the file no longer names; how many there were."""
        kept = [message for message in self.outbox if message.target in targets]
        dropped = len(self.outbox) - len(kept)
        self.outbox = kept
        return dropped

    def encode(self) -> bytes:
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, place: str) -> AlertBook:
        hint = "Delete it: what holds then is told once more."
        said: Mapping[str, Any] = read_object(data, place, hint)
        parts = {name: said.get(name) for name in ("runs", "open", "outbox")}
        return check_record(cls, {name: value for name, value in parts.items() if value is not None}, place, hint)


def _make_id(run: str, key: str, now: float) -> str:
    return hashlib.sha256(f"{run}\n{key}\n{now!r}".encode()).hexdigest()[:16]
