"""A report as Markdown, for a ticket that takes text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardmill.core.console import clean
from shardmill.run.reports.account import Account
from shardmill.run.reports.sections import headline, sections
from shardmill.run.reports.shape import Chart, Grid

_LEVELS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
# What Markdown or HTML in it would take for a sign.
_SIGNS = re.compile(r"([\\`*_\[\]<>#|~&])")


def write_markdown(account: Account) -> str:
    lines = [f"# {_plain(account.run)}", "", f"**{account.verdict}** · {account.state}", ""]
    lines += _grid(Grid(tuple(name for name, _ in headline(account)), (tuple(v for _, v in headline(account)),)))
    for section in sections(account):
        lines += ["", f"## {section.title}", ""]
        for note in section.notes:
            lines += [_plain(note), ""]
        if section.facts:
            lines += [*_grid(Grid(("", ""), section.facts)), ""]
        for grid in section.grids:
            lines += [*_grid(grid), ""]
        lines += [line for chart in section.charts if not chart.bars for line in (_spark(chart), "")]
    return "\n".join(line for i, line in enumerate(lines) if line or lines[i - 1]).rstrip() + "\n"


def _grid(grid: Grid) -> list[str]:
    rule = ["---:" if column in grid.numbers else "---" for column in range(len(grid.header))]
    return [_row(map(_plain, grid.header)), _row(rule), *(_row(map(_plain, row)) for row in grid.rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spark(chart: Chart) -> str:
    """A line of blocks, with the highest value beside it."""
    step = max(1, -(-len(chart.values) // _WIDEST))
    means = [sum(part) / len(part) for i in range(0, len(chart.values), step) if (part := chart.values[i : i + step])]
    top = max(chart.values) or 1.0
    blocks = "".join(_LEVELS[min(7, int(8 * value / top))] for value in means)
    return f"{chart.title}: `{blocks}` at most {max(chart.values):,.3g} {chart.unit}".rstrip()


def _plain(text: str) -> str:
    return _SIGNS.sub(r"\\\1", clean(text))
