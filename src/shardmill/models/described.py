"""The network of a model folder, and batches as it takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardmill.models.code import may_run_code
from shardmill.models.folder import ModelFolder
from shardmill.models.networks.description import EncoderNetwork
from shardmill.models.networks.families import describe
from shardmill.models.networks.stored import StoredWeights, read_weights
from shardmill.models.networks.unknown import NotDescribed

Ints = NDArray[np.int64]
Rows = Sequence[NDArray[np.int32]]


def read_network(folder: ModelFolder) -> tuple[EncoderNetwork, StoredWeights]:
    """The description of a folder's network, and its weights; NotDescribed tells why there is none."""
    if may_run_code(folder.transformer):
        raise NotDescribed("it runs code of its own")
    weights = read_weights(folder.transformer)
    return describe({**folder.config, **folder.config_options}, weights), weights


def pad(rows: Rows, pad_id: int) -> tuple[Ints, Ints]:
    """Ids padded to the longest row, and which of them are there."""
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(real.shape, pad_id, np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real.astype(np.int64)
