"""The inner loops, compiled: one point after another, so that no point depends on its neighbours in a batch."""
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

# The steps that a gradient may take at most, as in UMAP.
_CLIP = 4.0


@njit(nogil=True)
def round_directions(matrix: Any, length: float) -> Any:
    """Each vector scaled to a length and rounded, and whether it has a direction; if not, it is zero."""
    rows, dims = matrix.shape
    whole = np.zeros((rows, dims), np.int16)
    usable = np.zeros(rows, np.bool_)
    for i in range(rows):
        peak = 0.0
        for d in range(dims):
            # NaN compares as false.
            if not abs(matrix[i, d]) < math.inf:
                peak = math.nan
                break
            peak = max(peak, abs(np.float64(matrix[i, d])))
        if not peak > 0.0:
            continue
        # Divided by the largest part first: squares of tiny or huge ones would vanish or overflow.
        total = 0.0
        for d in range(dims):
            total += (matrix[i, d] / peak) ** 2
        scale = length / math.sqrt(total)
        usable[i] = True
        for d in range(dims):
            whole[i, d] = np.int16(round(matrix[i, d] / peak * scale))
    return whole, usable


@njit(nogil=True)
def best_of(scores: Any, count: int) -> Any:
    """The columns of the highest scores of each row, the highest first; of equal ones, the lower column first."""
    rows, columns = scores.shape
    found = np.empty((rows, count), np.int32)
    values = np.empty(count, np.float32)
    for i in range(rows):
        held = 0
        for j in range(columns):
            value = scores[i, j]
            if held == count and value <= values[count - 1]:
                continue
            at = held if held < count else count - 1
            while at > 0 and values[at - 1] < value:
                values[at] = values[at - 1]
                found[i, at] = found[i, at - 1]
                at -= 1
            values[at] = value
            found[i, at] = j
            held = min(held + 1, count)
    return found


@njit(nogil=True)
def measure(whole: Any, lengths: Any, anchors: Any, anchor_lengths: Any, candidates: Any, count: int) -> Any:
    """The nearest anchors of each vector among its candidates, the nearest first, and their cosine distances."""
    rows, offered = candidates.shape
    found = np.empty((rows, count), np.int32)
    distances = np.empty((rows, count), np.float64)
    dims = whole.shape[1]
    for i in range(rows):
        held = 0
        for c in range(offered):
            j = candidates[i, c]
            product = np.int64(0)
            for d in range(dims):
                product += np.int32(whole[i, d]) * np.int32(anchors[j, d])
            distance = max(0.0, 1.0 - product / (lengths[i] * anchor_lengths[j]))
            if held == count and (
                distance > distances[i, count - 1] or (distance == distances[i, count - 1] and j > found[i, count - 1])
            ):
                continue
            at = held if held < count else count - 1
            while at > 0 and (
                distances[i, at - 1] > distance or (distances[i, at - 1] == distance and found[i, at - 1] > j)
            ):
                distances[i, at] = distances[i, at - 1]
                found[i, at] = found[i, at - 1]
                at -= 1
            distances[i, at] = distance
            found[i, at] = j
            held = min(held + 1, count)
    return found, distances


@njit(nogil=True)
def lengths_of(whole: Any) -> Any:
    """The length of each vector."""
    lengths = np.empty(len(whole), np.float64)
    for i in range(len(whole)):
        total = np.int64(0)
        for d in range(whole.shape[1]):
            total += np.int32(whole[i, d]) * np.int32(whole[i, d])
        lengths[i] = math.sqrt(total)
    return lengths


@njit(nogil=True)
def name_each(whole: Any) -> Any:
    """64 bits for each vector, made from its numbers alone (FNV-1a over them)."""
    names = np.empty(len(whole), np.uint64)
    for i in range(len(whole)):
        name = np.uint64(0xCBF29CE484222325)
        for d in range(whole.shape[1]):
            name = (name ^ np.uint64(np.uint16(whole[i, d]))) * np.uint64(0x100000001B3)
        names[i] = name ^ (name >> np.uint64(32))
    return names


@njit(nogil=True)
def same_as(whole: Any, anchors: Any, nearest: Any) -> Any:
    """The anchor that equals each vector, or -1."""
    found = np.full(len(whole), -1, np.int32)
    for i in range(len(whole)):
        for c in range(nearest.shape[1]):
            j = nearest[i, c]
            same = True
            for d in range(whole.shape[1]):
                if whole[i, d] != anchors[j, d]:
                    same = False
                    break
            if same:
                found[i] = j
                break
    return found


@njit(nogil=True)
def weigh(distances: Any) -> Any:
    """How strongly each vector is drawn to its nearest anchors: 1 for the nearest, log2 of their number together."""
    rows, count = distances.shape
    weights = np.empty((rows, count), np.float64)
    target = math.log2(count) if count > 1 else 1.0
    for i in range(rows):
        low, high, scale = 0.0, math.inf, 1.0
        for _ in range(64):
            total = 0.0
            for c in range(count):
                total += math.exp(-(distances[i, c] - distances[i, 0]) / scale)
            if total > target:
                high = scale
                scale = (low + high) / 2.0
            else:
                low = scale
                scale = scale * 2.0 if high == math.inf else (low + high) / 2.0
            if scale < 1e-9 or scale > 1e6:
                break
        for c in range(count):
            weights[i, c] = math.exp(-(distances[i, c] - distances[i, 0]) / scale)
    return weights


@njit(nogil=True)
def settle(nearest: Any, weights: Any, places: Any, draws: Any, a: float, b: float) -> Any:
    """Start each point between its nearest anchors, then let them attract it and drawn anchors repel it.

    `draws` has the anchors that repel: steps, rows, and several for each. The curve of attraction is UMAP's.
    """
    steps, rows, repelling = draws.shape
    settled = np.empty((rows, 2), np.float64)
    count = nearest.shape[1]
    for i in range(rows):
        x = y = total = 0.0
        for c in range(count):
            x += weights[i, c] * places[nearest[i, c], 0]
            y += weights[i, c] * places[nearest[i, c], 1]
            total += weights[i, c]
        x /= total
        y /= total
        for step in range(steps):
            speed = 0.25 * (1.0 - step / steps)
            for c in range(count):
                dx = x - places[nearest[i, c], 0]
                dy = y - places[nearest[i, c], 1]
                square = dx * dx + dy * dy
                if square > 0.0:
                    pull = -2.0 * a * b * square ** (b - 1.0) / (a * square**b + 1.0)
                    x += speed * weights[i, c] * min(_CLIP, max(-_CLIP, pull * dx))
                    y += speed * weights[i, c] * min(_CLIP, max(-_CLIP, pull * dy))
            for r in range(repelling):
                j = draws[step, i, r]
                dx = x - places[j, 0]
                dy = y - places[j, 1]
                square = dx * dx + dy * dy
                if square > 0.0:
                    push = 2.0 * b / ((0.001 + square) * (a * square**b + 1.0))
                    x += speed * total * min(_CLIP, max(-_CLIP, push * dx)) * 5.0 / repelling
                    y += speed * total * min(_CLIP, max(-_CLIP, push * dy)) * 5.0 / repelling
        settled[i, 0] = x
        settled[i, 1] = y
    return settled
