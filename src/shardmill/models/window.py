"""Sliding windows: which neighbours a token sees, and which models have them."""

from __future__ import annotations

from typing import Any

# Models whose windows reach to both sides; others say so in their config.
_BOTH_SIDES = {"modernbert", "embedding_gemma2", "embedding_gemma2_text", "neomme", "ultrabert"}
# Raised when the vectors of models with windows to both sides change. Revision 1, which was not recorded, saw only
# half of each window on GPUs.
_REVISION = "2"


def find_window(config: dict[str, Any]) -> int:
    """The window of a model's layers in tokens, from its config.json; 0 if every layer sees whole texts."""
    config = {**config, **(config.get("text_config") or {})}
    layers = config.get("layer_types")
    if config.get("use_sliding_window") is False or (layers and "sliding_attention" not in layers):
        return 0
    return int(config.get("local_attention") or config.get("sliding_window") or 0)


def numerics_revision(config: dict[str, Any]) -> dict[str, str]:
    """A fingerprint's `numerics` for models whose vectors an earlier version computed differently; else nothing."""
    text = {**config, **(config.get("text_config") or {})}
    both_sides = (
        not _BOTH_SIDES.isdisjoint((config.get("model_type"), text.get("model_type")))
        or text.get("use_bidirectional_attention") in (True, "all")
        or text.get("is_causal") is False
    )
    return {"numerics": _REVISION} if both_sides and find_window(config) else {}


def find_reach(made_causal: bool, is_causal: bool | None, window: int | None) -> tuple[int, int]:
    """How many tokens to its left and right a token sees, -1 for all, from what transformers passes to attention.

    A window includes the token itself: causal and bidirectional layers see `window - 1` tokens to a side. A causal
    layer that is told to be bidirectional is the exception: transformers' mask for it has `window` tokens to a side.
    """
    causal = made_causal if is_causal is None else is_causal
    if not window:
        return -1, 0 if causal else -1
    reach = window if made_causal and not causal else window - 1
    return reach, 0 if causal else reach
