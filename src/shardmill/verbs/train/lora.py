"""Low-rank factors beside the linear layers of a frozen transformer, and the adapter's folder, as PEFT reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from shardmill.core.errors import ModelError
from shardmill.models.adapters.lora import SETTINGS, TRAINED_ON, WEIGHTS

# Where the adapter is in the folder of the trained model.
ADAPTER = "adapter"


class LoraLinear(nn.Module):
    """A linear layer that does not learn, with two factors that do: x W' + scale x A' B'."""

    def __init__(self, inner: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale
        self.lora_a = nn.Parameter(torch.empty(rank, inner.in_features))
        self.lora_b = nn.Parameter(torch.zeros(inner.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """The frozen weight, whose type some families ask for."""
        return self.inner.weight

    @property
    def bias(self) -> Tensor | None:
        return self.inner.bias

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x)
        return made + self.scale * nn.functional.linear(nn.functional.linear(x, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The layer with its factors merged in, by the arithmetic that merges a stored adapter."""
        delta = (_array(self.lora_b) @ _array(self.lora_a)) * np.float32(self.scale)
        weight = self.inner.weight
        weight.copy_(torch.from_numpy(_array(weight) + delta))
        return self.inner


class TrainedAdapter:
    """The factors of every linear layer of a transformer, which is frozen with all that comes after it."""

    def __init__(self, modules: nn.ModuleList, rank: int, alpha: float, seed: int) -> None:
        self.rank, self.alpha = rank, alpha
        self._model = modules[0]
        modules.requires_grad_(False)
        found = [(name, each) for name, each in self._model.named_modules() if isinstance(each, nn.Linear)]
        if not found:
            raise ModelError("The model has no linear layers to adapt.", hint="Train it without --lora.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for name, inner in found:
                self._put(name, LoraLinear(inner, rank, alpha / rank).to(inner.weight.device))

    def write(self, folder: Path, base: str, digest: str) -> None:
        """Write the factors that learnt; `base` names the model that they belong to, `digest` its weights."""
        folder.mkdir(parents=True, exist_ok=True)
        learnt = {name: each for name, each in self._layers() if each.lora_b.requires_grad}
        tensors = {
            f"base_model.model.{name}.{part}.weight": factor.detach().cpu().contiguous()
            for name, each in learnt.items()
            for part, factor in (("lora_A", each.lora_a), ("lora_B", each.lora_b))
        }
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", TRAINED_ON: digest})
        said: dict[str, Any] = {
            "base_model_name_or_path": base,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": sorted(learnt),
            "task_type": "FEATURE_EXTRACTION",
            "use_rslora": False,
        }
        (folder / SETTINGS).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")

    def merge(self) -> None:
        """Make the transformer a plain one again, which has learnt."""
        for name, each in list(self._layers()):
            self._put(name, each.merged())

    def _layers(self) -> list[tuple[str, LoraLinear]]:
        return [(name, each) for name, each in self._model.named_modules() if isinstance(each, LoraLinear)]

    def _put(self, name: str, module: nn.Module) -> None:
        parent, _, leaf = name.rpartition(".")
        setattr(self._model.get_submodule(parent), leaf, module)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()
