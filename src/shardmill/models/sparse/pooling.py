"""From the logits of tokens to the weights of words, with NumPy in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.core.blas import one_blas_thread
from shardmill.models.folder import ModelFolder
from shardmill.models.networks.arrays import ArrayHead
from shardmill.models.networks.stored import Reals, StoredWeights
from shardmill.models.sparse.folder import SpladePooling

# Tokens whose logits are in memory at a time.
_TOGETHER = 256


def pool_logits(logits: Reals, mask: NDArray[np.int64], pooling: SpladePooling) -> Reals:
    """The weight of each word for each row of a padded batch."""
    counts = mask.sum(axis=1).tolist()
    made: Reals = np.stack(
        [_finish(_reduce(own[:count], pooling), pooling) for own, count in zip(logits, counts, strict=True)]
    )
    return made


def _reduce(logits: Reals, pooling: SpladePooling) -> Reals:
    """Of a maximum the logits are compared: the logarithm leaves their order."""
    if not pooling.sums:
        largest: Reals = np.maximum(logits.max(axis=0), np.float32(0))
        return largest
    summed: Reals = _to_weights(np.maximum(logits, np.float32(0)), pooling).sum(axis=0)
    return summed


def _finish(reduced: Reals, pooling: SpladePooling) -> Reals:
    return reduced if pooling.sums else _to_weights(reduced, pooling)


def _to_weights(positive: Reals, pooling: SpladePooling) -> Reals:
    weights: Reals = np.log1p(positive)
    return np.log1p(weights) if pooling.twice else weights


class ArrayWords:
    """The head alone, for the states of one text, some tokens at a time."""

    def __init__(self, folder: ModelFolder, weights: StoredWeights) -> None:
        assert isinstance(folder.pooling, SpladePooling)
        self._pooling, self._head = folder.pooling, ArrayHead(folder.pooling.head, weights)

    def __call__(self, states: Reals) -> Reals:
        """The weight of each word for a text."""
        made: Reals | None = None
        with one_blas_thread():
            for first in range(0, len(states), _TOGETHER):
                piece = _reduce(self._head(states[first : first + _TOGETHER]), self._pooling)
                made = piece if made is None else made + piece if self._pooling.sums else np.maximum(made, piece)
        assert made is not None
        return _finish(made, self._pooling)
