"""After the transformer, with torch: the pooling of a padded batch, and the steps that follow it."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from shardmill.core.errors import ModelError
from shardmill.models.folder import Dense, LayerNorm, Normalize, Pooling, Step


def load_step(step: Step) -> nn.Module:
    """The layer of a step after pooling."""
    if isinstance(step, Normalize):
        return nn.Identity()
    layer = _DenseLayer(step) if isinstance(step, Dense) else _NormLayer(step)
    try:
        # The file may be that of a whole model.
        layer.load_state_dict({k: v.float() for k, v in load_file(step.weights).items() if k in layer.state_dict()})
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{step.weights} does not fit its config.json.", hint="Fetch the model again.") from error
    return layer.eval()


class _DenseLayer(nn.Module):
    def __init__(self, said: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(said.in_features, said.out_features, bias=said.bias)
        self.activation = getattr(nn, said.activation)()
        self.adds_input = said.residual
        if said.residual and said.in_features != said.out_features:
            self.residual: nn.Module = nn.Linear(said.in_features, said.out_features, bias=False)
        else:
            self.residual = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.linear(x))
        return y + self.residual(x) if self.adds_input else y


class _NormLayer(nn.Module):
    def __init__(self, said: LayerNorm) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(said.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


def apply_step(step: Step, layer: nn.Module, vectors: Tensor) -> Tensor:
    """The vectors after a step."""
    if isinstance(step, Normalize):
        return nn.functional.normalize(vectors, p=2, dim=-1)
    result: Tensor = layer(vectors)
    return result


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling, skip: int) -> Tensor:
    """One vector per row of a padded batch, or per token, in float32."""
    if pooling.keeps_tokens:
        return hidden[mask.bool()].float()
    hidden = hidden.float()
    if skip:
        mask = mask.clone()
        mask[:, :skip] = 0
    return torch.cat([_pool_by(mode, hidden, mask) for mode in pooling.modes], dim=-1)


def _pool_by(mode: str, hidden: Tensor, mask: Tensor) -> Tensor:
    rows = torch.arange(len(hidden), device=hidden.device)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if mode == "cls":
        return hidden[rows, mask.argmax(dim=1)]
    if mode == "max":
        return hidden.masked_fill(weights == 0, float("-inf")).amax(dim=1)
    if mode == "lasttoken":
        positions = torch.arange(mask.shape[1], device=mask.device)
        last = (positions * mask).argmax(dim=1)
        return hidden[rows, last] * weights[rows, last]
    if mode == "weightedmean":
        positions = torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=hidden.dtype)
        weights = weights * positions.view(1, -1, 1)
    # Multiplying a padded position by zero is not enough: NaN * 0 is NaN.
    total = torch.where(weights > 0, hidden * weights, 0.0).sum(dim=1)
    count = weights.sum(dim=1).clamp(min=1e-9)
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)
