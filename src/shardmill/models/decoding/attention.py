"""Attention over pages, registered through transformers' own interface: the model's modules run unchanged.

A model is called without a cache. The attention of each layer keeps the new keys and values in pages and reads the
earlier ones there, so rows of any length run side by side as one row of tokens, without padding.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shardmill.models.decoding.pages import PAGE_TOKENS, Pages
from shardmill.models.packed import Pack, attend_pack, on_top, refuse_unknown
from shardmill.models.window import find_reach

ATTENTION = "shardmill_paged"
# The modules that attend to the encoder's states, by the names that families give them.
CROSS_NAMES = ("encoder_attn", "EncDecAttention", "crossattention")


@dataclass(frozen=True, slots=True)
class Held:
    """The pages of some rows, and how many tokens of each are seen. `places` are of the tokens that run now."""

    pages: Pages
    table: Tensor
    lengths: Tensor
    places: Tensor | None = None


@dataclass(slots=True)
class Turn:
    """One call of the model: whole texts that are back to back (`pack`), or one new token of each row.

    `own` is None for an encoder, which keeps nothing. `bias` is added to the scores of self-attention by distance, as
    in `models.attention.attend`. `before` are the pages of a text that comes before each text of the pack. `layer`
    counts the layers that have attended so far.
    """

    pack: Pack | None
    own: Held | None
    cross: Held | None = None
    bias: Tensor | None = None
    before: Tensor | None = None
    layer: int = -1


_turns: list[Turn] = []


def running(turn: Turn) -> AbstractContextManager[None]:
    return on_top(_turns, turn)


def register() -> None:
    """Register the attention with transformers. It is asked for no mask: a row sees what its pages hold."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, paged_attention)


def mark_cross(model: torch.nn.Module) -> None:
    """Mark the modules that attend to the encoder's states, which look like the others from inside the attention."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in CROSS_NAMES:
            module.shardmill_cross = True


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer in the current turn; inputs are (1, heads, tokens, width).

    `position_bias` is what the modules carry from layer to layer; the turn has it by distance.
    """
    refuse_unknown(kwargs)
    cross = bool(getattr(module, "shardmill_cross", False))
    left, _ = find_reach(True, True, sliding_window)
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    return _attend(q, k, v, scaling or q.shape[-1] ** -0.5, left, cross)[None], None


@torch.library.custom_op("shardmill::attend_turn", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, cross: bool) -> Tensor:
    """One opaque operation: compiled code depends neither on the layer's number nor on what its pages hold."""
    turn = _turns[-1]
    if turn.own is None:
        assert turn.pack is not None
        return attend_pack(q, k, v, turn.pack, scale, (-1, -1), turn.bias)
    if not cross:
        turn.layer += 1
    held = turn.cross if cross else turn.own
    assert held is not None
    keys, values = held.pages.keys[turn.layer], held.pages.values[turn.layer]
    if held.places is not None:
        _store(k, v, keys, values, held.places)
    if turn.pack is not None and not cross:
        earlier = None if turn.before is None else (_lay(keys[turn.before]), _lay(values[turn.before]))
        return attend_pack(q, k, v, turn.pack, scale, (left, 0), turn.bias, earlier)
    return _attend_pages(q, keys, values, held, scale, -1 if cross else left, None if cross else turn.bias)


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, cross: bool) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def _lay(pages: Tensor) -> Tensor:
    """Full pages as (tokens, heads, width)."""
    return pages.transpose(1, 2).flatten(0, 1)


def _store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    if k.is_cuda:
        from shardmill.models.decoding.kernels import store

        store(k, v, keys, values, places)
        return
    kept = places >= 0
    page, within = places[kept] // PAGE_TOKENS, places[kept] % PAGE_TOKENS
    keys[page, :, within], values[page, :, within] = k[kept], v[kept]


def _attend_pages(
    q: Tensor, keys: Tensor, values: Tensor, held: Held, scale: float, reach: int, bias: Tensor | None
) -> Tensor:
    # A new token looks back only: distances 0, -1, -2, …
    back = None if bias is None else bias[:, : bias.shape[1] // 2 + 1].flip(1)
    if q.is_cuda:
        from shardmill.models.decoding.kernels import attend_pages

        result: Tensor = attend_pages(q, keys, values, held.table, held.lengths, scale, reach, back)
        return result
    out = torch.zeros_like(q)
    for row, length in enumerate(held.lengths.tolist()):
        if length:
            first = 0 if reach < 0 else max(0, length - 1 - reach)
            k, v = (_gather(kept, held.table[row], first, length) for kept in (keys, values))
            mask = None
            if back is not None:
                mask = back[:, torch.arange(length - 1 - first, -1, -1).clamp(max=back.shape[1] - 1)][:, None]
            out[row] = scaled_dot_product_attention(
                q[row, :, None][None], k, v, mask, scale=scale, enable_gqa=q.shape[1] != keys.shape[1]
            )[0, :, 0]
    return out


def _gather(kept: Tensor, table: Tensor, first: int, length: int) -> Tensor:
    """The tokens [first, length) of one row, as (1, heads, tokens, width)."""
    pages = kept[table[: -(-length // PAGE_TOKENS)].long()]
    return pages.transpose(0, 1).reshape(1, kept.shape[1], -1, kept.shape[3])[:, :, first:length]
