"""How much memory work takes on a device: the weights once, and the rest by the batch, never by the dataset."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np

from shardmill.sizing.shape import Shape

# Tokens of a batch on a GPU: fewer leave it waiting for the next one, more bring nothing.
PADDED_BUDGET_TOKENS = 32768
PACKED_BUDGET_TOKENS = 98304
# What is free now is not all ours: libraries, and workers that start later, take some of it outside of any batch.
USABLE = 0.85
# CUDA's own context and the libraries' workspaces, for each process on a GPU; reckoned, not measured.
CONTEXT_BYTES = 600 << 20
# torch's allocator rounds what is asked for up, and keeps blocks of one shape that fit no other.
_SLACK = 1.2
_HALF, _FULL = 2, 4
# float32 weights, their gradients, and the two moments of AdamW.
_TRAINED_BYTES = 4 * _FULL
# Bytes a layer keeps for the way back, by token and hidden unit, and by pair of tokens and head where attention is
# not fused: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022.
_KEPT_BYTES, _KEPT_PAIR_BYTES = 34, 5


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Bytes of a batch: a fixed part, some for each token, and some for each pair of tokens of one text."""

    fixed_bytes: float
    token_bytes: float
    pair_bytes: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in astuple(self)):
            raise ValueError(f"not a model of memory: {self}")

    def bytes(self, rows: int, length: int) -> float:
        return self.fixed_bytes + rows * length * (self.token_bytes + self.pair_bytes * length)

    def budget(self, free_bytes: float, *, longest: int, most: int, padded: bool) -> int:
        """The largest budget, up to `most`, under which no batch of several texts takes more than `free_bytes`.

        A text alone is run whatever it takes, so the budget is at least 1.

        >>> MemoryModel(100, 10, 0).budget(1000, longest=8, most=4096, padded=False)
        90
        >>> MemoryModel(100, 10, 1).budget(1000, longest=8, most=4096, padded=True)
        55
        """
        room = free_bytes - self.fixed_bytes
        if room < 0:
            return 1
        # A packed batch is so many texts of one token, each of which attends to no more than the longest text.
        lengths = np.arange(1, max(1, min(longest, most // 2)) + 1) if padded else np.ones(1)
        text_bytes = lengths * (self.token_bytes + self.pair_bytes * (lengths if padded else longest))
        too_many = np.floor(room / np.maximum(text_bytes, 1e-9)) + 1
        return int(max(1, min(most, (np.maximum(too_many, 2) * lengths).min() - 1)))


@dataclass(frozen=True, slots=True)
class Need:
    """What a device has to hold: weights and what belongs to them, and `batch` for what is worked on.

    `row_bytes` are kept for each text, whatever its length.
    """

    weights_bytes: float
    batch: MemoryModel
    row_bytes: float = 0.0

    def bytes(self, rows: int, length: int) -> float:
        return CONTEXT_BYTES + self.weights_bytes + self.batch_bytes(rows, length)

    def batch_bytes(self, rows: int, length: int) -> float:
        return self.batch.bytes(rows, length) + rows * self.row_bytes

    def rows(self, memory_bytes: float, length: int, most: int) -> int:
        """How many texts of a length fit into a device at once, up to `most`; 0 where not even one does."""
        room = USABLE * memory_bytes - CONTEXT_BYTES - self.weights_bytes - self.batch.fixed_bytes
        text_bytes = self.batch_bytes(1, length) - self.batch.fixed_bytes
        return int(max(0, min(most, room // max(1.0, text_bytes))))


def embedding_need(shape: Shape, *, dtype_bytes: int = _HALF, fused: bool = True) -> Need:
    """To embed: a layer's input and output, its queries, keys and values or its feed-forward block, and nothing else.

    Attention that is not fused holds the scores of every pair of tokens twice, before and after the softmax.
    """
    block = max(2 * shape.width + 2 * shape.kv_width, shape.inner)
    token_bytes = dtype_bytes * (2 * shape.hidden + block) + _FULL * shape.hidden
    pair_bytes = 0 if fused else 2 * dtype_bytes * shape.heads
    return Need(dtype_bytes * shape.parameters, MemoryModel(0.0, _SLACK * token_bytes, _SLACK * pair_bytes))


def generation_need(shape: Shape, written_tokens: int, *, dtype_bytes: int = _HALF) -> Need:
    """To write: keys and values of every token read and written are kept by every layer that attends to them."""
    read = embedding_need(shape, dtype_bytes=dtype_bytes)
    kept_bytes = kv_bytes(shape, dtype_bytes=dtype_bytes)
    batch = MemoryModel(0.0, read.batch.token_bytes + _SLACK * kept_bytes, 0.0)
    return Need(read.weights_bytes, batch, _SLACK * kept_bytes * written_tokens)


def kv_bytes(shape: Shape, *, dtype_bytes: int = _HALF) -> int:
    """Keys and values of one token in all layers that write."""
    return 2 * shape.decoder_layers * shape.kv_width * dtype_bytes


def training_need(shape: Shape, *, fused: bool = True) -> Need:
    """To train by AdamW in mixed precision: weights, gradients, two moments, a half copy, and what each layer keeps."""
    layers = shape.layers + shape.decoder_layers * (not shape.causal)
    pair_bytes = 0 if fused else layers * _KEPT_PAIR_BYTES * shape.heads
    return Need(
        (_TRAINED_BYTES + _HALF) * shape.parameters,
        MemoryModel(0.0, _SLACK * layers * _KEPT_BYTES * shape.hidden, _SLACK * pair_bytes),
    )
