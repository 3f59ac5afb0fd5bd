"""Layers that multiply in 8-bit floats, on GPUs with such products: Hopper and later.

Each row of a matrix has a scale of its own, and each token too, computed as it comes: nothing is calibrated, and a text
gets the same vector in every batch. Sums are float32; attention, norms, embeddings and pooling stay in bfloat16.

Design: docs/design/precisions.md
"""

from __future__ import annotations

import torch
from torch import nn

from shardmill.core.errors import ModelError
from shardmill.models.compiling import find_layers
from shardmill.models.encoder import Encoder, memory_guard
from shardmill.models.folder import ModelFolder
from shardmill.models.fp8_linear import RoundedLinear
from shardmill.models.packed import PackedEncoder

# What attention gives is multiplied in bfloat16: rounding it takes a pass of its own, which is what the product saves.
_KEPT = (*(".attention.output.dense", ".o_proj", ".out_lin", ".attn.Wo", ".attn.o", ".SelfAttention.o", ".out_proj"),)
# The products take multiples of this many numbers.
_STEP = 16
# The GPUs that multiply rows of 8-bit floats with a scale for each.
_LEAST_CAPABILITY = (9, 0)


class RoundedEncoder(PackedEncoder):
    """A packed model whose layers multiply in 8 bits."""

    def __init__(self, folder: ModelFolder, *, device: str, pad_id: int, loaded: Encoder | None = None) -> None:
        if device != "cpu" and torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
            raise ModelError(
                f"fp8 needs a GPU of compute capability 9.0 (Hopper) or later, which {torch.cuda.get_device_name()} is "
                "not."
            )
        super().__init__(folder, device=device, pad_id=pad_id, loaded=loaded)
        with memory_guard():
            rounded = round_layers(self._model)
        if not rounded:
            raise ModelError(f"{folder.transformer.name} has no layers that fp8 could round.")
        self.dtype = torch.bfloat16

    @property
    def precision(self) -> str:
        return "fp8"


def round_layers(model: nn.Module) -> int:
    """Round the matrices of a model's repeated layers, and say how many there were. The rest is in bfloat16 then."""
    found = [
        (parent, name, child)
        for path, parent in find_layers(model).named_modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and not (child.in_features % _STEP or child.out_features % _STEP)
        if not f"{path}.{name}".endswith(_KEPT)
    ]
    rounded = [(parent, name, RoundedLinear(child)) for parent, name, child in found]
    for parent, name, _ in rounded:
        delattr(parent, name)
    model.to(torch.bfloat16)
    for parent, name, linear in rounded:
        setattr(parent, name, linear)
    return len(rounded)
