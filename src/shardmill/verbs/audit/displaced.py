"""Rows that have moved: where the vectors of some texts are, among all vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardmill.sources.ahead import ahead
from shardmill.verbs.audit.agreement import Agreement, Reals
from shardmill.verbs.audit.rows import Rows
from shardmill.verbs.audit.stored import matrices

# Two that are as near as this are equal: of these, the one that is fewer rows away counts.
_TIE = 1e-6


def find_vectors(
    rows: Rows, made: Reals, own: NDArray[np.int64], agreement: Agreement, on_progress: Callable[[float, str], None]
) -> tuple[NDArray[np.int64], Reals]:
    """The row whose vector is nearest to each that was made, and how far it is; one pass over all vectors."""
    is_bits = agreement.storage == "bits"
    made = np.sign(made) if is_bits else made
    found, best = np.full(len(made), -1), np.full(len(made), -np.inf)
    first = 0
    for block in ahead(rows.read):
        for places, matrix in matrices(block.vectors):
            width = matrix.shape[1] * (8 if is_bits else 1)
            if width > made.shape[1]:
                continue
            wanted = made[:, :width]
            wanted = (wanted / np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-30)).astype(np.float32)
            plain = matrix if agreement.storage == "floats" else agreement.numbers(matrix)
            with np.errstate(invalid="ignore", over="ignore"):
                numbers = plain.astype(np.float32, copy=False)
                lengths = np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-30)
                cosines = np.nan_to_num(numbers @ wanted.T / lengths, nan=-1.0)
            at = cosines.argmax(axis=0)
            high, there = cosines[at, np.arange(len(made))], first + places[at]
            nearer = np.abs(there - own) < np.abs(found - own)
            better = (high > best + _TIE) | ((high > best - _TIE) & nearer)
            found[better], best[better] = there[better], high[better]
        first += len(block)
        on_progress(block.share, f"{first:,} vectors searched")
    return found, (1 - best) / (2 if is_bits else 1)


def usual_shift(offsets: NDArray[np.int64]) -> int:
    """The offset that most rows share; 0 if none is shared by several."""
    values, counts = np.unique(offsets[offsets != 0], return_counts=True)
    return int(values[counts.argmax()]) if len(values) and counts.max() >= 2 else 0
