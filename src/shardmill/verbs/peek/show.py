"""Prints what a look at a source found."""

from __future__ import annotations

from typing import Any

from shardmill.core.console import clean, count, print_json
from shardmill.run.request import Request
from shardmill.verbs.peek.look import Peek

_LONGEST = 300


def show(request: Request, found: Peek) -> None:
    """Print the items, then the columns, counts, lengths and languages."""
    if request.options.as_json:
        print_json(found.to_json())
        return
    from rich.console import Console
    from rich.table import Table

    screen = Console(soft_wrap=True)
    for item in found.shown:
        screen.print(_spell(item), markup=False, highlight=False)
    table = Table(show_header=False, box=None)
    table.add_row("source", f"{count(found.files, 'file')} of {found.format}, {found.bytes:,} bytes")
    table.add_row("columns", ", ".join(f"{clean(name)} {kind}" for name, kind in found.columns.items()))
    table.add_row("items", found.count())
    for each in found.lengths:
        table.add_row(clean(each.name), each.in_a_line())
    if found.bad:
        table.add_row("bad rows", f"{100 * found.bad:.1f} % of {found.sampled:,} sampled items")
    if found.languages:
        named = ", ".join(f"{name} {100 * share:.0f} %" for name, share in list(found.languages.items())[:8])
        table.add_row("languages", named)
    screen.print(table)


def _spell(item: dict[str, Any]) -> str:
    """An item in a line: its number, its columns, and its text at the end."""
    columns = {name: value for name, value in item.items() if name not in ("row", "text")}
    named = "  ".join(f"{name}={_short(value)}" for name, value in columns.items())
    return "  ".join(part for part in (f"{item['row']:>6}", named, _short(item.get("text", ""))) if part.strip())


def _short(value: Any) -> str:
    text = clean(" ".join(str(value).split()))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
