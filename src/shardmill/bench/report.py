"""A benchmark's result as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardmill.bench.bounds import STAGES
from shardmill.bench.embed import EmbedResult
from shardmill.bench.peers import NAME, Peer
from shardmill.core.extras import missing_package
from shardmill.store import LocalStore

FILES = ("bench.json", "bench.png", "bench.svg")
_FEWEST_BARS = 5
_OURS, _THEIRS, _IDLE = "#1b6ca8", "#b8bec6", "#e4e7eb"
_STAGE_COLOURS = ("#7fb069", "#e6aa68", "#1b6ca8", "#8d6a9f")


def check_plotting() -> None:
    """Fail before the work, not after it, if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise missing_package("matplotlib")


def figures(result: EmbedResult) -> list[tuple[str, str]]:
    """Each figure with its name, in the order of the table."""
    rows = [
        ("machine", str(result.machine)),
        ("model", result.model),
        ("kernel", result.kernel.removeprefix("Kernel: ")),
        ("texts", f"{result.texts:,}, {result.tokens:,} tokens, {result.truncated:,} truncated; {result.source}"),
        ("speed", f"{result.docs_per_s:,.1f} docs/s, {result.tokens_per_s:,.0f} tokens/s"),
        ("share of peak", _share_of_peak(result)),
        (
            "padding waste",
            f"{100 * result.padding_waste:.1f} % of the tokens, in {result.batches:,} batches",
        ),
        ("time", f"{result.start_s:.1f} s to start, {result.work_s:.1f} s of work, {result.verify_s:.1f} s to verify"),
        ("workers", f"{result.workers} on {result.device}, at most {result.peak_rss_bytes / 2**20:,.0f} MiB each"),
        *((STAGES[name], _busy(seconds, result.work_s)) for name, seconds in result.stages.items()),
        ("device idle", f"{_busy(result.idle_between_s, result.work_s)} between batches, including shard boundaries"),
        ("", f"{_busy(result.idle_s, result.work_s)} including the wait for the first texts and the last commit"),
        ("bound by", f"{result.bound}. {result.bound.hint}"),
        ("verified", f"{'yes' if result.verified else 'NO'}: {result.verify_checks.get('sample', '')}"),
    ]
    if result.gpu_idle is not None:
        rows.insert(-2, ("GPU idle", f"{100 * result.gpu_idle:.1f} % between a worker's batches, by CUDA events"))
    if result.gpu_busy is not None:
        rows.insert(-2, ("GPU busy", f"{100 * result.gpu_busy:.0f} % of the time, by NVML"))
    return rows


def print_result(result: EmbedResult) -> None:
    """Print the table to stdout."""
    console = Console(highlight=False)
    table = Table(show_header=False, box=None)
    for name, seen in figures(result):
        table.add_row(name, Text(seen))
    console.print(table)
    if result.peers:
        console.print()
        console.print(_peer_table(result))
        for peer in result.peers:
            if peer.reason:
                console.print(f" {peer.name} was not run: {peer.reason}", markup=False)


def save(result: EmbedResult, folder: Path) -> list[Path]:
    """Write the JSON and the picture."""
    check_plotting()
    paths = [folder / name for name in FILES]
    LocalStore(folder).put(paths[0].name, json.dumps(result.to_json(), indent=2, ensure_ascii=False).encode() + b"\n")
    draw(result, paths[1:])
    return paths


def ratio(result: EmbedResult, peer: Peer) -> float | None:
    """How many times as fast as a peer shardmill is."""
    return result.docs_per_s / peer.docs_per_s if peer.docs_per_s else None


def draw(result: EmbedResult, paths: list[Path]) -> None:
    """Save one picture to each path, in the format of its suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    figure.suptitle(f"shardmill bench embed: {result.model}, {result.texts:,} texts, {result.device}", weight="bold")
    speed, stages = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_speed(speed, result)
    _draw_stages(stages, result)
    figure.supxlabel(str(result.machine), fontsize=6.5, color="#555555", wrap=True)
    for path in paths:
        figure.savefig(path, dpi=160)


def _peer_table(result: EmbedResult) -> Table:
    title = f"the first {result.peer_texts:,} texts with {NAME}; cosines compared with its float32"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("", "batch", "docs/s", "tokens/s", "shardmill is", "lowest cosine"):
        table.add_column(name, justify="left" if not name else "right")
    cosine = "" if result.lowest_cosine is None else f"{result.lowest_cosine:.6f}"
    table.add_row("shardmill", "", f"{result.docs_per_s:,.1f}", f"{result.tokens_per_s:,.0f}", "", cosine)
    for peer in result.peers:
        if peer.docs_per_s is None:
            continue
        table.add_row(
            f"{peer.name}{', the default' if peer.default else ', the best' if peer is result.best_peer else ''}",
            f"{peer.batch}",
            f"{peer.docs_per_s:,.1f}",
            f"{peer.tokens_per_s:,.0f}",
            f"{ratio(result, peer):.1f}x",
            f"{peer.lowest_cosine:.6f}",
        )
    return table


def _share_of_peak(result: EmbedResult) -> str:
    if result.peak_share is None:
        return f"not given: {result.peak_note}"
    return f"{100 * result.peak_share:.1f} % {result.peak_note}"


def _busy(seconds: float, work_s: float) -> str:
    return f"{seconds:.1f} s, {100 * seconds / work_s:.1f} %"


def _draw_speed(axes: Any, result: EmbedResult) -> None:
    ran = [peer for peer in result.peers if peer.docs_per_s]
    names = ["shardmill", *(f"{peer.name}, {peer.batch}{' (default)' if peer.default else ''}" for peer in ran)]
    speeds = [result.docs_per_s, *(peer.docs_per_s or 0.0 for peer in ran)]
    bars = axes.barh(names, speeds, color=[_OURS, *([_THEIRS] * len(ran))])
    digits = 0 if min(speeds) >= 100 else 1
    times = ["", *(f" ({speeds[0] / speed:.1f}x)" for speed in speeds[1:])]
    labels = [f"{speed:,.{digits}f}{more}" for speed, more in zip(speeds, times, strict=True)]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_ylim(max(len(names), _FEWEST_BARS) - 0.5, -0.5)
    axes.margins(x=0.18)
    theirs = f" and {NAME} (batch): how many times as fast shardmill is" if ran else ""
    axes.set_title(f"docs/s, shardmill{theirs}", fontsize=9, loc="left")
    _tidy(axes)


def _draw_stages(axes: Any, result: EmbedResult) -> None:
    names = [*(STAGES[name] for name in result.stages), "device idle between batches"]
    shares = [100 * s / result.work_s for s in (*result.stages.values(), result.idle_between_s)]
    bars = axes.barh(names, shares, color=[*_STAGE_COLOURS, _IDLE])
    axes.bar_label(bars, [f"{share:.1f} %" for share in shares], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 20))
    axes.set_title(f"% of the time each stage is busy; bound by {result.bound.what}", fontsize=9, loc="left")
    _tidy(axes)


def _tidy(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
