"""Judges statuses, keeps the book on disk, and sends what is in it, each target on a thread of its own.

desk = AlertDesk(Path("alerts.toml"), "http://127.0.0.1:8080", page=lambda run: f"runs/{run}")
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardmill.core.console import say
from shardmill.core.errors import AlertNotSent, ShardmillError, UsageError
from shardmill.models.endpoints.patience import Patience
from shardmill.store.local import LocalStore
from shardmill.watch.alerts.book import AlertBook, AlertMessage
from shardmill.watch.alerts.file import AlertRules, read_alerts
from shardmill.watch.alerts.rules import SeenRun, judge
from shardmill.watch.alerts.targets import load_libraries, send

# A broken target is tried at least this often.
_LONGEST_PAUSE_S = 300.0
# What the rules remember is written this often even if there is nothing to tell.
_KEEP_EVERY_S = 60.0
_PARTING_S = 5.0


@dataclass(frozen=True, slots=True)
class TargetTrouble:
    """A target that does not take its messages: since when, why, and how many wait."""

    target: str
    since: float
    message: str
    waiting: int


class AlertDesk:
    """Used by one monitor at a time: `look` with every new status, `close` at the end.

    A message is in the book on disk before it is sent, and leaves it after it was. So it is sent at least once, and
    under the same id if the monitor dies in between. `page` is the path of a run's page at `address`.
    """

    def __init__(
        self,
        path: Path,
        address: str,
        page: Callable[[str], str],
        *,
        clock: Callable[[], float] = time.time,
        pause_s: float = 1.0,
    ) -> None:
        self._file, self._page, self._clock = read_alerts(path), page, clock
        self._targets, self._address = self._file.targets, (self._file.link or address).rstrip("/")
        load_libraries(self._targets.values())
        self._store, self._key = LocalStore(path.absolute().parent), f"{path.stem}.state.json"
        self._held = _hold(path)
        self._book, self._kept_at = self._read_book(), clock()
        self._patience = Patience(pause_s=pause_s)
        self._turn, self._ended = threading.Condition(), False
        self._troubles: dict[str, TargetTrouble] = {}
        if dropped := self._book.drop_strangers(self._targets):
            say(f"{path}: {dropped} waiting messages are for targets that it no longer names; they are dropped.")
        self._couriers = [
            threading.Thread(target=self._deliver_all, args=(name,), name=f"alerts {name}", daemon=True)
            for name in self._targets
        ]
        for courier in self._couriers:
            courier.start()

    def look(self, run: str, seen: SeenRun) -> None:
        """Judge a status; what is to be told of it is on disk when this returns."""
        with self._turn:
            conditions, memory = judge(self._file.rules, seen, self._book.runs.get(run))
            # A run that is started over is another one.
            conditions = [replace(each, key=f"{memory.generation}:{each.key}") for each in conditions]
            self._book.runs[run] = memory
            link = f"{self._address}/{self._page(run).lstrip('/')}"
            told = self._book.note(run, conditions, targets=self._targets, link=link, now=self._clock())
            if told or self._clock() - self._kept_at >= _KEEP_EVERY_S:
                self._keep()
            self._turn.notify_all()

    def keep_only(self, runs: Collection[str]) -> None:
        """Clear the alerts of runs that are no longer there."""
        with self._turn:
            gone = {*self._book.runs, *(alert.run for alert in self._book.open.values())} - set(runs)
            for run in gone:
                self._book.forget(run, targets=self._targets, now=self._clock())
            if gone:
                self._keep()
                self._turn.notify_all()

    def troubles(self) -> list[TargetTrouble]:
        """The targets that do not take their messages now."""
        with self._turn:
            return [replace(each, waiting=self._count(name)) for name, each in sorted(self._troubles.items())]

    def describe_troubles(self) -> list[str]:
        """The same for people, one line per target."""
        return [
            f"Alerts do not reach {each.target}: {each.message}; {each.waiting} wait and are sent again."
            for each in self.troubles()
        ]

    def open_alerts(self) -> list[dict[str, Any]]:
        """The alerts that hold now, the oldest first."""
        with self._turn:
            found = sorted(self._book.open.values(), key=lambda alert: alert.raised_at)
            return [{"id": a.id, "run": a.run, "rule": a.rule, "text": a.text, "raised_at": a.raised_at} for a in found]

    def count_open(self) -> dict[str, int]:
        """The number of alerts that hold, by rule; rules that are off are left out."""
        with self._turn:
            rules = [alert.rule for alert in self._book.open.values()]
        return {rule: rules.count(rule) for rule in AlertRules.model_fields if self._file.rules.is_on(rule)}

    def count_waiting(self) -> dict[str, int]:
        """The number of messages that each target has not taken yet."""
        with self._turn:
            return {name: self._count(name) for name in self._targets}

    def close(self) -> None:
        """Stop, and write the book. What is being sent has a moment to arrive; later it would be sent again."""
        with self._turn:
            self._ended = True
            self._turn.notify_all()
        until = time.monotonic() + _PARTING_S
        for courier in self._couriers:
            courier.join(max(0.0, until - time.monotonic()))
        with self._turn:
            self._keep()
        self._held.close()

    def _deliver_all(self, name: str) -> None:
        """The thread of one target. A broken target gets one message at a time, after longer and longer pauses."""
        faults = 0
        while (message := self._await_message(name, faults)) is not None:
            try:
                send(self._targets[name], message)
            except Exception as error:
                faults += 1
                known = isinstance(error, AlertNotSent)
                self._note_fault(message, str(error) if known else f"{type(error).__name__}: {error}")
            else:
                faults = 0
                self._note_sent(message)

    def _await_message(self, name: str, faults: int) -> AlertMessage | None:
        with self._turn:
            if faults:
                pause_s = self._patience.pause(faults, _LONGEST_PAUSE_S)
                self._turn.wait_for(lambda: self._ended, pause_s)
            self._turn.wait_for(lambda: self._ended or self._book.next_for(name) is not None)
            return None if self._ended else self._book.next_for(name)

    def _note_sent(self, message: AlertMessage) -> None:
        with self._turn:
            self._book.outbox.remove(message)
            if not self._ended:
                self._keep()
            if self._troubles.pop(message.target, None) is not None:
                say(f"alerts: {message.target} takes messages again.")

    def _note_fault(self, message: AlertMessage, reason: str) -> None:
        with self._turn:
            message.faults += 1
            known = self._troubles.get(message.target)
            if known is None:
                say(f"alerts: {message.target}: {reason}; it is tried again.")
            since = known.since if known is not None else self._clock()
            self._troubles[message.target] = TargetTrouble(message.target, since, reason, 0)

    def _count(self, name: str) -> int:
        return sum(1 for message in self._book.outbox if message.target == name)

    def _read_book(self) -> AlertBook:
        try:
            return AlertBook.decode(self._store.get(self._key), self._key)
        except FileNotFoundError:
            return AlertBook()

    def _keep(self) -> None:
        """Write the book. If the disk refuses, nothing stops: what is in memory is sent all the same."""
        try:
            self._store.put(self._key, self._book.encode())
            self._kept_at = self._clock()
        except ShardmillError as error:
            say(f"alerts: the state cannot be written: {error.message}")


def _hold(path: Path) -> Any:
    """A lock on the state: two monitors would overwrite each other's."""
    try:
        file = open(path.with_name(f"{path.stem}.state.lock"), "ab")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{path.parent}: no state can be written beside {path.name} ({error.strerror}).") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(
            f"{path}: another monitor sends its alerts.", hint="Stop that one, or give this one a file of its own."
        ) from error
    return file
