"""Padding-free batches: the texts of a batch one after another, each attending to itself alone.

The attention is registered through transformers' own interface, so a model that asks that interface for its attention
runs packed without being touched. Whether it does so rightly is seen by the golden sentences before it is chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shardmill.tasks.embed.encoder import Encoder, pool
from shardmill.tasks.embed.folder import ModelFolder
from shardmill.tasks.embed.tokens import first_position

ATTENTION = "shardmill_packed"
_SUMMED = {"mean", "cls", "lasttoken"}


@dataclass(frozen=True, slots=True)
class Pack:
    """Where each text begins in a packed batch; `starts` has one entry more than there are texts."""

    starts: Tensor
    lengths: NDArray[np.int64]
    longest: int


_pack: ContextVar[Pack] = ContextVar("pack")


class PackedEncoder(Encoder):
    """Runs a batch as one row of tokens, with no padding between."""

    padded = False

    def __init__(self, folder: ModelFolder, *, device: str, pad_id: int) -> None:
        register()
        super().__init__(folder, device=device, pad_id=pad_id, attention=ATTENTION)
        self._first_position = first_position(folder)

    def _pooled(self, rows: Sequence[NDArray[np.int32]], skip: int) -> Tensor:
        lengths = np.array([len(row) for row in rows])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        ids = self._send(np.concatenate(rows).astype(np.int64))
        positions = self._send(within + self._first_position)
        pack = Pack(self._send(starts.astype(np.int32)), lengths, int(lengths.max()))
        token = _pack.set(pack)
        try:
            hidden = self._model(input_ids=ids[None], position_ids=positions[None], return_dict=True).last_hidden_state
        finally:
            _pack.reset(token)
        return self._pool_packed(hidden[0].float(), pack, skip)

    def _pool_packed(self, hidden: Tensor, pack: Pack, skip: int) -> Tensor:
        if self._pooling.include_prompt:
            skip = 0
        if skip or not set(self._pooling.modes) <= _SUMMED:
            return self._pool_padded(hidden, pack, skip)
        first, last = pack.starts[:-1].long(), pack.starts[1:].long() - 1
        vectors = []
        for mode in self._pooling.modes:
            if mode == "cls":
                vectors.append(hidden[first])
            elif mode == "lasttoken":
                vectors.append(hidden[last])
            else:
                lengths = last - first + 1
                owner = torch.repeat_interleave(lengths, output_size=len(hidden))
                total = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add_(0, owner, hidden)
                vectors.append(total / lengths[:, None])
        return torch.cat(vectors, dim=-1)

    def _pool_padded(self, hidden: Tensor, pack: Pack, skip: int) -> Tensor:
        real = self._send(np.arange(pack.longest) < pack.lengths[:, None])
        padded = hidden.new_zeros(*real.shape, hidden.shape[1])
        padded[real] = hidden
        return pool(padded, real.long(), self._pooling, skip)


def register() -> None:
    """Make the packed attention known to transformers. It needs no mask: nothing is padded."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers asks for it, over the pack that is being run: (1, heads, tokens, width) in."""
    pack = _pack.get()
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    window = (-1, 0) if causal else (-1, -1)
    if sliding_window:
        window = (sliding_window - 1, 0) if causal else (sliding_window // 2, sliding_window // 2)
    flat = [t[0].transpose(0, 1) for t in (query, key, value)]
    run = _by_varlen if query.is_cuda else _one_by_one
    return run(flat[0], flat[1], flat[2], pack, scaling, window)[None], None


def _by_varlen(q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float | None, window: tuple[int, int]) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"scale": scale}
    if "window_size" in known:
        options["window_size"] = window
    else:
        options["is_causal"] = window == (-1, 0)
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        else:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    out: Any = varlen_attn(q, k, v, pack.starts, pack.starts, pack.longest, pack.longest, **options)
    return out  # type: ignore[no-any-return]


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float | None, window: tuple[int, int]) -> Tensor:
    """The same by plain attention, a text at a time: for devices without the kernel, and to test against."""
    parts = []
    ends = np.cumsum(pack.lengths)
    for start, stop in zip(ends - pack.lengths, ends, strict=True):
        a, b, c = (t[start:stop].transpose(0, 1)[None] for t in (q, k, v))
        mask = _window_mask(int(stop - start), window, q.device)
        grouped = q.shape[1] != k.shape[1]
        parts.append(scaled_dot_product_attention(a, b, c, mask, scale=scale, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(parts)


def _window_mask(length: int, window: tuple[int, int], device: torch.device) -> Tensor | None:
    if window == (-1, -1):
        return None
    at = torch.arange(length, device=device)
    distance = at[None, :] - at[:, None]
    left, right = (length if side < 0 else side for side in window)
    return (distance <= right) & (distance >= -left)
