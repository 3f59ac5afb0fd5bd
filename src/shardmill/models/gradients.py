"""Gradients of attention over texts stored back to back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def by_flash(
    up: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int, scale: float, window: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values by torch's own kernels, in half precision on a GPU.

    Attention is computed again, since the kernel that was used does not keep what these need.
    """
    shared = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
    texts = (starts, starts, longest, longest)
    reach = {"scale": scale, "window_size_left": window[0], "window_size_right": window[1]}
    made = torch.ops.aten._flash_attention_forward(q, k, v, *texts, 0.0, False, False, **reach)
    out, logsumexp, state, unused, _ = made
    back = torch.ops.aten._flash_attention_backward(
        up.contiguous(), q, k, v, out, logsumexp, *texts, 0.0, False, state, unused, **reach
    )
    return back[0], _per_key_head(back[1], shared), _per_key_head(back[2], shared)


def one_by_one(
    up: Tensor, q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], masks: Sequence[Tensor | None], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the formula, one text at a time; `masks` are true where a row sees a column, None for everywhere."""
    shared = q.shape[1] // k.shape[1]
    found = []
    for mask, *parts in zip(masks, *(torch.split(t, list(lengths)) for t in (up, q, k, v)), strict=True):
        above, a, b, c = (t.transpose(0, 1).float() for t in parts)
        b, c = (t.repeat_interleave(shared, dim=0) for t in (b, c))
        scores = a @ b.mT * scale
        weights = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(dim=-1)
        steep = above @ c.mT
        slopes = weights * (steep - (steep * weights).sum(dim=-1, keepdim=True)) * scale
        found.append([t.transpose(0, 1) for t in (slopes @ b, slopes.mT @ a, weights.mT @ above)])
    queries, keys, values = (torch.cat(each).to(q.dtype) for each in zip(*found, strict=True))
    return queries, _per_key_head(keys, shared), _per_key_head(values, shared)


def _per_key_head(gradients: Tensor, shared: int) -> Tensor:
    """The sum over the query heads that share a key head."""
    tokens, heads, width = gradients.shape
    return gradients if shared == 1 else gradients.reshape(tokens, heads // shared, shared, width).sum(dim=2)
