"""The only progress bar. On a terminal it moves; in a log it prints a line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

_LOG_EVERY_S = 10.0


def console() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a message for the user on stderr; stdout is for data."""
    console().print(text, markup=False)


def duration(seconds: float | None) -> str:
    """Seconds in readable form.

    >>> duration(5), duration(75), duration(7384), duration(None)
    ('5 s', '1 min 15 s', '2 h 03 min', '?')
    """
    if seconds is None:
        return "?"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "shard"), count(1200, "shard")
    ('1 shard', '1,200 shards')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


class _Note(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")))


class Bar:
    """Progress of one long operation, from 0 to 1.

    >>> with Bar("merging", quiet=True) as bar:
    ...     bar.at(0.5, "half")
    """

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._quiet = quiet
        self._console = console()
        self._moving = self._console.is_terminal and not quiet
        self._said_at = self._began = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>5.1f}%"), _Note())
        self._progress = Progress(*columns, console=self._console, transient=False)
        self._task = self._progress.add_task(label, total=1.0, note="")

    def __enter__(self) -> Bar:
        if self._moving:
            self._progress.start()
        return self

    def at(self, share: float, note: str = "") -> None:
        self._progress.update(self._task, completed=share, note=note)
        now = time.monotonic()
        if not self._moving and not self._quiet and now - self._said_at >= _LOG_EVERY_S:
            self._said_at = now
            self._console.print(f"{self._label} {100 * share:.1f}% {note}", markup=False)

    def count(self, done: int, total: int, unit: str) -> None:
        """Progress as a count, with its rate and the time left."""
        took = time.monotonic() - self._began
        rate = done / took if took else 0.0
        left = (total - done) / rate if rate else None
        self.at(done / total if total else 1.0, f"{done:,} {unit} · {rate:,.0f}/s · {duration(left)} left")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._moving:
            self._progress.stop()
