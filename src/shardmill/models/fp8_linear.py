"""Linear layers of 8-bit floats: each row of a matrix has a scale, and each row that is multiplied, as it comes.

Design: docs/design/precisions.md
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

# Numbers in 8 bits, of which four are the exponent.
KIND = torch.float8_e4m3fn
_LARGEST = torch.finfo(KIND).max
_LEAST = 1e-12
# The widest rows that the compiler reduces without reading them twice.
_JOINED_WIDTH = 1024
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": nn.functional.gelu, "silu": nn.functional.silu}
_JOINED = {torch._C._nn.gelu: "gelu", nn.functional.silu: "silu", torch._C._nn.silu: "silu"}
_PRODUCTS = (operator.mul, torch.mul)


class RoundedLinear(nn.Module):
    """A linear layer whose matrix and input are rounded to 8 bits."""

    # transformers' T5 looks at the type of its matrix.
    weight = None
    rounded: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        rounded, scales = round_rows(plain.weight.detach().float())
        self.register_buffer("rounded", rounded)
        self.register_buffer("scales", scales.t().contiguous())
        self.register_buffer("bias", None if plain.bias is None else plain.bias.detach().to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        # The compiler joins the rounding of narrow rows with the norm before it. Wide ones it would read twice.
        joined = torch.compiler.is_compiling() and self.in_features <= _JOINED_WIDTH
        rows, scales = round_rows(x) if joined else _round_activated(x, "", None)
        product = multiply(rows, scales, self.rounded, self.scales, self.bias)
        return product.view(*x.shape[:-1], self.out_features)


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits, each divided by its scale, and these scales."""
    x = x.reshape(-1, x.shape[-1]).float()
    scales = x.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / _LARGEST
    return (x / scales).clamp(-_LARGEST, _LARGEST).to(KIND), scales


@torch.library.custom_op("shardmill::round_activated", mutates_args=())
def _round_activated(x: Tensor, kind: str, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same of `activation(x) * gate`, in one pass on a GPU; GELU is its tanh form there."""
    if x.is_cuda:
        from shardmill.models.fp8_rows import round_by_triton

        return round_by_triton(x, kind, gate, KIND, _LEAST)
    y = _ACTIVATIONS[kind](x.float()) if kind else x
    return round_rows(y if gate is None else y * gate)


@_round_activated.register_fake
def _(x: Tensor, kind: str, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    return x.new_empty(rows, x.shape[-1], dtype=KIND), x.new_empty(rows, 1, dtype=torch.float32)


def multiply(rows: Tensor, scales: Tensor, matrix: Tensor, matrix_scales: Tensor, bias: Tensor | None) -> Tensor:
    """The product of rows and a matrix, both rounded, in bfloat16."""
    if rows.is_cuda:
        return torch._scaled_mm(
            rows, matrix.t(), scales, matrix_scales, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    product = rows.float() @ matrix.float().t() * scales * matrix_scales
    return (product if bias is None else product + bias.float()).to(torch.bfloat16)


def join_activations(graph: torch.fx.GraphModule) -> None:
    """Round the same rows once, and what an activation gives in the same pass, with the product by a gate."""
    first: dict[Any, torch.fx.Node] = {}
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.shardmill.round_activated.default):
        node.replace_all_uses_with(first.setdefault(node.args[0], node))
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.shardmill.round_activated.default):
        x: Any = _only_used_by(node.args[0], node)
        gate: Any = None
        if x is not None and x.target in _PRODUCTS and len(x.args) == 2:
            for one, other in (x.args, x.args[::-1]):
                if _activation_of(_only_used_by(one, x)):
                    x, gate = one, other
                    break
        if kind := _activation_of(x):
            node.args = (x.args[0], kind, gate)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _only_used_by(node: Any, user: torch.fx.Node) -> torch.fx.Node | None:
    """The node, without dropout after it, if nothing else reads it."""
    while isinstance(node, torch.fx.Node) and list(node.users) == [user]:
        if node.target is not nn.functional.dropout:
            return node
        node, user = node.args[0], node
    return None


def _activation_of(node: torch.fx.Node | None) -> str:
    return _JOINED.get(cast("Any", node.target), "") if node is not None and node.op == "call_function" else ""
