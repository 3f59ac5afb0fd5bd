"""Losses over the vectors of a whole batch. Texts that are equal share one vector, so none is its own negative."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, normalize

# The least difference of cosines between a right and a wrong partner that the triplet loss is content with.
MARGIN = 0.2


def in_batch(anchors: Tensor, candidates: Tensor, own: Tensor, hidden: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of each anchor's `own` candidate among all that are not `hidden` from it (InfoNCE)."""
    scores = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T / temperature
    return cross_entropy(scores.masked_fill(hidden, float("-inf")), own)


def cosent(first: Tensor, second: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Pairs with a higher label should have a higher cosine than pairs with a lower one (CoSENT)."""
    scores = cosines(first, second) / temperature
    gaps = scores[:, None] - scores[None, :]
    lower = labels[:, None] < labels[None, :]
    gaps = gaps.masked_fill(~lower, float("-inf")).flatten()
    return torch.logsumexp(torch.cat([gaps.new_zeros(1), gaps]), dim=0)


def cosine(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Mean squared difference of cosine and label."""
    return mse_loss(cosines(first, second), labels)


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float = MARGIN) -> Tensor:
    """How much closer than `margin` the cosine to the negative comes to that of the positive, on average."""
    return (cosines(anchors, negatives) - cosines(anchors, positives) + margin).clamp(min=0).mean()


def cosines(first: Tensor, second: Tensor) -> Tensor:
    return (normalize(first, dim=-1) * normalize(second, dim=-1)).sum(dim=-1)


def at_lengths(loss: Callable[[Tensor], Tensor], vectors: Tensor, dims: Sequence[int]) -> Tensor:
    """The sum of a loss over vectors cut at each of `dims` (Matryoshka); without any, the loss of whole vectors."""
    if not dims:
        return loss(vectors)
    return torch.stack([loss(vectors[:, :width]) for width in dims]).sum()
