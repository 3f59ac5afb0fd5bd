"""Triton kernels for keys and values in pages: storing them, and one new token of each row attending to its pages."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = 1.4426950408889634
# The fastest of nine tried on an H200 with pages of 64 tokens: 3.9 to 4.0 TB/s.
_WARPS, _STAGES = 2, 3
_LEAST_DOT_ROWS = 16


@triton.jit(do_not_specialize=["columns"])
def _attend_pages(
    q_at, keys_at, values_at, table_at, lengths_at, out_at, scale,
    q_row, q_head, page_stride, head_stride, columns, reach, bias_at, bias_head, bias_most,
    group: tl.constexpr, rows: tl.constexpr, width: tl.constexpr, page: tl.constexpr,
    bounded: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    shared = tl.program_id(1)
    heads = tl.num_programs(1) * group
    length = tl.load(lengths_at + row)
    within, tokens, members = tl.arange(0, width), tl.arange(0, page), tl.arange(0, rows)
    head = shared * group + members
    member = members < group
    q = tl.load(q_at + row * q_row + head[:, None] * q_head + within[None, :], mask=member[:, None], other=0.0)
    highest = tl.full([rows], -1e30, tl.float32)
    total = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, width], tl.float32)
    low = 0
    if bounded:
        low = tl.maximum(0, length - 1 - reach) // page * page
    for first in range(low, length, page):
        number = tl.load(table_at + row * columns + first // page).to(tl.int64)
        at = number * page_stride + shared * head_stride + tokens[:, None] * width + within[None, :]
        seen = first + tokens < length
        if bounded:
            seen = seen & (length - 1 - first - tokens <= reach)
        k = tl.load(keys_at + at)
        v = tl.load(values_at + at)
        if group == 1:
            scores = tl.sum(k.to(tl.float32) * q.to(tl.float32), 1)[None, :] * scale
        else:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if biased:
            distance = tl.minimum(length - 1 - first - tokens, bias_most)
            there = member[:, None] & seen[None, :]
            scores += tl.load(bias_at + head[:, None] * bias_head + distance[None, :], mask=there, other=0.0)
        scores = tl.where(seen[None, :], scores, -1e30)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.where(seen[None, :], tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.where(seen[:, None], v, 0.0)
        if group == 1:
            add = tl.sum(tl.trans(weights) * v.to(tl.float32), 0)[None, :]
            mixed = mixed * shrink[:, None] + add
        else:
            mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
        highest = higher
    mixed = mixed / tl.maximum(total, 1e-30)[:, None]
    tl.store(
        out_at + (row * heads + head[:, None]) * width + within[None, :],
        mixed.to(out_at.dtype.element_ty),
        mask=member[:, None],
    )


def attend_pages(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    scale: float,
    reach: int,
    bias: Tensor | None = None,
) -> Tensor:
    """One query a row, (rows, heads, width), over the first `lengths` tokens of each row's pages.

    With `reach`, only the last `reach` + 1 of them are seen. `bias` is (heads, distances), added by distance.
    """
    rows, heads, width = q.shape
    shared, page = keys.shape[1], keys.shape[2]
    group = heads // shared
    out = torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    bias = None if bias is None else bias * _LOG2_E
    _attend_pages[(rows, shared)](
        q, keys, values, table, lengths, out, scale * _LOG2_E,
        q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), table.shape[1], reach,
        out if bias is None else bias, 0 if bias is None else bias.stride(0), 0 if bias is None else bias.shape[1] - 1,
        group=group, rows=1 if group == 1 else max(_LEAST_DOT_ROWS, triton.next_power_of_2(group)),
        width=width, page=page, bounded=reach >= 0, biased=bias is not None,
        num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return out


@triton.jit
def _store(
    k_at, v_at, keys_at, values_at, places_at,
    k_row, k_head, v_row, v_head, page_stride, head_stride,
    page: tl.constexpr, heads: tl.constexpr, padded: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places_at + token)
    if place < 0:
        return
    head, within = tl.arange(0, padded)[:, None], tl.arange(0, width)[None, :]
    there = head < heads
    to = place // page * page_stride + head * head_stride + place % page * width + within
    tl.store(keys_at + to, tl.load(k_at + token * k_row + head * k_head + within, mask=there), mask=there)
    tl.store(values_at + to, tl.load(v_at + token * v_row + head * v_head + within, mask=there), mask=there)


def store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """Keep the keys and values of some tokens, (tokens, heads, width), at their places; a place below 0 is skipped."""
    tokens, heads, width = k.shape
    _store[(tokens,)](
        k, v, keys, values, places,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), keys.stride(0), keys.stride(1),
        page=keys.shape[2], heads=heads, padded=triton.next_power_of_2(heads), width=width, num_warps=2,
    )  # fmt: skip
