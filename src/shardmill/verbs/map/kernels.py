"""The inner loops of a finished map, compiled."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shardmill.core.extras import missing_package

try:
    from numba import njit
except ImportError as error:
    raise missing_package("numba") from error


@njit(nogil=True)
def find_alike(codes: Any, near: Any, members: Any, starts: Any, count: int, most: int) -> Any:
    """The points with the highest cosine of codes to each point; `members` has the points of each anchor."""
    rows, width = codes.shape
    lengths = np.empty(rows, np.float64)
    for i in range(rows):
        total = 0
        for d in range(width):
            total += int(np.int32(codes[i, d]) * np.int32(codes[i, d]))
        lengths[i] = math.sqrt(max(1, total))
    found = np.empty((rows, count), np.uint32)
    scores = np.empty(count, np.float64)
    for i in range(rows):
        held = 0
        for c in range(near.shape[1]):
            start, stop = starts[near[i, c]], starts[near[i, c] + 1]
            step = max(1, (stop - start) // most)
            for m in range(start, stop, step):
                j = members[m]
                known = j == i
                for k in range(held):
                    known = known or found[i, k] == j
                if known:
                    continue
                product = 0
                for d in range(width):
                    product += int(np.int32(codes[i, d]) * np.int32(codes[j, d]))
                score = product / (lengths[i] * lengths[j])
                if held == count and score <= scores[count - 1]:
                    continue
                at = held if held < count else count - 1
                while at > 0 and scores[at - 1] < score:
                    scores[at] = scores[at - 1]
                    found[i, at] = found[i, at - 1]
                    at -= 1
                scores[at] = score
                found[i, at] = j
                held = min(held + 1, count)
        for k in range(held, count):
            found[i, k] = i
    return found


@njit(nogil=True)
def count_nearer(scores: Any, thresholds: Any, first: int, own: Any, counts: Any, best: Any, best_scores: Any) -> None:
    """Go through the similarities of some queries to the points from `first` on.

    `counts` grows by the points that are more like a query than each of its `thresholds`, which are in falling order;
    `best` and `best_scores` keep the points that are most like it. A query's `own` point is left out.
    """
    queries, points = scores.shape
    levels, most = thresholds.shape[1], best.shape[1]
    for q in range(queries):
        lowest = thresholds[q, levels - 1]
        for p in range(points):
            score = scores[q, p]
            if first + p == own[q]:
                continue
            if score > lowest:
                low, high = 0, levels - 1
                while low < high:
                    middle = (low + high) // 2
                    if score > thresholds[q, middle]:
                        high = middle
                    else:
                        low = middle + 1
                counts[q, low] += 1
            if score > best_scores[q, most - 1]:
                at = most - 1
                while at > 0 and best_scores[q, at - 1] < score:
                    best_scores[q, at] = best_scores[q, at - 1]
                    best[q, at] = best[q, at - 1]
                    at -= 1
                best_scores[q, at] = score
                best[q, at] = first + p
