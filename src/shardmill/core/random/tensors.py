"""The same draws as tensors on the ids' device: in int64 arithmetic on a CPU, by one Triton kernel on a GPU.

A tensor's int64 is read as unsigned, so ids from 2**63 up are its negative numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from shardmill.core.random.philox import LOW, PhiloxKey, check_counter, philox


def _words(ids: torch.Tensor, key: PhiloxKey, epoch: int, block: int) -> tuple[torch.Tensor, ...]:
    check_counter(epoch, block)
    rest = torch.zeros_like(ids)
    return philox((ids & LOW, (ids >> 32) & LOW, rest + epoch, rest + block), key)


def draw5(ids: torch.Tensor, key: PhiloxKey, epoch: int = 0, block: int = 0) -> list[torch.Tensor]:
    """Five draws of 24 bits per item, as in `shardmill.core.random.draw5`."""
    ids = ids.to(torch.int64)
    kernel = _kernel() if ids.is_cuda and len(ids) else None
    if kernel is not None:
        check_counter(epoch, block)
        return kernel(ids.contiguous(), key, epoch, block)
    w0, w1, w2, w3 = _words(ids, key, epoch, block)
    draws = [w0 >> 8, (w0 & 255) << 16 | w1 >> 16, w2 >> 8, (w2 & 255) << 16 | w3 >> 16, (w1 & 65535) << 8 | w3 & 255]
    return [d.to(torch.float64) for d in draws]


def draw_fine(ids: torch.Tensor, key: PhiloxKey, epoch: int = 0, block: int = 0) -> list[torch.Tensor]:
    """Two draws of 53 bits per item, as in `shardmill.core.random.draw_fine`."""
    w0, w1, w2, w3 = _words(ids.to(torch.int64), key, epoch, block)
    return [(w0 << 21 | w1 >> 11).to(torch.float64), (w2 << 21 | w3 >> 11).to(torch.float64)]


@functools.cache
def _kernel() -> Callable[[torch.Tensor, PhiloxKey, int, int], list[torch.Tensor]] | None:
    try:
        from shardmill.core.random.kernel import five
    except ImportError:
        return None
    return five
