"""The plain encoder: NumPy, float32, one text at a time. Faster ones are compared with it where torch is not."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shardmill.core.devices import cores
from shardmill.models.code import may_run_code
from shardmill.models.folder import ModelFolder, Pooling
from shardmill.models.networks.arrays import ArrayNetwork
from shardmill.models.networks.description import EncoderNetwork
from shardmill.models.networks.families import describe
from shardmill.models.networks.stored import Reals, StoredWeights, read_weights
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.pooling import Steps, pool
from shardmill.models.sparse.folder import SpladePooling
from shardmill.models.sparse.pooling import ArrayWords

Ints = NDArray[np.int64]
Rows = Sequence[NDArray[np.int32]]


def read_network(folder: ModelFolder) -> tuple[EncoderNetwork, StoredWeights]:
    """The description of a folder's network, and its weights; NotDescribed tells why there is none."""
    if may_run_code(folder.transformer):
        raise NotDescribed("it runs code of its own")
    weights = read_weights(folder.transformer)
    network = describe({**folder.config, **folder.config_options}, weights)
    if isinstance(folder.pooling, SpladePooling):
        network = replace(network, head=folder.pooling.head)
    return network, weights


class CpuEncoder(ABC):
    """What the encoders on a CPU share."""

    cuts = False
    _pooling: Pooling

    @abstractmethod
    def encode(self, rows: Rows, skip: int = 0) -> Reals:
        """One vector per row."""

    def begin(self, rows: Rows, skip: int = 0) -> Callable[[], Reals]:
        """Like `encode`, and finished when this returns, because no core is free to continue in the background."""
        vectors = self.encode(rows, skip)
        return lambda: vectors

    def pooled_by(self, pooling: Pooling) -> Self:
        """The same network with another pooling."""
        other = copy.copy(self)
        other._pooling = pooling
        return other


class PlainEncoder(CpuEncoder):
    """A network in NumPy and float32."""

    padded = True
    name = "numpy float32"
    precision = "float32"

    def __init__(self, folder: ModelFolder, *, pad_id: int) -> None:
        network, weights = read_network(folder)
        self._words = ArrayWords(folder, weights) if isinstance(folder.pooling, SpladePooling) else None
        self._network = ArrayNetwork(network if self._words is None else replace(network, head=None), weights)
        self._pooling, self._steps, self._pad_id = folder.pooling, Steps(folder.steps), pad_id

    def encode(self, rows: Rows, skip: int = 0) -> Reals:
        """One vector per row, each computed alone, on one core."""
        with ThreadPoolExecutor(cores()) as threads:
            return np.concatenate([*threads.map(lambda row: self._encode_one(row, skip), rows)])

    def encode_beside(self, ids: NDArray[np.int32], attended: int) -> Reals:
        """The vectors of all tokens of a row that attend to its first ones alone."""
        mask = (np.arange(len(ids)) < attended).astype(np.int64)
        return self._steps(self._network(ids.astype(np.int64)[None], mask[None])[0])

    def _encode_one(self, row: NDArray[np.int32], skip: int) -> Reals:
        ids, mask = pad([row], self._pad_id)
        hidden = self._network(ids, mask)
        if self._words is not None:
            return self._words(hidden[0])[None]
        return self._steps(pool(hidden, mask, self._pooling, skip))


def pad(rows: Rows, pad_id: int) -> tuple[Ints, Ints]:
    """Ids padded to the longest row, and which of them are there."""
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(real.shape, pad_id, np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real.astype(np.int64)
