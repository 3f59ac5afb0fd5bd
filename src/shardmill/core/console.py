"""The only progress bar: it moves on a terminal, is a card in a notebook and a line every few seconds in a log."""

from __future__ import annotations

import html
import importlib
import json
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

_LOG_EVERY_S = 10.0
_CARD_EVERY_S = 0.25
# The longest line of a card: names and reasons come from the data.
_CARD_WIDTH = 200
# Colours are those of the page around it, light or dark.
_CARD = (
    "border: 1px solid; border-radius: 6px; padding: 0.5em 1em; max-width: 44em; "
    "font-family: system-ui, sans-serif; line-height: 1.5"
)
_CELL = "color: inherit; text-align: left; vertical-align: top; padding: 0 1em 0 0; background: none; border: 0"


def console() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a message for the user on stderr; stdout is for data."""
    console().print(text, markup=False)


def print_json(value: Any) -> None:
    """Print data as JSON on stdout."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # Half a surrogate, as in the name of a file on a disk of another encoding, can only be written escaped.
    print(text.encode("utf-8", "backslashreplace").decode())


def print_checks(checks: Iterable[tuple[bool, str, str]], *below: str) -> None:
    """Print whether each check passed, its name and what was seen; then the lines below."""
    out = Console(highlight=False, soft_wrap=True)
    for ok, name, seen in checks:
        out.print(f"  [{'green' if ok else 'red'}]{'ok  ' if ok else 'FAIL'}[/] ", end="")
        out.print(f"{name:<10} {seen}", markup=False)
    for line in below:
        out.print(line, markup=False)


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


def clean(text: str) -> str:
    """A text from data, safe to show: what controls a terminal or the direction of writing is shown as a mark.

    >>> clean("a\\x1b[31mb")
    'a\ufffd[31mb'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def card(title: str, share: float, lines: Iterable[tuple[str, str]]) -> str:
    """Progress as a piece of HTML, without script and without anything to fetch: a title, a bar, names and values."""
    every = list(lines)
    named = any(name for name, _ in every)
    cells = "".join(
        "<tr>"
        + (f'<th scope="row" style="{_CELL}">{_safe(name)}</th>' if named else "")
        + f'<td style="{_CELL}">{_safe(value)}</td></tr>'
        for name, value in every
    )
    percent = f"{100 * share:.1f}%"
    return (
        f'<div style="{_CARD}"><strong>{_safe(title)}</strong><br>'
        f'<progress value="{share:.4f}" max="1" style="width: 20em" aria-label="done">{percent}</progress> {percent}'
        f'<table style="color: inherit; border-collapse: collapse; margin: 0">{cells}</table></div>'
    )


def _safe(text: str) -> str:
    return html.escape(clean(text if len(text) <= _CARD_WIDTH else text[: _CARD_WIDTH - 1] + "…"))


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def is_quiet(quiet: bool | None) -> bool:
    """Whether nothing is shown: as it was asked for and, if it was not, unless this is a notebook."""
    return not is_notebook() if quiet is None else quiet


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
        self._card: Any = None
        self._in_notebook = not quiet and is_notebook()
        self._moving = self._console.is_terminal and not quiet and not self._in_notebook
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
        if self._in_notebook:
            if self._card is None or now - self._said_at >= _CARD_EVERY_S or share >= 1:
                self._said_at = now
                self._show(share, note)
        elif not self._moving and not self._quiet and now - self._said_at >= _LOG_EVERY_S:
            self._said_at = now
            self._console.print(f"{self._label} {100 * share:.1f}% {note}", markup=False)

    def _show(self, share: float, note: str) -> None:
        """Show the card, where the one before it was."""
        notebook: Any = importlib.import_module("IPython.display")
        shown = notebook.HTML(card(self._label, share, [("", note)]))
        if self._card is None:
            self._card = notebook.display(shown, display_id=True)
        else:
            self._card.update(shown)

    def count(self, done: int, total: int, unit: str) -> None:
        """Progress as a count, with its rate and the time left."""
        took = time.monotonic() - self._began
        rate = done / took if took else 0.0
        left = (total - done) / rate if rate else None
        self.at(done / total if total else 1.0, f"{done:,} {unit} · {rate:,.0f}/s · {duration(left)} left")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._moving:
            self._progress.stop()
