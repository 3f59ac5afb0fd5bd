"""From the states of tokens to the weights of words, with torch: the head of a masked language model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardmill.models.folder import ModelFolder
from shardmill.models.networks.arrays import part_of
from shardmill.models.networks.stored import read_weights
from shardmill.models.sparse.folder import SpladePooling

# Logits that are in memory at a time: 256 MB in float32 on a CPU, and four times as many on a GPU.
_LOGITS = {"cpu": 1 << 26, "cuda": 1 << 28}


class WordHead(nn.Module):
    """The steps of a head and the pooling after them. Logits of all tokens of a batch are never there together."""

    def __init__(self, folder: ModelFolder) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        assert isinstance(folder.pooling, SpladePooling)
        self._pooling = folder.pooling
        stored = read_weights(folder.transformer)
        self.layers = nn.ModuleList()
        for linear, activation, norm in folder.pooling.head.steps:
            weight, bias = part_of(stored.__getitem__, linear)
            outputs, inputs = weight.shape
            layer = nn.Linear(inputs, outputs, bias=bias is not None)
            _fill(layer.weight, weight)
            if bias is not None:
                _fill(layer.bias, bias)
            self.layers.append(layer)
            if activation:
                self.layers.append(ACT2FN[activation])
            if norm is not None:
                scale = stored[norm.weight]
                after = nn.LayerNorm(len(scale), norm.eps, bias=bool(norm.bias))
                _fill(after.weight, scale)
                if norm.bias:
                    _fill(after.bias, stored[norm.bias])
                self.layers.append(after)
        self._words = len(stored[folder.pooling.head.steps[-1][0].weight])

    def forward(self, states: Tensor, lengths: NDArray[np.int64]) -> Tensor:
        """The weight of each word for each text, in float32, given the states of all texts' tokens one after another.

        The largest logit of a text has its largest weight, so that a maximum needs no logarithm for each token.
        """
        made = torch.zeros(len(lengths), self._words, device=states.device)
        ends = np.cumsum(lengths)
        for first, stop in _groups(lengths, max(1, _LOGITS[states.device.type] // self._words)):
            begin = int(ends[first] - lengths[first])
            counts = torch.from_numpy(lengths[first:stop]).to(states.device, non_blocking=True)
            if stop - first > 1:
                made[first:stop] = self._reduce(self._logits(states[begin : int(ends[stop - 1])]), counts)
                continue
            alone, most = states[begin : int(ends[first])], max(1, _LOGITS[states.device.type] // self._words)
            for piece in alone.split(most):  # type: ignore[no-untyped-call]
                own = self._reduce(self._logits(piece), torch.tensor([len(piece)], device=states.device))[0]
                made[first] = made[first] + own if self._pooling.sums else torch.maximum(made[first], own)
        return made if self._pooling.sums else self._to_weights(made)

    def _logits(self, states: Tensor) -> Tensor:
        for layer in self.layers:
            states = layer(states)
        return states

    def _reduce(self, logits: Tensor, lengths: Tensor) -> Tensor:
        """The sum of the weights of each text, or its largest logits above 0."""
        if self._pooling.sums:
            logits = self._to_weights(logits.float().relu_())
        reduced: Tensor = torch.segment_reduce(
            logits, "sum" if self._pooling.sums else "max", lengths=lengths, axis=0, unsafe=True
        )
        return reduced.float().relu_()

    def _to_weights(self, positive: Tensor) -> Tensor:
        weights = positive.log1p_()
        return weights.log1p_() if self._pooling.twice else weights


def _fill(there: Tensor, given: NDArray[np.float32]) -> None:
    with torch.no_grad():
        there.copy_(torch.from_numpy(np.array(given)))


def _groups(lengths: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """The first and the last but one of texts that have at most `most` tokens together; a longer one is alone."""
    first, tokens = 0, 0
    for i, length in enumerate(lengths.tolist()):
        if i > first and tokens + length > most:
            yield first, i
            first, tokens = i, 0
        tokens += length
    if len(lengths):
        yield first, len(lengths)
