"""Models compiled by torch, once for all batch shapes.

On a GPU only the repeated layer is compiled, so that it takes seconds for any number of layers. On a CPU the whole
model is compiled: only then are its weights laid out for the matrix products in advance, which is most of the gain.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from shardmill.models.fp8_linear import join_activations


def compile_layers(model: nn.Module, *, learns: bool = False) -> None:
    """Compile the layers of `model` at their next call, with gradients if it `learns`.

    Raises LookupError if none are found.
    """
    for layer in find_layers(model):
        layer.compile(backend="inductor" if learns else _compile, dynamic=True)


def find_layers(model: nn.Module) -> nn.ModuleList:
    """The longest stack of equal layers; LookupError if there is none."""
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(layer) for layer in m}) == 1]
    if not stacks:
        raise LookupError("no stack of equal layers")
    return max(stacks, key=len)


def _compile(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    join_gelu(graph)
    join_activations(graph)
    return compile_fx(graph, inputs)


def compile_whole(model: Any) -> Any:
    """The model with its weights as they are now, compiled at its next call."""
    return torch.compile(model, dynamic=True, options={"freezing": True})


def eager_if(small: bool) -> contextlib.AbstractContextManager[object]:
    """Run a small batch without compiled code, since its shape would trigger another compilation."""
    return torch.compiler.set_stance("force_eager") if small else contextlib.nullcontext()


def join_gelu(graph: torch.fx.GraphModule) -> None:
    """Fuse each GELU into the matrix product before it, which saves writing and reading the intermediate result."""
    for node in graph.graph.find_nodes(op="call_function", target=torch._C._nn.gelu):
        linear = node.args[0]
        if linear.target is not torch._C._nn.linear or len(linear.users) > 1 or len(linear.args) < 3:
            continue
        x, weight, bias = linear.args
        if bias is None:
            continue
        with graph.graph.inserting_before(node):
            joined = graph.graph.call_function(torch.ops.shardmill.linear_gelu.default, (x, weight, bias))
        joined.meta = dict(node.meta)
        node.replace_all_uses_with(joined)
        graph.graph.erase_node(node)
        graph.graph.erase_node(linear)
    graph.recompile()


@torch.library.custom_op("shardmill::linear_gelu", mutates_args=())
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One cuBLAS kernel. It uses the tanh GELU, whose error is smaller than the rounding of half precision."""
    flat = torch._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=True)
    return flat.view(*x.shape[:-1], weight.shape[0])


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
