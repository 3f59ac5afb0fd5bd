"""The rows between which all are wrong, if there are such: found by recomputing rows around the borders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.models.embedder import TextEmbedder
from shardmill.verbs.audit.agreement import Agreement
from shardmill.verbs.audit.rows import Rows
from shardmill.verbs.audit.stored import matrices
from shardmill.verbs.audit.ways import embed

# Rows that are recomputed at a time; and rows of a sample from which it is no accident that they are neighbours.
_AT_ONCE = 16
_LEAST_TOGETHER = 4


def find_borders(
    sampled: NDArray[np.int64],
    wrong: NDArray[np.int64],
    rows: Rows,
    total: int,
    agreement: Agreement,
    embedder: TextEmbedder,
) -> tuple[int, int] | None:
    """The first and the last wrong row, if all sampled rows between them are wrong; `wrong` are places in `sampled`."""
    if len(wrong) == len(sampled):
        return 0, total - 1
    if len(wrong) < _LEAST_TOGETHER or len(wrong) != wrong[-1] - wrong[0] + 1:
        return None
    first, last = int(sampled[wrong[0]]), int(sampled[wrong[-1]])
    before, after = sampled[: wrong[0]], sampled[wrong[-1] + 1 :]
    first = _narrow(int(before[-1]), first, rows, agreement, embedder) if len(before) else 0
    last = _narrow(int(after[0]), last, rows, agreement, embedder) if len(after) else total - 1
    return first, last


def _narrow(right: int, wrong: int, rows: Rows, agreement: Agreement, embedder: TextEmbedder) -> int:
    """The wrong row next to the border, which is between a right and a wrong row."""
    while abs(wrong - right) > 1:
        low, high = min(right, wrong), max(right, wrong)
        tried = np.unique(np.linspace(low + 1, high - 1, min(_AT_ONCE, high - low - 1)).astype(np.int64))
        seen = _look(tried, rows, agreement, embedder)
        if not seen:
            break
        ordered = sorted(seen, reverse=wrong < right)
        bad = next((row for row in ordered if not seen[row]), None)
        good = [row for row in ordered if seen[row] and (bad is None or (row < bad) == (right < wrong))]
        if bad is None and not good:
            break
        right, wrong = (good[-1] if good else right), (wrong if bad is None else bad)
        if len(tried) == high - low - 1:
            break
    return wrong


def _look(tried: NDArray[np.int64], rows: Rows, agreement: Agreement, embedder: TextEmbedder) -> dict[int, bool]:
    """Whether each of these rows is right; rows without a text or a vector are left out."""
    seen: dict[int, bool] = {}
    done = 0
    for block in rows.pick(tried):
        assert block.texts is not None
        for places, matrix in matrices(block.vectors):
            texts = block.texts.to_pylist()
            own = [i for i, place in enumerate(places) if texts[place] is not None]
            if not own:
                continue
            made = embed(embedder, [texts[places[i]] for i in own])
            if matrix.shape[1] <= made.shape[1]:
                fits = agreement.fits(matrix[own], made)
                seen |= {int(tried[done + places[i]]): bool(fit) for i, fit in zip(own, fits, strict=True)}
        done += len(block)
    return seen
