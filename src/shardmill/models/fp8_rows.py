"""Rows rounded to 8-bit floats in one pass, with the activation before it, as a Triton kernel."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_KINDS = {"": 0, "gelu": 1, "silu": 2}


@triton.jit
def _tanh(x):
    """One instruction, as exact as half precision."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _round(
    x_at, gate_at, out_at, scales_at, x_row, gate_row, width, least, largest,
    kind: tl.constexpr, gated: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    within = tl.arange(0, block)
    inside = within < width
    x = tl.load(x_at + row * x_row + within, mask=inside, other=0.0).to(tl.float32)
    if kind == 1:
        half = 0.5 * x
        x = half + half * _tanh(x * (0.7978845608028654 + 0.035677408136300125 * x * x))
    if kind == 2:
        half = 0.5 * x
        x = half + half * _tanh(half)
    if gated:
        x = x * tl.load(gate_at + row * gate_row + within, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), least) / largest
    tl.store(scales_at + row, scale)
    tl.store(out_at + row * width + within, (x * (1.0 / scale)).to(out_at.dtype.element_ty), mask=inside)


def round_by_triton(
    x: Tensor, kind: str, gate: Tensor | None, dtype: torch.dtype, least: float
) -> tuple[Tensor, Tensor]:
    """`activation(x) * gate` in 8 bits, each row divided by its scale, and these scales."""
    width = x.shape[-1]
    x = x.reshape(-1, width)
    gate = None if gate is None else gate.reshape(-1, width)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty((len(x), 1), dtype=torch.float32, device=x.device)
    if len(x):
        block = triton.next_power_of_2(width)
        _round[(len(x),)](
            x, x if gate is None else gate, out, scales, x.stride(0), 0 if gate is None else gate.stride(0), width,
            least, torch.finfo(dtype).max, kind=_KINDS[kind], gated=gate is not None, block=block,
            num_warps=4 if block <= 4096 else 8,
        )  # fmt: skip
    return out, scales
