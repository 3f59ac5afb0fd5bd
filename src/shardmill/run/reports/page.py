"""A report as one HTML page: no script, no request, light and dark, ready to print. What comes from data is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from shardmill.core.console import clean
from shardmill.run.reports.account import Account
from shardmill.run.reports.sections import headline, sections
from shardmill.run.reports.shape import Chart, Grid, Points, Section

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 150, 72, 20, 8
_VERDICTS = ("passed", "FAILED")
# The most texts under a chart, and the width of a letter there.
_MOST_LABELS, _LETTER = 10, 6.2

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --line: #d9dce1; --paper: #fff; --mark: #2f6fbd;
  --good: #1b7f3c; --bad: #b3261e; --wait: #8a5a00; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #a9adb5; --line: #3a3f47;
  --paper: #16181c; --mark: #7ab0ee; --good: #5fce86; --bad: #ff8f86; --wait: #e6b450; } }
body { margin: 0 auto; max-width: 54rem; padding: 2rem 1.25rem 4rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
p { margin: .35rem 0; }
.verdict { font-weight: 600; color: var(--wait); }
.verdict.verified, .passed { color: var(--good); }
.verdict.failed, .FAILED { color: var(--bad); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .75rem; margin: 1.25rem 0 0; }
.tiles div { overflow-wrap: anywhere; border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; }
.tiles dt { color: var(--soft); font-size: .82rem; }
.tiles dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .28rem .75rem .28rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.facts th { width: min(14rem, 40%); }
.wide { overflow-x: auto; }
@media screen { .wide th, .wide td { overflow-wrap: break-word; max-width: 18rem; } }
figure { margin: 1rem 0; break-inside: avoid; }
figcaption { color: var(--soft); font-size: .88rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 11px; }
svg .axis { stroke: var(--line); }
svg .data { stroke: var(--mark); fill: none; stroke-width: 1.5; stroke-linejoin: round; }
svg .area { fill: var(--mark); opacity: .14; }
svg rect { fill: var(--mark); }
svg circle { fill: var(--mark); opacity: .6; }
@media print { body { max-width: none; padding: 0 1px; font-size: 11pt; } h2, p, thead { break-after: avoid; }
  tr, figure { break-inside: avoid; } tr:nth-child(2), tr:nth-last-child(-n+2) { break-before: avoid; }
  .tiles { grid-template-columns: repeat(5, 1fr); } .tiles div { padding: .5rem; } .tiles dd { font-size: 1.1rem; } }
"""


def write_page(account: Account) -> str:
    word = "verified" if account.verdict == "verified" else "failed" if "failed" in account.verdict else ""
    below = f'<span class="verdict {word}">{_text(account.verdict)}</span> · {_text(account.state)}'
    return _write(account.run, below, headline(account), sections(account))


def write_sections(title: str, below: str, figures: Sequence[tuple[str, str]], parts: Sequence[Section]) -> str:
    """A page of its own: a title, a line below it, figures with their names, and sections."""
    return _write(title, _text(below), figures, parts)


def _write(title: str, below: str, figures: Sequence[tuple[str, str]], parts: Sequence[Section]) -> str:
    title = _text(title)
    tiles = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in figures)
    body = "".join(map(_section, parts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1><bdi>{title}</bdi></h1>\n<p>{below}</p>\n<dl class="tiles">{tiles}</dl>\n'
        f"{body}</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    notes = "".join(f"<p>{_text(note)}</p>\n" for note in section.notes)
    facts = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td><bdi>{_text(value)}</bdi></td></tr>\n'
        for name, value in section.facts
    )
    facts = f'<table class="facts">\n{facts}</table>\n' if facts else ""
    charts = [*map(_chart, section.charts), *map(_points, section.points)]
    parts = [notes, facts, *charts, *map(_grid, section.grids)]
    return f"<section>\n<h2>{_text(section.title)}</h2>\n{''.join(parts)}</section>\n"


def _grid(grid: Grid) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        kinds = ["number" if i in grid.numbers else text if text in _VERDICTS else "" for i, text in enumerate(row)]
        opened = (f'<{tag} class="{kind}">' if kind else f"<{tag}>" for kind in kinds)
        return "".join(f"{start}<bdi>{_text(text)}</bdi></{tag}>" for start, text in zip(opened, row, strict=True))

    head = cells("th", grid.header)
    rows = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in grid.rows)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
    return f'<div class="wide" tabindex="0">\n{table}</div>\n'


