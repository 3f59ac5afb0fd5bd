"""The processes that train together: each embeds its part of a batch, and all know all vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class TrainGroup(Protocol):
    """Process `rank` of `size`. Every process calls the same methods in the same order."""

    rank: int
    size: int

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """`total` rows, of which this process has every `size`-th, from row `rank` on."""
        ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        ...

    def any(self, said: bool) -> bool:
        """Whether a process said yes."""
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def gather(self, rows: Tensor, total: int) -> Tensor:
        return rows

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pass

    def any(self, said: bool) -> bool:
        return said


class ProcessGroup:
    """The processes of torch.distributed's default group, which the caller has made."""

    def __init__(self) -> None:
        from torch import distributed

        self._distributed = distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def gather(self, rows: Tensor, total: int) -> Tensor:
        most = -(-total // self.size)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        self._distributed.all_gather(parts, padded)
        # Row r of every part lies side by side with row r of the others: the padding is at the end.
        return torch.stack(parts, dim=1).flatten(0, 1)[:total]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([each.flatten() for each in tensors])
        self._distributed.all_reduce(flat)
        at = 0
        for each in tensors:
            each.copy_(flat[at : at + each.numel()].view_as(each))
            at += each.numel()

    def any(self, said: bool) -> bool:
        flag = torch.tensor(float(said))
        self._distributed.all_reduce(flag)
        return bool(flag > 0)
