"""Keys and values of all rows, in pages of a fixed number of tokens that rows take and give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.core.errors import DeviceOutOfMemory

PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PageShape:
    """The keys and values that a model keeps for each token."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        return 2 * self.layers * self.heads * PAGE_TOKENS * self.width * self.dtype.itemsize


class Pages:
    """`keys[layer]` and `values[layer]` are (pages, heads, tokens of a page, width)."""

    def __init__(self, shape: PageShape, count: int, device: torch.device) -> None:
        self.shape, self.count = shape, count
        sizes = (shape.layers, count, shape.heads, PAGE_TOKENS, shape.width)
        # On a CPU, memory that nothing was written to costs nothing.
        self.keys = torch.empty(sizes, dtype=shape.dtype, device=device)
        self.values = torch.empty(sizes, dtype=shape.dtype, device=device)
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, tokens: int) -> list[int]:
        """Pages for this many tokens."""
        wanted = pages_for(tokens)
        if wanted > len(self._free):
            raise DeviceOutOfMemory(f"{wanted} pages of keys and values are wanted, and {len(self._free)} are free.")
        return [self._free.pop() for _ in range(wanted)]

    def give(self, pages: Sequence[int]) -> None:
        self._free.extend(pages)


def send(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device; a GPU goes on with its work meanwhile."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pages_for(tokens: int) -> int:
    """The number of pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


def table_of(taken: Sequence[Sequence[int]], columns: int) -> NDArray[np.int32]:
    """The pages of each row, in order, padded to `columns`."""
    table = np.zeros((len(taken), columns), np.int32)
    counts = np.array([len(pages) for pages in taken])
    table[np.arange(columns) < counts[:, None]] = [page for pages in taken for page in pages]
    return table


def places_of(table: Tensor, lengths: NDArray[np.int64], skip: int = 0) -> Tensor:
    """Where each token of some rows, back to back, is kept: page times tokens of a page, plus its place there.

    The first `skip` tokens of each row are left out. The device computes it, without a word back.
    """
    counts = lengths - skip
    total = int(counts.sum())
    first, many = send(np.stack([np.cumsum(counts) - counts, counts]), table.device)
    row = torch.repeat_interleave(torch.arange(len(counts), device=table.device), many, output_size=total)
    within = torch.arange(total, device=table.device) - first[row] + skip
    places: Tensor = table[row, within // PAGE_TOKENS].long() * PAGE_TOKENS + within % PAGE_TOKENS
    return places


def count_within(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, 2, … for each of some rows, back to back."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)
