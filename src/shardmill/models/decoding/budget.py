"""How many rows and pages of keys and values fit beside the weights, and how many tokens are read at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from shardmill.core.devices import Device
from shardmill.models.decoding.pages import PAGE_TOKENS, PageShape, pages_for
from shardmill.models.memory import free_cuda_bytes

_MOST_READ_TOKENS = {"cuda": 65536, "cpu": 2048}
_MOST_ROWS = {"cuda": 2048, "cpu": 16}
# Rows are planned for texts of this length where the model takes longer ones; those take the pages of several.
_USUAL_TOKENS = 768
_READ_SHARE = 0.15
_CPU_SHARE = 0.25
# Graphs, libraries and what the allocator cannot use.
_FIXED_BYTES = 1 << 30
# The logits of a row in float32, once more while a token is chosen, and in the model's precision.
_LOGIT_BYTES = 12


@dataclass(frozen=True, slots=True)
class SeatBudget:
    """`rows` side by side over `pages`; `read_tokens` are read at once."""

    rows: int
    pages: int
    read_tokens: int


def free_bytes(device: Device) -> int:
    """The memory that keys, values and batches may take."""
    if device.kind == "cuda":
        return free_cuda_bytes(device.sharing)
    total = device.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(_CPU_SHARE * total / max(1, device.sharing))


def plan_budget(
    free: int, kind: str, config: Any, shape: PageShape, *, crossed: bool, longest: int, most_new: int
) -> SeatBudget:
    """Divide the free memory: first what reading takes, then logits and pages for as many rows as are useful."""
    itemsize = shape.dtype.itemsize
    inner = max(4 * config.hidden_size, getattr(config, "intermediate_size", 0) or 0)
    read_bytes = itemsize * (16 * config.hidden_size + 4 * inner)
    read = int(min(_MOST_READ_TOKENS[kind], max(PAGE_TOKENS, _READ_SHARE * free / read_bytes)))
    fixed = _FIXED_BYTES if kind == "cuda" else 0
    left = max(shape.page_bytes, free - fixed - read * read_bytes)
    texts = (longest + (0 if crossed else most_new), 1 + most_new if crossed else 0)
    usual = (min(longest, _USUAL_TOKENS) + (0 if crossed else most_new), texts[1])
    logits = _LOGIT_BYTES * config.vocab_size
    row_bytes = logits + shape.page_bytes * sum(map(pages_for, usual))
    rows = int(max(1, min(_MOST_ROWS[kind], left // row_bytes)))
    pages = int(min((left - rows * logits) // shape.page_bytes, rows * sum(map(pages_for, texts))))
    return SeatBudget(rows, max(1, pages), read)
