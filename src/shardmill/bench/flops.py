"""The floating-point operations of a model, from the shapes of its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardmill.models.folder import ModelFolder, stored_shapes

# Weights that are looked up or unused, so they cause no matrix products per token.
_NOT_PER_TOKEN = ("embed", "shared.", "wte.", "wpe.", "lm_head", "pooler", "position", "relative_attention_bias")
_CAUSAL = ("qwen", "llama", "mistral")
_SHARED_LAYERS = ("albert",)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Floating-point operations of one forward pass: per token, and per pair of tokens in one text."""

    per_token: float
    per_pair: float

    def flops(self, tokens: int, pairs: int) -> float:
        return self.per_token * tokens + self.per_pair * pairs


def count_arithmetic(folder: ModelFolder) -> Arithmetic:
    """Count matrix products only: two operations per weight, and the two products of attention; padding is left out."""
    config = folder.config
    layers = _first(config, "num_hidden_layers", "n_layers", "num_layers", "n_layer")
    heads = _first(config, "num_attention_heads", "n_heads", "num_heads", "n_head")
    hidden = _first(config, "hidden_size", "dim", "d_model", "n_embd")
    width = heads * (config.get("head_dim") or config.get("d_kv") or hidden // max(1, heads))
    shared = layers if config["model_type"] in _SHARED_LAYERS else 1
    attention = 4.0 * layers * width * (0.5 if _is_causal(config) else 1.0)
    return Arithmetic(2.0 * shared * _matrix_weights(folder), attention)


def _first(config: dict[str, Any], *names: str) -> int:
    return int(next((config[name] for name in names if config.get(name)), 0))


def _is_causal(config: dict[str, Any]) -> bool:
    named = (config.get("architectures") or [""])[0].endswith("ForCausalLM")
    return (named or config["model_type"].startswith(_CAUSAL)) and bool(config.get("is_causal", True))


def _matrix_weights(folder: ModelFolder) -> int:
    """The number of matrix weights used for every token, read from the headers of the weights."""
    matrices = {name: shape for name, shape in stored_shapes(folder) if len(shape) == 2}
    return sum(math.prod(shape) for name, shape in matrices.items() if not any(part in name for part in _NOT_PER_TOKEN))
