"""A network in plain NumPy and float32: slow, and what faster ones are compared with where torch is not installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.blas import one_blas_thread
from shardmill.models.networks.description import Attention, EncoderNetwork, Head, Linear, Norm
from shardmill.models.networks.distances import buckets_by_distance, rotary_table
from shardmill.models.networks.forward import Operations, apply_steps, run
from shardmill.models.networks.stored import Reals, StoredWeights

Ints = NDArray[np.int64]
# Numbers of any type: a function of NumPy seldom says of which.
Array = Any
# Added to the scores of tokens that are not seen. Finite, so that a padded row that sees nothing has no NaN.
UNSEEN = -30_000.0


class ArrayNetwork:
    """A network with its weights."""

    def __init__(self, network: EncoderNetwork, weights: StoredWeights) -> None:
        self._network = network
        self._on = _Arrays(weights)

    def __call__(self, ids: Array, mask: Array, types: Array | None = None) -> Reals:
        """The hidden states of a padded batch, or what the network's head makes of them."""
        with one_blas_thread():
            result: Reals = run(self._network, self._on, ids, mask, types)
        return result


class ArrayHead:
    """The head of a network alone, for states that were pooled elsewhere."""

    def __init__(self, head: Head, weights: StoredWeights) -> None:
        self._head, self._on = head, _Arrays(weights)

    def __call__(self, states: Reals) -> Reals:
        """The logits of pooled states."""
        made: Reals = apply_steps(self._on, states, self._head)
        return made


class _Arrays(Operations[Array]):
    def __init__(self, weights: StoredWeights) -> None:
        self._get = cache(weights.__getitem__)
        self._angles = cache(rotary_table)

    def look_up(self, table: str, ids: Array | None) -> Array:
        return self._get(table)[0 if ids is None else ids]

    def positions(self, ids: Array, after: int | None) -> Array:
        if after is None:
            return np.arange(ids.shape[1])
        there = ids != after
        return np.cumsum(there, axis=1) * there + after

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def multiply(self, a: Array, b: Array) -> Array:
        return a * b

    def linear(self, x: Array, by: Linear) -> Array:
        weight, bias = part_of(self._get, by)
        flat = x.reshape(-1, x.shape[-1]) @ weight.T
        if bias is not None:
            flat += bias
        return flat.reshape(*x.shape[:-1], -1)

    def norm(self, x: Array, by: Norm) -> Array:
        if by.centred:
            x = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(by.eps))
        x = x / scale * self._get(by.weight)
        return x + self._get(by.bias) if by.bias else x

    def activate(self, x: Array, name: str) -> Array:
        return ACTIVATIONS[name](x)

    def attend(self, query: Array, key: Array, value: Array, how: Attention, mask: Array) -> Array:
        rows, tokens = mask.shape
        query, key, value = (x.reshape(rows, tokens, how.heads, -1).swapaxes(1, 2) for x in (query, key, value))
        if how.theta:
            angles = self._angles(tokens, query.shape[-1], how.theta)
            query, key = _rotate(query, *angles), _rotate(key, *angles)
        scores = query @ key.swapaxes(2, 3) * np.float32(how.scale)
        distances = np.arange(tokens) - np.arange(tokens)[:, None]
        if how.buckets is not None:
            far = how.buckets.farthest
            by_distance = self._get(how.buckets.weight)[buckets_by_distance(how.buckets.count, far)]
            scores += by_distance[np.clip(distances, -far, far) + far].transpose(2, 0, 1)
        seen = mask[:, None, None, :] > 0
        if how.reach >= 0:
            seen = seen & (np.abs(distances) <= how.reach)
        scores += np.where(seen, np.float32(0), np.float32(UNSEEN))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        if how.reach >= 0:  # A token beside a query may see nothing within its reach.
            scores *= seen.any(axis=-1, keepdims=True)
        return (scores @ value).swapaxes(1, 2).reshape(rows, tokens, -1)

    def first(self, x: Array) -> Array:
        return x[:, 0]

    def mean(self, x: Array, mask: Array) -> Array:
        there = mask[:, :, None].astype(np.float32)
        return (x * there).sum(axis=1) / there.sum(axis=1)


def part_of(get: Callable[[str], Reals], linear: Linear) -> tuple[Reals, Reals | None]:
    """The matrix and the bias of a linear layer; of several that are stored as one, its own rows."""
    at, parts = linear.part
    weight, bias = get(linear.weight), get(linear.bias) if linear.bias else None
    if parts == 1:
        return weight, bias
    rows = slice(at * len(weight) // parts, (at + 1) * len(weight) // parts)
    return weight[rows], None if bias is None else bias[rows]


def _rotate(x: Array, cosines: Array, sines: Array) -> Array:
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * cosines + turned * sines


def _erf(x: Array) -> Array:
    """The error function, to 1.5e-7, as Abramowitz and Stegun give it (7.1.26)."""
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911) * size)
    sums = np.zeros_like(t)
    for each in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sums = (sums + np.float32(each)) * t
    return np.copysign(1 - sums * np.exp(-size * size), x)


def gelu(x: Array) -> Array:
    return x * np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5))))


def _gelu_by_tanh(x: Array) -> Array:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return x * np.float32(0.5) * (1 + np.tanh(inner))


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": _gelu_by_tanh,
    "gelu_pytorch_tanh": _gelu_by_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}
