"""From hidden states to vectors with NumPy, in float32: pooling and the steps after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.folder import Dense, LayerNorm, Normalize, Pooling, Step
from shardmill.models.networks.arrays import gelu, sigmoid
from shardmill.models.networks.stored import Reals, read_weights

_NORM_EPS = 1e-5
_SHORTEST = 1e-12


def pool(hidden: Reals, mask: NDArray[np.int64], pooling: Pooling, skip: int) -> Reals:
    """One vector per row of a padded batch, without the first `skip` tokens of each row; or one per token."""
    if pooling.keeps_tokens:
        return hidden[mask > 0].astype(np.float32, copy=False)
    if skip and not pooling.include_prompt:
        mask = mask.copy()
        mask[:, :skip] = 0
    made: Reals = np.concatenate([_POOLINGS[mode](hidden, mask) for mode in pooling.modes], axis=1)
    return made


def _first(hidden: Reals, mask: NDArray[np.int64]) -> Reals:
    states: Reals = hidden[np.arange(len(hidden)), mask.argmax(axis=1)]
    return states


def _last(hidden: Reals, mask: NDArray[np.int64]) -> Reals:
    last = (np.arange(mask.shape[1]) * mask).argmax(axis=1)
    rows = np.arange(len(hidden))
    states: Reals = hidden[rows, last] * mask[rows, last, None].astype(np.float32)
    return states


def _largest(hidden: Reals, mask: NDArray[np.int64]) -> Reals:
    largest: Reals = np.where(mask[:, :, None] > 0, hidden, np.float32(-np.inf)).max(axis=1)
    return largest


def _sums(hidden: Reals, weights: Reals) -> tuple[Reals, Reals]:
    # Padded positions may hold anything, and NaN * 0 is NaN.
    there = np.where(weights[:, :, None] > 0, hidden, np.float32(0))
    totals: Reals = np.matmul(weights[:, None, :], there)[:, 0]
    counts: Reals = np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1e-9))
    return totals, counts


def _mean(hidden: Reals, mask: NDArray[np.int64]) -> Reals:
    total, count = _sums(hidden, mask.astype(np.float32))
    return total / count


def _mean_by_root(hidden: Reals, mask: NDArray[np.int64]) -> Reals:
    total, count = _sums(hidden, mask.astype(np.float32))
    mean: Reals = (total / np.sqrt(count)).astype(np.float32, copy=False)
    return mean


def _weighted_mean(hidden: Reals, mask: NDArray[np.int64]) -> Reals:
    total, count = _sums(hidden, (mask * np.arange(1, mask.shape[1] + 1)).astype(np.float32))
    return total / count


_POOLINGS: dict[str, Callable[[Reals, NDArray[np.int64]], Reals]] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


class Steps:
    """The dense layers, norms and normalizations after pooling."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = [(step, _load(step)) for step in steps]

    def __call__(self, vectors: Reals) -> Reals:
        for step, weights in self._steps:
            if isinstance(step, Normalize):
                lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors = vectors / np.maximum(lengths, np.float32(_SHORTEST))
            elif isinstance(step, LayerNorm):
                centred = vectors - vectors.mean(axis=1, keepdims=True)
                scale = np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + np.float32(_NORM_EPS))
                vectors = centred / scale * weights["norm.weight"] + weights["norm.bias"]
            else:
                vectors = _dense(vectors, step, weights)
        return vectors


def _dense(x: Reals, step: Dense, weights: dict[str, Reals]) -> Reals:
    y = x @ weights["linear.weight"].T
    if step.bias:
        y = y + weights["linear.bias"]
    y = _ACTIVATIONS[step.activation](y)
    if not step.residual:
        return y
    return y + (x @ weights["residual.weight"].T if "residual.weight" in weights else x)


def _load(step: Step) -> dict[str, Reals]:
    if isinstance(step, Normalize):
        return {}
    stored = read_weights(step.weights)
    if isinstance(step, LayerNorm):
        shapes: dict[str, tuple[int, ...]] = {"norm.weight": (step.width,), "norm.bias": (step.width,)}
    else:
        shapes = {"linear.weight": (step.out_features, step.in_features)}
        if step.bias:
            shapes["linear.bias"] = (step.out_features,)
        if step.residual and step.in_features != step.out_features:
            shapes["residual.weight"] = (step.out_features, step.in_features)
    # The file may be that of a whole model.
    own = {name: stored[name] for name in shapes if name in stored}
    if {name: array.shape for name, array in own.items()} != shapes:
        raise ModelError(f"{step.weights} does not fit its config.json.", hint="Fetch the model again.")
    return own


def _softplus(x: Reals) -> Reals:
    soft: Reals = np.logaddexp(np.float32(0), x)
    return soft


def _elu(x: Reals) -> Reals:
    return np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0))))


_ACTIVATIONS: dict[str, Callable[[Reals], Reals]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "GELU": gelu,
    "SiLU": lambda x: x * sigmoid(x),
    "Sigmoid": sigmoid,
    "LeakyReLU": lambda x: np.where(x > 0, x, np.float32(0.01) * x),
    "ELU": _elu,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Softplus": _softplus,
}
