"""Sparse rows from a GPU: zeros are left out there, beside the next batch, and only the rest is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.models.encoder import Encoder, memory_guard
from shardmill.models.sparse.rows import SparseRows


def begin_on_gpu(encoder: Encoder, rows: Sequence[NDArray[np.int32]]) -> Callable[[], SparseRows]:
    """Start a batch and return a function that waits for its rows."""
    begun, done = _event(), _event()
    with memory_guard(), torch.inference_mode():
        begun.record()
        dense = encoder.vectors(rows)
        done.record()

    def fetch() -> SparseRows:
        # In the stream of the batches this would wait for the next one, too.
        aside = _stream(dense.device)
        with memory_guard(), torch.inference_mode(), torch.cuda.stream(aside):
            aside.wait_event(done)
            dense.record_stream(aside)
            there = dense != 0
            places = there.nonzero()
            weights = dense[places[:, 0], places[:, 1]]
            counts = there.sum(dim=1).cpu().numpy()
            made = SparseRows.counted(places[:, 1].to(torch.int32).cpu().numpy(), weights.cpu().numpy(), counts)
        encoder.clock.ran(begun, done)
        return made

    return fetch


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
