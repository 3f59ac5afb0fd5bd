"""The page of a migration: both models beside each other, and the queries that a search will answer otherwise."""

from __future__ import annotations

from itertools import zip_longest

from shardmill.core.console import count
from shardmill.results.comparison import DEPTH, Comparison, FoundItem, QueryPair
from shardmill.run.reports.page import write_sections
from shardmill.run.reports.shape import Grid, Section


def write_comparison(run: str, found: Comparison) -> str:
    """An HTML page about a comparison, without script and without requests."""
    before, after = found.before, found.after
    of = "texts of the run" if found.sampled else "queries"
    tiles = [(f"overlap@{DEPTH}", f"{found.overlap:.2f}"), ("rank correlation", f"{found.correlation:.2f}")]
    tiles = [(name, f"{before.figures[name]:.3f} → {value:.3f}") for name, value in after.figures.items()] + tiles
    return write_sections(
        run,
        f"Edition {before.edition} ({before.model}) and edition {after.edition} ({after.model}), "
        f"compared on {found.queries:,} {of}",
        tiles,
        [_figures(found), *(_query(number, pair, found) for number, pair in enumerate(found.worst, 1))],
    )


def figures_of(found: Comparison) -> list[tuple[str, str, str]]:
    """The name of each figure, and its value before and after."""
    before, after = found.before, found.after
    return [
        ("edition", f"{before.edition}", f"{after.edition}"),
        ("model", before.model, after.model),
        ("items", f"{before.items:,}", f"{after.items:,}"),
        ("items without vector", f"{before.failed:,}", f"{after.failed:,}"),
        ("dimensions", f"{before.dims:,} of {before.dtype}", f"{after.dims:,} of {after.dtype}"),
        ("bytes of the vectors", f"{before.bytes:,}", f"{after.bytes:,}"),
        *((name, f"{before.figures[name]:.4f}", f"{value:.4f}") for name, value in after.figures.items()),
    ]


def sentences_of(found: Comparison) -> list[str]:
    """What the figures are of, in sentences."""
    of = "texts of the run, each without itself" if found.sampled else "queries"
    said = [
        f"{found.queries:,} {of}: of the {DEPTH} nearest items, {found.overlap:.0%} are the same; "
        f"the correlation of their ranks is {found.correlation:.2f}."
    ]
    if found.with_gold:
        said.append(
            f"Right items are known for {found.with_gold:,} queries: {found.better:,} find them better, "
            f"{found.worse:,} worse, {found.equal:,} as before (nDCG@{DEPTH})."
        )
    before, after = found.before, found.after
    if before.failed or after.failed:
        lost = f" {count(found.failed_gold, 'right item')} had one before." if found.failed_gold else ""
        said.append(
            f"{count(after.failed, 'item')} failed and have no vector in edition {after.edition}, {before.failed:,} in "
            f"edition {before.edition}: no query finds them.{lost}"
        )
    if before.items != after.items:
        said.append(
            f"Edition {after.edition} has {count(after.items, 'item')} and edition {before.edition} {before.items:,}: "
            "the source has changed."
        )
    if found.missing_gold:
        said.append(f"{count(found.missing_gold, 'right item')} of the queries are not in the run.")
    return said


def _figures(found: Comparison) -> Section:
    rows = tuple(figures_of(found))
    notes = (
        *sentences_of(found),
        "The correlation is Kendall's tau over all items that either model has among its nearest: 1 is the same order.",
    )
    return Section("Both models", grids=(Grid(("", "before", "after"), rows),), notes=notes)


def _query(number: int, pair: QueryPair, found: Comparison) -> Section:
    rows = tuple(
        (f"{rank}", *_cells(before), *_cells(after))
        for rank, (before, after) in enumerate(zip_longest(pair.before, pair.after), 1)
    )
    facts = [("same items", f"{pair.overlap:.0%}"), ("rank correlation", f"{pair.correlation:.2f}")]
    facts += [(name, f"{pair.figures_before[name]:.3f} → {value:.3f}") for name, value in pair.figures_after.items()]
    facts += [("right", ", ".join(pair.right))] if pair.right else []
    header = ("", found.before.model, "cosine", found.after.model, "cosine")
    return Section(f"{number}. {pair.query}", tuple(facts), (Grid(header, rows, (0, 2, 4)),))


def _cells(item: FoundItem | None) -> tuple[str, str]:
    return ("", "") if item is None else (f"{'✓ ' * item.right}{item.shown}", f"{item.score:.3f}")
