"""A network as a graph for OpenVINO whose layers multiply in 8 bits; all else is in float32.

Each row of a matrix has a scale of its own, and each token too, computed as it comes: nothing is calibrated, and a text
gets the same vector in every batch. OpenVINO computes a product in 8 bits where its input passes through a
`FakeQuantize` of fixed limits, so a token is divided by its largest number before, and its product multiplied after.

Design: docs/design/precisions.md
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardmill.models.networks.arrays import part_of
from shardmill.models.networks.description import Linear, Norm
from shardmill.models.networks.graph import Graph
from shardmill.models.networks.stored import Reals, StoredWeights

# The revision of this arithmetic: vectors of another one are not mixed with these.
REVISION = "int8 1"

_LEVELS, _SIGNED = 256, 127
_LEAST = 1e-12
# What an activation never goes below: all 256 steps lie above it. Of GELU's two forms the lower minimum.
_FLOORS = {"relu": 0.0, "silu": -0.2785, "swish": -0.2785}
_FLOOR_OF_GELU = -0.1701
# Normalised numbers are rarely beyond this many standard deviations.
_DEVIATIONS = 3.0


class Int8Graph(Graph):
    """What a network is computed with, if the matrices of its layers are rounded to 8 bits."""

    def __init__(self, longest: int, weights: StoredWeights) -> None:
        super().__init__(longest, weights)
        # By the value's id; the value is kept, so that no other gets its id.
        self._norms: dict[int, tuple[Any, Norm]] = {}
        self._floors: dict[int, tuple[Any, float]] = {}

    def norm(self, x: Any, by: Norm) -> Any:
        made = super().norm(x, by)
        self._norms[id(made)] = made, by
        return made

    def activate(self, x: Any, name: str) -> Any:
        made = super().activate(x, name)
        if (floor := _FLOOR_OF_GELU if name.startswith("gelu") else _FLOORS.get(name)) is not None:
            self._floors[id(made)] = made, floor
        return made

    def layer_linear(self, x: Any, by: Linear) -> Any:
        op = self._op
        weight, bias = part_of(self._get, by)
        stretch = self._stretch(x, weight)
        _, floor = self._floors.get(id(x), (x, 0.0))
        y = op.subtract(x, np.float32(floor)) if floor else x
        y = y if stretch is None else op.multiply(y, stretch)
        rounded, largest = self._round(y, signed=id(x) not in self._floors)
        product = op.multiply(op.matmul(rounded, self._in_bytes(weight, stretch), False, True), largest)
        offset = _offset(weight, bias, floor)
        return product if offset is None else op.add(product, self._constant(offset))

    def _stretch(self, x: Any, matrix: Reals) -> Reals | None:
        """What the numbers of a token are multiplied by, and the columns of the matrix divided.

        A norm makes some numbers far larger than others, of which few steps would be left. They share the difference
        with the matrix.
        """
        if id(x) not in self._norms:
            return None
        _, norm = self._norms[id(x)]
        spread = _DEVIATIONS * np.abs(self._get(norm.weight))
        spread = spread + np.abs(self._get(norm.bias)) if norm.bias else spread
        columns = np.abs(matrix).max(axis=0)
        stretch = np.sqrt(np.maximum(columns, _LEAST) / np.maximum(spread, _LEAST))
        # A weight of 0 says nothing of how large its numbers are beside others.
        stretch = np.where((columns > _LEAST) & (spread > _LEAST), stretch, 1.0)
        scaled: Reals = (stretch / np.exp(np.log(stretch).mean())).astype(np.float32)
        return scaled

    def _round(self, y: Any, *, signed: bool) -> tuple[Any, Any]:
        """Each token divided by its largest number and rounded to 256 steps, and that number."""
        op = self._op
        last = np.array([-1])
        largest = op.reduce_max(y, last, True)
        if signed:
            largest = op.maximum(largest, op.negative(op.reduce_min(y, last, True)))
        largest = op.maximum(largest, np.float32(_LEAST))
        least = np.float32(-(_SIGNED + 1) / _SIGNED if signed else 0)
        one = np.float32(1)
        scaled = op.multiply(y, op.divide(one, largest))
        return op.fake_quantize(scaled, least, one, least, one, _LEVELS), largest

    def _in_bytes(self, weight: Reals, stretch: Reals | None) -> Any:
        """A matrix in 8 bits, and the scale of each of its rows."""
        matrix = weight if stretch is None else weight / stretch
        scales = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), _LEAST) / _SIGNED
        steps = np.clip(np.rint(matrix / scales), -_SIGNED, _SIGNED).astype(np.int8)
        return self._op.multiply(
            self._op.convert(self._op.constant(steps), "f32"), self._op.constant(scales.astype(np.float32))
        )


def _offset(weight: Reals, bias: Reals | None, floor: float) -> Reals | None:
    """The bias, and what was taken from the numbers before they were rounded."""
    if not floor:
        return bias
    taken: Reals = (floor * weight.sum(axis=1, dtype=np.float64)).astype(np.float32)
    return taken if bias is None else taken + bias
