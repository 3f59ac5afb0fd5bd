"""What a pass over all rows proves right or wrong without the model."""

from __future__ import annotations

from shardmill.core.console import count
from shardmill.results.report import Check
from shardmill.verbs.audit.scan import Places, Scanned

# Of two groups of lengths, the share that may lie between them if the groups are two.
_BETWEEN = 0.05


def check_scan(seen: Scanned, dims: int | None) -> list[Check]:
    """The checks of all rows: none missing, finite, not zero, of one width, of one kind of length."""
    return [_check_missing(seen), _check_finite(seen), _check_dims(seen, dims), _check_lengths(seen)]


def _check_missing(seen: Scanned) -> Check:
    if not seen.missing.count:
        return Check("rows", True, f"{count(seen.rows, 'row')}, each with a vector")
    return Check("rows", False, f"{_where(seen.missing, seen)} no vector")


def _check_finite(seen: Scanned) -> Check:
    kinds = ((seen.nan, "NaN"), (seen.infinite, "infinity"), (seen.zero, "only zeros"))
    wrong = [f"{_where(places, seen)} {what}" for places, what in kinds if places.count]
    return Check("numbers", not wrong, "; ".join(wrong) or "no NaN, no infinity, no vector of zeros")


def _where(places: Places, seen: Scanned) -> str:
    if places.count == 1:
        return f"row {places.first:,} has"
    return f"{places.count:,} of {seen.rows:,} rows ({_ends(places)}) have"


def _ends(places: Places) -> str:
    return f"{places.first:,} to {places.last:,}" if places.together else f"the first is {places.first:,}"


def _check_dims(seen: Scanned, dims: int | None) -> Check:
    if len(seen.widths) > 1:
        kinds = [
            f"{rows:,} rows have {width:,} dimensions (first row {seen.first_of_width[width]:,})"
            for width, rows in seen.widths.most_common(4)
        ]
        return Check("dims", False, "mixed: " + ", ".join(kinds))
    if dims is not None and seen.dims not in (dims, dims // 8):
        return Check("dims", False, f"{seen.dims:,} dimensions, not {dims:,}")
    return Check("dims", True, f"{seen.dims:,} dimensions, {seen.dtype}")


def _check_lengths(seen: Scanned) -> Check:
    if not seen.usable or seen.dtype.startswith(("int", "uint")):
        return Check("lengths", True, "not compared: the numbers are integers" if seen.usable else "no vector has one")
    low, high = seen.lengths
    few = min(seen.unit.count, seen.far.count)
    if few and seen.between.count <= _BETWEEN * few:
        minority = seen.unit if seen.unit.count == few else seen.far
        what = "are normalized, the others are not" if minority is seen.unit else "are not normalized, the others are"
        return Check("lengths", False, f"mixed: {few:,} of {seen.rows:,} rows ({_ends(minority)}) {what}")
    if seen.unit.count == seen.usable:
        return Check("lengths", True, "all vectors are normalized")
    return Check("lengths", True, f"from {low:.4g} to {high:.4g}")