def _chart(chart: Chart) -> str:
    top = max(chart.values) or 1.0
    width, height = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP
    base = _TOP + height
    highest = f"{top:,.3g} {chart.unit}".strip() if top < 1000 else f"{top:,.0f} {chart.unit}".strip()
    step = width / len(chart.values)
    if chart.bars:
        tops = [(i, base - height * value / top) for i, value in enumerate(chart.values)]
        drawn = "".join(
            f'<rect x="{_LEFT + i * step + 1:.1f}" y="{y:.1f}" width="{max(step - 2, 1):.1f}" height="{base - y:.1f}"/>'
            for i, y in tops
        )
        every = math.ceil(len(chart.labels) / _MOST_LABELS)
        marks = [
            (_LEFT + (i + 0.5) * step, _shorten(text, every * step), "middle")
            for i, text in enumerate(chart.labels)
            if i % every == 0
        ]
    else:
        places = [(_LEFT + (i + 0.5) * step, base - height * value / top) for i, value in enumerate(chart.values)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        area = f"{places[0][0]:.1f},{base} {line} {places[-1][0]:.1f},{base}"
        drawn = f'<polygon class="area" points="{area}"/><polyline class="data" points="{line}"/>'
        marks = [(_LEFT, chart.labels[0], "start"), (_LEFT + width, chart.labels[-1], "end")]
    texts = "".join(
        f'<text x="{x:.1f}" y="{_HEIGHT - 5}" text-anchor="{anchor}">{_text(text)}</text>' for x, text, anchor in marks
    )
    said = f"{chart.title}, at most {highest}"
    return (
        f'<figure><figcaption>{_text(said)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(said)}"><line class="axis" x1="{_LEFT}" y1="{base}" x2="{_LEFT + width}" y2="{base}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{_text(highest)}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>{drawn}{texts}</svg></figure>\n'
    )


def _points(chart: Points) -> str:
    """Points between the smallest and the largest place and value."""
    width, height = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP
    places = [math.log(place) for place in chart.places] if chart.log else list(chart.places)
    (left, right), (low, high) = ((min(each), max(each)) for each in (places, [*chart.values, *chart.line]))
    xs = [_LEFT + width * (0.5 if right == left else 0.02 + 0.96 * (p - left) / (right - left)) for p in places]

    def y(value: float) -> float:
        return _TOP + height * (0.5 if high == low else 0.96 - 0.92 * (value - low) / (high - low))

    dots = "".join(f'<circle cx="{x:.1f}" cy="{y(v):.1f}" r="3"/>' for x, v in zip(xs, chart.values, strict=True))
    line = " ".join(f"{x:.1f},{y(value):.1f}" for x, value in zip(xs, chart.line, strict=False))
    drawn = f'<polyline class="data" points="{line}"/>{dots}' if line else dots
    if chart.labels:
        seen = sorted(dict(zip(xs, chart.places, strict=True)).items())
        every = math.ceil(len(seen) / _MOST_LABELS)
        # The first and the last text reach inwards, and their neighbours to both sides.
        room = every * width / (len(seen) + 1)
        under = {x: _shorten(chart.labels[int(place)], room) for x, place in seen[::every]}
    else:
        under = {min(xs): f"{min(chart.places):.4g}", max(xs): f"{max(chart.places):.4g}"}
    first, last = min(xs), max(xs)
    anchors = {x: "middle" if first < x < last or first == last else "start" if x == first else "end" for x in under}
    texts = "".join(
        f'<text x="{x:.1f}" y="{_HEIGHT - 5}" text-anchor="{anchors[x]}">{_text(text)}</text>'
        for x, text in under.items()
    )
    return (
        f'<figure><figcaption>{_text(chart.title)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(chart.title)}"><line class="axis" x1="{_LEFT}" y1="{_TOP + height}" '
        f'x2="{_LEFT + width}" y2="{_TOP + height}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{_LEFT - 6}" y="{_TOP + height}" text-anchor="end">{low:.4g}</text>{drawn}{texts}</svg></figure>\n'
    )


def _shorten(text: str, room: float) -> str:
    """A text that fits under its part of a chart."""
    letters = max(3, int(room / _LETTER))
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _text(text: str) -> str:
    return escape(clean(text))
