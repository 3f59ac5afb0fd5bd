"""Prints what the doctor found."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from shardmill.core.console import clean, count, print_json
from shardmill.core.errors import EXIT_FAILED
from shardmill.verbs.doctor.checks import Finding, examine
from shardmill.verbs.doctor.machine import look
from shardmill.verbs.doctor.places import examine_place

if TYPE_CHECKING:
    from shardmill.run.request import Request

_MARKS = {"ok": "[green]ok  [/]", "absent": "--  ", "wrong": "[red]FAIL[/]"}


def start(request: Request) -> None:
    found = [*examine(look()), *map(examine_place, request.options.places)]
    wrong = [each for each in found if each.state == "wrong"]
    if request.options.as_json:
        print_json({"fine": not wrong, "findings": [asdict(each) for each in found]})
    else:
        _show(found, len(wrong))
    if wrong:
        raise SystemExit(EXIT_FAILED)


def _show(found: list[Finding], wrong: int) -> None:
    screen = Console(highlight=False, soft_wrap=True)
    for each in found:
        screen.print(f"  {_MARKS[each.state]} ", end="")
        screen.print(f"{each.name:<10} {clean(each.seen)}", markup=False)
        if each.fix:
            screen.print(f"{'':<18}{clean(each.fix)}", markup=False)
    screen.print(f"{count(wrong, 'thing')} to repair." if wrong else "All is fine.")
