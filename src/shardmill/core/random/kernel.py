"""Five draws per item as one Triton kernel: the GPU reads only the ids and writes only the draws."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from shardmill.core.random.philox import MULTIPLIERS, ROUNDS, WEYL, PhiloxKey

_ITEMS = 1024
_M0, _M1 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
_W0, _W1 = tl.constexpr(WEYL[0]), tl.constexpr(WEYL[1])
_ROUNDS = tl.constexpr(ROUNDS)


@triton.jit  # type: ignore[untyped-decorator]
def _five(ids, out, n, epoch, block, k0, k1, items: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * items + tl.arange(0, items)
    inside = at < n
    item = tl.load(ids + at, mask=inside, other=0)
    c0 = item.to(tl.uint32)
    c1 = (item >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + epoch.to(tl.uint32)
    c3 = tl.zeros_like(c0) + block.to(tl.uint32)
    key0 = tl.zeros_like(c0) + k0.to(tl.uint32)
    key1 = tl.zeros_like(c0) + k1.to(tl.uint32)
    m0 = tl.full(c0.shape, _M0, tl.uint32)
    m1 = tl.full(c0.shape, _M1, tl.uint32)
    w0 = tl.full(c0.shape, _W0, tl.uint32)
    w1 = tl.full(c0.shape, _W1, tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        high0 = tl.umulhi(c0, m0)
        high1 = tl.umulhi(c2, m1)
        low0 = c0 * m0
        low1 = c2 * m1
        c0 = high1 ^ c1 ^ key0
        c1 = low1
        c2 = high0 ^ c3 ^ key1
        c3 = low0
        key0 = key0 + w0
        key1 = key1 + w1
    tl.store(out + at, (c0 >> 8).to(tl.float64), mask=inside)
    tl.store(out + n + at, ((c0 & 255) << 16 | c1 >> 16).to(tl.float64), mask=inside)
    tl.store(out + 2 * n + at, (c2 >> 8).to(tl.float64), mask=inside)
    tl.store(out + 3 * n + at, ((c2 & 255) << 16 | c3 >> 16).to(tl.float64), mask=inside)
    tl.store(out + 4 * n + at, ((c1 & 65535) << 8 | (c3 & 255)).to(tl.float64), mask=inside)


def five(ids: torch.Tensor, key: PhiloxKey, epoch: int, block: int) -> list[torch.Tensor]:
    n = len(ids)
    out = torch.empty((5, n), dtype=torch.float64, device=ids.device)
    # A bit above the 32 keeps Triton from specializing the kernel for 0, 1 and other types; the kernel drops it.
    wide = [1 << 32 | value for value in (epoch, block, key.k0, key.k1)]
    with torch.cuda.device_of(ids):  # type: ignore[no-untyped-call]
        _five[(triton.cdiv(n, _ITEMS),)](ids, out, n, *wide, _ITEMS)
    return list(out)
