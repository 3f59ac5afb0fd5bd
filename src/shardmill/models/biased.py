"""Position biases that depend on distance alone, for packed attention: those of MPNet, T5 and their children.

Their modules make a bias for every pair of tokens in a batch, which has no end in a packed one. Here they pass on one
row of it, from the farthest token on the left to the farthest on the right, which the kernel reads by distance.
Design: docs/design/packed-and-compiled.md
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

# MPNet's code has it as a default, and its config.json cannot say another.
_MPNET_REACH = 128
_OF_T5 = ("has_relative_attention_bias", "compute_bias", "relative_attention_max_distance")

# Attention as `packed` registers it: (queries, keys, values, scale, bias) -> mixed, each (tokens, heads, width).
Attend = Callable[[Tensor, Tensor, Tensor, float, Tensor], Tensor]


def take_over_biases(model: Any, name: str, attend: Attend) -> bool:
    """Let a model's modules pass on their biases by distance; False if it has none that is known here.

    Each bias is a copy in float32, which does not learn. The modules of MPNet do not ask transformers for the attention
    of this `name`, so they are given `attend`.
    """
    found = False
    for module in list(model.modules()):
        kind: Any = type(module)
        # Other families have attributes of these names, too, with another meaning.
        if all(hasattr(module, said) for said in _OF_T5):
            if module.has_relative_attention_bias:
                module.shardmill_bias = bias_by_distance(module)[None, :, None]
            module.__class__ = _passing_on(kind, "compute_bias")
            found = True
        elif kind.__name__ == "MPNetEncoder":
            module.shardmill_bias = _bias_of_mpnet(module)[None, :, None]
            module.__class__ = _passing_on(kind, "compute_position_bias")
            found = True
        elif kind.__name__ == "MPNetSelfAttention":
            module.__class__ = _attending(kind, attend)
            # So it makes no mask for every pair of tokens either.
            model.config._attn_implementation = name
    return found


def bias_by_distance(module: Any) -> Tensor:
    """The bias of T5 and its kin in float32, (heads, distances): distance 0 is in the middle, and beyond the ends it
    stays as it is there."""
    reach = int(module.relative_attention_max_distance)
    bias: Tensor = module.compute_bias(reach + 1, 2 * reach + 1)
    return bias[0, :, reach].detach().float()


def _bias_of_mpnet(module: Any) -> Tensor:
    rows = torch.empty((1, 2 * _MPNET_REACH + 1, 1), device=module.relative_attention_bias.weight.device)
    bias: Tensor = module.compute_position_bias(rows)
    return bias[0, :, _MPNET_REACH].detach().float()


# Classes are replaced, not methods of single modules: the compiler then sees one kind of layer, and makes one graph.


@cache
def _passing_on(kind: type[nn.Module], method: str) -> type[nn.Module]:
    """The same class, whose method gives the bias by distance."""

    def give(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        bias: Tensor = self.shardmill_bias
        return bias

    return type(kind.__name__, (kind,), {method: give, "passes_bias_by_distance": True})


@cache
def _attending(kind: type[nn.Module], attend: Attend) -> type[nn.Module]:
    """MPNet's attention, over packed texts."""

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **kwargs: Any
    ) -> tuple[Tensor]:
        heads = (*hidden_states.shape[1:-1], -1, self.attention_head_size)
        q, k, v = (part(hidden_states)[0].view(heads) for part in (self.q, self.k, self.v))
        mixed = attend(q, k, v, self.attention_head_size**-0.5, position_bias[0, :, 0])
        return (self.o(mixed.flatten(1)[None]),)

    return type(kind.__name__, (kind,), {"forward": forward})
