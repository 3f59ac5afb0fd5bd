"""Attention over texts stored back to back, as a Triton kernel with small tiles, made for short texts.

A program takes some rows of one text and one head, loops over that text's keys and updates the softmax as it goes.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = 1.4426950408889634
# Rows, columns and stages of a tile: the fastest of eighteen tried on an H200, for heads 32, 64 and 128 wide.
_SHORT_TOKENS = 160
_SHORT_TILE = (64, 32, 2)
_LONG_TILE = (64, 64, 3)


@triton.jit
def _fold(v, scores, seen, highest, total, mixed):
    """Add a tile of columns to the softmax so far."""
    scores = tl.where(seen, scores, -1e30)
    higher = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
    shrink = tl.exp2(highest - higher)
    total = total * shrink + tl.sum(weights, 1)
    return higher, total, tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")


@triton.jit(do_not_specialize=["heads", "group", "tiles", "left", "right", "bias_head", "bias_reach", "before"])
def _attend(
    q_at, k_at, v_at, out_at, starts_at, scale,
    q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head,
    heads, group, tiles, left, right, bias_at, bias_head, bias_reach,
    before_k_at, before_v_at, before_row, before_head, before,
    bound_left: tl.constexpr, bound_right: tl.constexpr, biased: tl.constexpr, preceded: tl.constexpr,
    width: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first_row = program % tiles * tile_rows
    head = program // tiles % heads
    text = program // tiles // heads
    start = tl.load(starts_at + text).to(tl.int64)
    length = (tl.load(starts_at + text + 1) - start).to(tl.int32)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, tile_rows)
    within = tl.arange(0, width)
    q_at += start * q_row + head * q_head
    k_at += start * k_row + (head // group) * k_head
    v_at += start * v_row + (head // group) * v_head
    q = tl.load(q_at + rows[:, None] * q_row + within[None, :], mask=rows[:, None] < length, other=0.0)
    highest = tl.full([tile_rows], -1e30, tl.float32)
    total = tl.zeros([tile_rows], tl.float32)
    mixed = tl.zeros([tile_rows, width], tl.float32)
    if preceded:
        before_at = (head // group) * before_head + within[None, :]
        for first in range(0, before, tile_columns):
            columns = first + tl.arange(0, tile_columns)
            there = columns[:, None] < before
            k = tl.load(before_k_at + before_at + columns[:, None] * before_row, mask=there, other=0.0)
            v = tl.load(before_v_at + before_at + columns[:, None] * before_row, mask=there, other=0.0)
            seen = columns[None, :] < before
            if bound_left:
                seen = seen & (before + rows[:, None] - columns[None, :] <= left)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            highest, total, mixed = _fold(v, scores, seen, highest, total, mixed)
    low, high = 0, length
    if bound_left:
        low = tl.maximum(0, first_row - left) // tile_columns * tile_columns
    if bound_right:
        high = tl.minimum(length, first_row + tile_rows + right)
    for first in range(low, high, tile_columns):
        columns = first + tl.arange(0, tile_columns)
        there = columns[:, None] < length
        k = tl.load(k_at + columns[:, None] * k_row + within[None, :], mask=there, other=0.0)
        v = tl.load(v_at + columns[:, None] * v_row + within[None, :], mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if biased:
            distance = tl.minimum(tl.maximum(columns[None, :] - rows[:, None], -bias_reach), bias_reach)
            scores += tl.load(bias_at + head * bias_head + distance + bias_reach)
        seen = columns[None, :] < length
        if bound_left:
            seen = seen & (rows[:, None] - columns[None, :] <= left)
        if bound_right:
            seen = seen & (columns[None, :] - rows[:, None] <= right)
        highest, total, mixed = _fold(v, scores, seen, highest, total, mixed)
    mixed = mixed / total[:, None]
    out_at += start * out_row + head * out_head
    tl.store(
        out_at + rows[:, None] * out_row + within[None, :],
        mixed.to(out_at.dtype.element_ty),
        mask=rows[:, None] < length,
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    window: tuple[int, int],
    bias: Tensor | None = None,
    earlier: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Inputs and output are (tokens, heads, width); query heads share key heads evenly if there are fewer of those.

    `bias`, (heads, distances), is added to the scores by the distance from row to column; its middle is distance 0.
    `earlier` are keys and values, of the same strides, of a text that comes before each text.
    """
    rows, columns, stages = _LONG_TILE if longest > _SHORT_TOKENS else _SHORT_TILE
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    left, right = window
    heads, tiles = q.shape[1], triton.cdiv(longest, rows)
    biases = out if bias is None else bias * _LOG2_E
    before_k, before_v = earlier or (out, out)
    _attend[(tiles * heads * (len(starts) - 1),)](
        q, k, v, out, starts, scale * _LOG2_E,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), out.stride(0), out.stride(1),
        heads, heads // k.shape[1], tiles, left, right, biases, biases.stride(0), biases.shape[1] // 2,
        before_k, before_v, before_k.stride(0), before_k.stride(1), 0 if earlier is None else len(before_k),
        bound_left=left >= 0, bound_right=right >= 0, biased=bias is not None, preceded=earlier is not None,
        width=q.shape[2], tile_rows=rows, tile_columns=columns, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return out
