"""Means of token vectors with NumPy: the fast way in float32, and one text at a time in float64 to compare with."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.folder import ModelFolder, Pooling
from shardmill.models.networks.stored import Reals, StoredWeights
from shardmill.models.plain import CpuEncoder, Rows
from shardmill.models.pooling import Steps
from shardmill.models.ragged import starts_of
from shardmill.models.static.files import StaticTable

# Tokens per batch, which has no padding: what a batch costs beside its sums is small then.
BATCH_TOKENS = 1 << 16
# Texts that are summed side by side, a token of each at a time: their sums stay in the cache of a core.
_TOGETHER = 256
# Longer texts are summed alone.
_LONG_TOKENS = 128


class _OfTokens(CpuEncoder):
    """Means of the vectors of tokens, and the steps after them."""

    padded = False

    def __init__(self, folder: ModelFolder) -> None:
        assert folder.static is not None
        self._table = TokenVectors(folder.static)
        self._steps = Steps(folder.steps)

    def pooled_by(self, pooling: Pooling) -> Self:
        """The same: there is nothing but the mean."""
        return self


class StaticEncoder(_OfTokens):
    """Sums in float32, in the order of the tokens, so that a vector does not depend on the texts beside it."""

    name = "numpy float32, token vectors"
    precision = "float32"

    def encode(self, rows: Rows, skip: int = 0) -> Reals:
        """One vector per row."""
        lengths = np.array([len(row) for row in rows], np.int64)
        flat, firsts = np.concatenate(rows).astype(np.int64), starts_of(lengths)
        means = np.empty((len(rows), self._table.width), np.float32)
        order = np.argsort(-lengths, kind="stable")
        long = int((lengths >= _LONG_TOKENS).sum())
        for row in order[:long]:
            means[row] = np.add.reduce(self._table(flat[firsts[row] : firsts[row + 1]]), axis=0)
        for at in range(long, len(order), _TOGETHER):
            some = order[at : at + _TOGETHER]
            means[some] = self._sum(flat, firsts[some], lengths[some])
        means /= np.maximum(lengths, 1)[:, None].astype(np.float32)
        return self._steps(means)

    def _sum(self, flat: NDArray[np.int64], firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Reals:
        """The sums of some rows, the longest first."""
        sums = self._table(flat[firsts])
        # The number of rows with more than k tokens, by k.
        left = np.searchsorted(-lengths, -np.arange(int(lengths[0])), side="left")
        for k in range(1, int(lengths[0])):
            sums[: left[k]] += self._table(flat[firsts[: left[k]] + k])
        return sums


class StaticReference(_OfTokens):
    """The same in float64, each text alone."""

    name = "numpy float64, token vectors, one text at a time"
    precision = "float64"

    def encode(self, rows: Rows, skip: int = 0) -> Reals:
        """One vector per row."""
        means = np.stack([self._table.exact(row).mean(axis=0) for row in rows])
        return self._steps(means).astype(np.float32)


class TokenVectors:
    """The vectors of token ids, weighted if the model weights them. In float32 the file is read where it lies."""

    def __init__(self, table: StaticTable) -> None:
        stored, self.width = StoredWeights(table.folder / "model.safetensors"), table.width
        vectors = stored.whole_numbers(table.table)
        self._vectors = stored[table.table] if vectors is None else vectors.astype(np.float32)
        self._weights = stored["weights"] if table.weighted else None
        self._mapping = _read_mapping(stored, table, len(self._vectors)) if table.mapped else None
        for name, numbers in ((table.table, self._vectors), ("weights", self._weights)):
            if numbers is not None and not np.isfinite(numbers).all():
                broken = int((~np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1)).sum())
                raise ModelError(
                    f"{table.folder.name} has NaN or infinity in {broken:,} of the {len(numbers):,} rows of {name}.",
                    hint="Fetch the model again.",
                )

    def __call__(self, ids: NDArray[np.int64]) -> Reals:
        vectors: Reals = self._vectors.take(self._places(ids), axis=0)
        if self._weights is not None:
            vectors *= self._weights[ids, None]
        return vectors

    def exact(self, ids: NDArray[Any]) -> NDArray[np.float64]:
        """The same in float64."""
        vectors: NDArray[np.float64] = self._vectors[self._places(ids)].astype(np.float64)
        if self._weights is not None:
            vectors *= self._weights[ids, None]
        return vectors

    def _places(self, ids: NDArray[Any]) -> NDArray[Any]:
        return ids if self._mapping is None else self._mapping[ids]


def _read_mapping(stored: StoredWeights, table: StaticTable, vectors: int) -> NDArray[np.int64]:
    mapping = stored.whole_numbers("mapping")
    if mapping is None or mapping.min() < 0 or mapping.max() >= vectors:
        raise ModelError(
            f"{table.folder.name} maps tokens to vectors that it does not have: there are {vectors:,}.",
            hint="Fetch the model again.",
        )
    return mapping.astype(np.int64)
