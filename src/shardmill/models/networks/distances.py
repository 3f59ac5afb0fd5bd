"""What depends on where a token stands: rotary angles, and buckets of distances."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shardmill.models.networks.stored import Reals


def rotary_table(tokens: int, width: int, theta: float) -> tuple[Reals, Reals]:
    """Cosines and sines of each position's angles, twice, as halves of a head are rotated with one another."""
    rates = 1.0 / (np.float32(theta) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width)))
    angles = np.arange(tokens, dtype=np.float32)[:, None] * rates
    angles = np.concatenate([angles, angles], axis=1)
    return np.cos(angles), np.sin(angles)


def buckets_by_distance(count: int, farthest: int) -> NDArray[np.int64]:
    """The bucket of each distance from -farthest to farthest; what is farther has the bucket of the last.

    Half of the buckets are for tokens to the right. Of each half, one half is for the distances 0, 1, 2 …, the other
    grows with the logarithm of the distance.
    """
    half, distances = count // 2, np.arange(-farthest, farthest + 1)
    exact, far = half // 2, np.abs(distances)
    ratios = np.maximum(far, 1).astype(np.float32) / np.float32(exact)
    steps = np.log(ratios) / np.float32(math.log(farthest / exact)) * np.float32(half - exact)
    grown = np.minimum(exact + steps.astype(np.int64), half - 1)
    buckets: NDArray[np.int64] = np.where(far < exact, far, grown) + half * (distances > 0)
    return buckets
