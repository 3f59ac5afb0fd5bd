"""Memory use on a device: the weights once, the rest depends on the batch, never on the dataset."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np

from shardmill.plan.sizing.shape import Shape

# Tokens per batch on a GPU: with fewer it waits for the next batch, with more it is not faster.
PADDED_BUDGET_TOKENS = 32768
PACKED_BUDGET_TOKENS = 98304
# Libraries, and workers that start later, also take some of the memory that is free now.
USABLE = 0.85
# CUDA's context and the libraries' workspaces, per process on a GPU; estimated, not measured.
CONTEXT_BYTES = 600 << 20
# torch's allocator rounds requests up, and keeps blocks that fit no other shape.
_SLACK = 1.2
_HALF, _FULL = 2, 4
# float32 weights, their gradients, and the two moments of AdamW.
_TRAINED_BYTES = 4 * _FULL
# Bytes a layer keeps for the backward pass, per token and hidden unit, and per pair of tokens and head if attention
# is not fused: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022.
_KEPT_BYTES, _KEPT_PAIR_BYTES = 34, 5


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Bytes of a batch: a fixed part, a part per token, and a part per pair of tokens in one text."""

    fixed_bytes: float
    token_bytes: float
    pair_bytes: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in astuple(self)):
            raise ValueError(f"not a memory model: {self}")

    def bytes(self, rows: int, length: int) -> float:
        return self.fixed_bytes + rows * length * (self.token_bytes + self.pair_bytes * length)

    def budget(self, free_bytes: float, *, longest: int, most: int, padded: bool) -> int:
        """The largest budget, up to `most`, under which no batch of several texts takes more than `free_bytes`.

        A single text runs whatever it takes, so the budget is at least 1.

        >>> MemoryModel(100, 10, 0).budget(1000, longest=8, most=4096, padded=False)
        90
        >>> MemoryModel(100, 10, 1).budget(1000, longest=8, most=4096, padded=True)
        55
        """
        room = free_bytes - self.fixed_bytes
        if room < 0:
            return 1
        # A packed batch is treated as texts of one token, each attending to at most `longest` tokens.
        lengths = np.arange(1, max(1, min(longest, most // 2)) + 1) if padded else np.ones(1)
        text_bytes = lengths * (self.token_bytes + self.pair_bytes * (lengths if padded else longest))
        too_many = np.floor(room / np.maximum(text_bytes, 1e-9)) + 1
        return int(max(1, min(most, (np.maximum(too_many, 2) * lengths).min() - 1)))


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a device needs: weights and what belongs to them, and `batch` for the batch in progress.

    `row_bytes` are kept per text, whatever its length.
    """

    weights_bytes: float
    batch: MemoryModel
    row_bytes: float = 0.0

    def bytes(self, rows: int, length: int) -> float:
        return CONTEXT_BYTES + self.weights_bytes + self.batch_bytes(rows, length)

    def batch_bytes(self, rows: int, length: int) -> float:
        return self.batch.bytes(rows, length) + rows * self.row_bytes

    def rows(self, memory_bytes: float, length: int, most: int) -> int:
        """How many texts of `length` tokens fit on the device at once, up to `most`; 0 if not even one fits."""
        room = USABLE * memory_bytes - CONTEXT_BYTES - self.weights_bytes - self.batch.fixed_bytes
        text_bytes = self.batch_bytes(1, length) - self.batch.fixed_bytes
        return int(max(0, min(most, room // max(1.0, text_bytes))))


def embedding_need(shape: Shape, *, dtype_bytes: int = _HALF, fused: bool = True) -> Need:
    """For embedding: one layer's input and output, and its queries, keys and values or its feed-forward block.

    Attention that is not fused also keeps the scores of every pair of tokens twice, before and after the softmax.
    """
    block = max(2 * shape.width + 2 * shape.kv_width, shape.inner)
    token_bytes = dtype_bytes * (2 * shape.hidden + block) + _FULL * shape.hidden
    pair_bytes = 0 if fused else 2 * dtype_bytes * shape.heads
    weights_bytes = dtype_bytes * (shape.parameters + shape.head_weights)
    return Need(weights_bytes, MemoryModel(0.0, _SLACK * token_bytes, _SLACK * pair_bytes))


def generation_need(shape: Shape, written_tokens: int, *, dtype_bytes: int = _HALF) -> Need:
    """For generation: every decoder layer keeps keys and values of every token read and written."""
    read = embedding_need(shape, dtype_bytes=dtype_bytes)
    kept_bytes = kv_bytes(shape, dtype_bytes=dtype_bytes)
    batch = MemoryModel(0.0, read.batch.token_bytes + _SLACK * kept_bytes, 0.0)
    return Need(read.weights_bytes, batch, _SLACK * kept_bytes * written_tokens)


def kv_bytes(shape: Shape, *, dtype_bytes: int = _HALF) -> int:
    """Bytes of the keys and values of one token in all decoder layers."""
    return 2 * shape.decoder_layers * shape.kv_width * dtype_bytes


def training_need(shape: Shape, *, fused: bool = True) -> Need:
    """For training with AdamW in mixed precision: weights, gradients, two moments, a half copy, and activations."""
    layers = shape.layers + shape.decoder_layers * (not shape.causal)
    pair_bytes = 0 if fused else layers * _KEPT_PAIR_BYTES * shape.heads
    return Need(
        (_TRAINED_BYTES + _HALF) * shape.parameters,
        MemoryModel(0.0, _SLACK * layers * _KEPT_BYTES * shape.hidden, _SLACK * pair_bytes),
    )
