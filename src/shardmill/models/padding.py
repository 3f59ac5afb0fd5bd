"""Families whose vectors depend on what a text is padded to: they run in batches of texts of one length."""

from __future__ import annotations

from typing import Any

# Raised when their vectors change. Before revision 1, which was not recorded, a vector depended on its batch.
_REVISION = "length 1"


def padding_counts(config: dict[str, Any]) -> bool:
    """Whether a model mixes padding into its vectors: by convolution, landmarks or blocks drawn for a length."""
    kind = config.get("model_type")
    if kind == "big_bird":
        return bool(config.get("attention_type", "block_sparse") == "block_sparse")
    return kind in ("convbert", "nystromformer")


def padding_revision(config: dict[str, Any]) -> dict[str, str]:
    """A fingerprint's `padding` for such models; else nothing."""
    return {"padding": _REVISION} if padding_counts(config) else {}
