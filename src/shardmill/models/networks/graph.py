"""A network as a graph for OpenVINO."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from shardmill.core.extras import missing_package
from shardmill.models.networks.arrays import UNSEEN, part_of
from shardmill.models.networks.description import Attention, EncoderNetwork, Linear, Norm
from shardmill.models.networks.distances import buckets_by_distance, rotary_table
from shardmill.models.networks.forward import Operations, run
from shardmill.models.networks.stored import Reals, StoredWeights

# The smallest number of float16, far below what either half precision can tell from 0 in a sum.
_NEXT_TO_NOTHING = np.float32(2**-24)
# Of OpenVINO's operations, those that every version since 2025.0 has.
_OPERATIONS = "openvino.opset15"


def load_openvino() -> Any:
    """The library."""
    # It sends usage reports over the network if it can import this module; a None entry disables it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise missing_package("openvino") from error


def build_graph(
    network: EncoderNetwork,
    weights: StoredWeights,
    *,
    typed: bool = False,
    limit: int | None = None,
    operations: type[Graph] | None = None,
) -> Any:
    """The graph of a network: ids and mask of a padded batch (and types, if `typed`) to its result.

    Texts have at most `limit` tokens, or as many as the network is meant for. Its nodes are those of `operations`.
    """
    library = load_openvino()
    on = (operations or Graph)(limit or network.longest, weights)
    ids, mask = on.parameter("input_ids"), on.parameter("attention_mask")
    types = on.parameter("token_type_ids") if typed else None
    result = run(network, on, ids, mask, types)
    given = [ids, mask, *([types] if types is not None else [])]
    return library.Model([result], given)


class Graph(Operations[Any]):
    """What a network is computed with: nodes of OpenVINO."""

    def __init__(self, longest: int, weights: StoredWeights) -> None:
        self._op = importlib.import_module(_OPERATIONS)
        self._longest, self._get = longest, weights.__getitem__
        self._constant_of = cache(lambda name: self._constant(weights[name]))
        self._made: dict[tuple[Any, ...], Any] = {}

    def parameter(self, name: str) -> Any:
        made = self._op.parameter([-1, -1], np.int64, name)
        made.output(0).get_tensor().set_names({name})
        return made

    def _constant(self, array: Reals) -> Any:
        # Mapped weights are read where they lie.
        return self._op.constant(np.ascontiguousarray(array), shared_memory=True)

    def _once(self, key: tuple[Any, ...], make: Any) -> Any:
        """What several layers need is computed once."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def look_up(self, table: str, ids: Any | None) -> Any:
        if ids is None:
            return self._op.constant(np.ascontiguousarray(self._get(table)[0]))
        return self._op.gather(self._constant_of(table), ids, np.int64(0))

    def _tokens(self, ids: Any) -> Any:
        """0, 1, 2 … as many as a row has tokens."""
        length = self._op.gather(self._op.shape_of(ids), np.int64(1), np.int64(0))
        return self._op.range(np.int64(0), length, np.int64(1), "i64")

    def positions(self, ids: Any, after: int | None) -> Any:
        if after is None:
            return self._once(("tokens",), lambda: self._tokens(ids))
        there = self._op.convert(self._op.not_equal(ids, np.int64(after)), "i64")
        counted = self._op.multiply(self._op.cum_sum(there, np.int64(1)), there)
        return self._op.add(counted, np.int64(after))

    def add(self, a: Any, b: Any) -> Any:
        return self._op.add(a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return self._op.multiply(a, b)

    def linear(self, x: Any, by: Linear) -> Any:
        weight, bias = part_of(self._get, by)
        product = self._op.matmul(x, self._constant(weight), False, True)
        return product if bias is None else self._op.add(product, self._constant(bias))

    def norm(self, x: Any, by: Norm) -> Any:
        if by.centred:
            x = self._op.mvn(x, np.array([-1]), True, by.eps, "inside_sqrt")
        else:
            square = self._op.reduce_mean(self._op.multiply(x, x), np.array([-1]), True)
            x = self._op.divide(x, self._op.sqrt(self._op.add(square, np.float32(by.eps))))
        x = self._op.multiply(x, self._constant_of(by.weight))
        return self._op.add(x, self._constant_of(by.bias)) if by.bias else x

    def activate(self, x: Any, name: str) -> Any:
        op = self._op
        if name == "gelu":
            return op.gelu(x, "erf")
        if name in ("gelu_new", "gelu_pytorch_tanh"):
            return op.gelu(x, "tanh")
        return {"relu": op.relu, "silu": op.swish, "swish": op.swish, "tanh": op.tanh}[name](x)

    def attend(self, query: Any, key: Any, value: Any, how: Attention, mask: Any) -> Any:
        op = self._op
        width = len(part_of(self._get, how.query)[0]) // how.heads
        query, key, value = (self._split(x, how.heads, width) for x in (query, key, value))
        if how.theta:
            cosines, sines = self._once(("angles", width, how.theta), lambda: self._angles(mask, width, how.theta))
            query, key = (self._rotate(x, cosines, sines, width) for x in (query, key))
        bias = self._once(("bias", how.reach, how.buckets), lambda: self._bias(mask, how))
        seen = op.scaled_dot_product_attention(query, key, value, attention_mask=bias, scale=np.float32(how.scale))
        return op.reshape(op.transpose(seen, np.array([0, 2, 1, 3])), np.array([0, 0, how.heads * width]), True)

    def _split(self, x: Any, heads: int, width: int) -> Any:
        op = self._op
        return op.transpose(op.reshape(x, np.array([0, 0, heads, width]), True), np.array([0, 2, 1, 3]))

    def _angles(self, mask: Any, width: int, theta: float) -> Sequence[Any]:
        # As tables: computed in half precision, the angles of far positions would be others.
        at = self.positions(mask, None)
        tables = rotary_table(self._longest, width, theta)
        return [self._op.gather(self._op.constant(table), at, np.int64(0)) for table in tables]

    def _rotate(self, x: Any, cosines: Any, sines: Any, width: int) -> Any:
        op = self._op
        left, right = op.split(x, np.int64(3), 2).outputs()
        turned = op.concat([op.negative(right), left], 3)
        return op.add(op.multiply(x, cosines), op.multiply(turned, sines))

    def _bias(self, mask: Any, how: Attention) -> Any:
        """What is added to the scores: for tokens that are not seen, and by distance."""
        op = self._op
        there = op.convert(op.unsqueeze(op.unsqueeze(mask, np.int64(1)), np.int64(1)), "f32")
        bias = op.multiply(op.subtract(np.float32(1), there), np.float32(UNSEEN))
        if how.reach < 0 and how.buckets is None:
            return bias
        at = self.positions(mask, None)
        distances = op.subtract(op.unsqueeze(at, np.int64(0)), op.unsqueeze(at, np.int64(1)))
        if how.reach >= 0:
            beyond = op.convert(op.greater(op.abs(distances), np.int64(how.reach)), "f32")
            bias = op.minimum(bias, op.multiply(beyond, np.float32(UNSEEN)))
        if how.buckets is not None:
            far = how.buckets.farthest
            table = self._get(how.buckets.weight)[buckets_by_distance(how.buckets.count, far)]
            index = op.add(op.clamp(distances, -far, far), np.int64(far))
            by_distance = op.gather(op.constant(np.ascontiguousarray(table.T)), index, np.int64(1))
            bias = op.add(bias, op.unsqueeze(by_distance, np.int64(0)))
        return bias

    def first(self, x: Any) -> Any:
        return self._op.gather(x, np.int64(0), np.int64(1))

    def mean(self, x: Any, mask: Any) -> Any:
        op = self._op
        there = op.convert(op.unsqueeze(mask, np.int64(2)), "f32")
        total = op.reduce_sum(op.multiply(x, there), np.array([1]))
        return op.divide(total, op.reduce_sum(there, np.array([1])))


class HalfGatedGraph(Graph):
    """A network with gates, for half precision on CPUs with AMX.

    OpenVINO 2026.4 fuses a layer with a gate into one node there, and the process ends with SIGFPE while that node is
    made. The layer is not recognized with a sum in its middle.
    """

    def activate(self, x: Any, name: str) -> Any:
        return super().activate(self._op.add(x, _NEXT_TO_NOTHING), name)
