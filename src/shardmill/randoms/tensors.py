"""The same draws as tensors, where the ids are: in int64 arithmetic on a CPU, by one Triton kernel on a GPU.

The int64 of a tensor is read as 64 bits without a sign, so ids from 2**63 on are its negative numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from shardmill.randoms.philox import LOW, MULTIPLIERS, ROUNDS, WEYL, Key, check_counter, philox

_KERNEL_ITEMS = 1024


def _words(ids: torch.Tensor, key: Key, epoch: int, block: int) -> tuple[torch.Tensor, ...]:
    check_counter(epoch, block)
    rest = torch.zeros_like(ids)
    return philox((ids & LOW, (ids >> 32) & LOW, rest + epoch, rest + block), key)


def draw5(ids: torch.Tensor, key: Key, epoch: int = 0, block: int = 0) -> list[torch.Tensor]:
    """Five draws of 24 bits for each item, as in `shardmill.randoms.draw5`."""
    ids = ids.to(torch.int64)
    kernel = _kernel() if ids.is_cuda and len(ids) else None
    if kernel is not None:
        check_counter(epoch, block)
        return kernel(ids.contiguous(), key, epoch, block)
    w0, w1, w2, w3 = _words(ids, key, epoch, block)
    draws = [w0 >> 8, (w0 & 255) << 16 | w1 >> 16, w2 >> 8, (w2 & 255) << 16 | w3 >> 16, (w1 & 65535) << 8 | w3 & 255]
    return [d.to(torch.float64) for d in draws]


def draw_fine(ids: torch.Tensor, key: Key, epoch: int = 0, block: int = 0) -> list[torch.Tensor]:
    """Two draws of 53 bits for each item, as in `shardmill.randoms.draw_fine`."""
    w0, w1, w2, w3 = _words(ids.to(torch.int64), key, epoch, block)
    return [(w0 << 21 | w1 >> 11).to(torch.float64), (w2 << 21 | w3 >> 11).to(torch.float64)]


@functools.cache
def _kernel() -> Callable[[torch.Tensor, Key, int, int], list[torch.Tensor]] | None:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    m0, m1, weyl0, weyl1 = (tl.constexpr(n) for n in (*MULTIPLIERS, *WEYL))
    rounds = tl.constexpr(ROUNDS)

    @triton.jit  # type: ignore[untyped-decorator]
    def five(ids: Any, out: Any, n: Any, epoch: Any, block: Any, k0: Any, k1: Any, items: tl.constexpr) -> None:
        at = tl.program_id(0).to(tl.int64) * items + tl.arange(0, items)
        inside = at < n
        item = tl.load(ids + at, mask=inside, other=0)
        c0 = item.to(tl.uint32)
        c1 = (item >> 32).to(tl.uint32)
        c2 = tl.zeros_like(c0) + epoch.to(tl.uint32)
        c3 = tl.zeros_like(c0) + block.to(tl.uint32)
        key0 = k0.to(tl.uint32)
        key1 = k1.to(tl.uint32)
        for _ in tl.static_range(rounds):
            high0 = tl.umulhi(c0, tl.full(c0.shape, m0, tl.uint32))
            high1 = tl.umulhi(c2, tl.full(c0.shape, m1, tl.uint32))
            low0 = c0 * tl.full(c0.shape, m0, tl.uint32)
            low1 = c2 * tl.full(c0.shape, m1, tl.uint32)
            c0 = high1 ^ c1 ^ key0
            c1 = low1
            c2 = high0 ^ c3 ^ key1
            c3 = low0
            key0 = key0 + tl.full((), weyl0, tl.uint32)
            key1 = key1 + tl.full((), weyl1, tl.uint32)
        tl.store(out + at, (c0 >> 8).to(tl.float64), mask=inside)
        tl.store(out + n + at, ((c0 & 255) << 16 | c1 >> 16).to(tl.float64), mask=inside)
        tl.store(out + 2 * n + at, (c2 >> 8).to(tl.float64), mask=inside)
        tl.store(out + 3 * n + at, ((c2 & 255) << 16 | c3 >> 16).to(tl.float64), mask=inside)
        tl.store(out + 4 * n + at, ((c1 & 65535) << 8 | (c3 & 255)).to(tl.float64), mask=inside)

    def launch(ids: torch.Tensor, key: Key, epoch: int, block: int) -> list[torch.Tensor]:
        n = len(ids)
        out = torch.empty((5, n), dtype=torch.float64, device=ids.device)
        # One beyond 32 bits makes Triton take every argument as int64, and the numbers 0 and 1 are not specialised.
        wide = [1 << 32 | value for value in (epoch, block, key.k0, key.k1)]
        with torch.cuda.device(ids.device):
            five[(triton.cdiv(n, _KERNEL_ITEMS),)](ids, out, n, *wide, _KERNEL_ITEMS)
        return list(out)

    return launch
