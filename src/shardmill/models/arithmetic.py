"""The floating-point operations of a model, from the shapes of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Weights that are looked up or unused, so they cause no matrix products per token.
_NOT_PER_TOKEN = ("embed", "shared.", "wte.", "wpe.", "lm_head", "pooler", "position", "relative_attention_bias")
_CAUSAL = ("qwen", "llama", "mistral")
_SHARED_LAYERS = ("albert",)
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Floating-point operations of one forward pass: per token, and per pair of tokens in one text."""

    per_token: float
    per_pair: float

    def flops(self, tokens: int, pairs: int) -> float:
        return self.per_token * tokens + self.per_pair * pairs


def count_arithmetic(config: dict[str, Any], shapes: Iterable[tuple[str, Sequence[int]]]) -> Arithmetic:
    """Count matrix products only: two operations per weight, and the two products of attention; padding is left out.

    `shapes` are the names and shapes of the stored tensors.
    """
    layers = count_layers(config)
    heads = _first(config, "num_attention_heads", "n_heads", "num_heads", "n_head")
    hidden = _first(config, "hidden_size", "dim", "d_model", "n_embd")
    width = heads * (config.get("head_dim") or config.get("d_kv") or hidden // max(1, heads))
    shared = layers if config.get("model_type") in _SHARED_LAYERS else 1
    attention = 4.0 * layers * width * (0.5 if _is_causal(config) else 1.0)
    return Arithmetic(2.0 * shared * _matrix_weights(config, shapes), attention)


def count_layers(config: dict[str, Any]) -> int:
    """The layers of a model, or of its encoder."""
    return _first(config, *_LAYERS)


def _first(config: dict[str, Any], *names: str) -> int:
    return int(next((config[name] for name in names if config.get(name)), 0))


def _is_causal(config: dict[str, Any]) -> bool:
    named = (config.get("architectures") or [""])[0].endswith("ForCausalLM")
    return (named or str(config.get("model_type")).startswith(_CAUSAL)) and bool(config.get("is_causal", True))


def _matrix_weights(config: dict[str, Any], shapes: Iterable[tuple[str, Sequence[int]]]) -> int:
    """The number of matrix weights used for every token that is read."""
    left_out = (*_NOT_PER_TOKEN, "decoder.") if config.get("is_encoder_decoder") else _NOT_PER_TOKEN
    matrices = {name: shape for name, shape in shapes if len(shape) == 2}
    return sum(math.prod(shape) for name, shape in matrices.items() if not any(part in name for part in left_out))
