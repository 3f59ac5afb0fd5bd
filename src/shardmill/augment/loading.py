"""For training loops: datasets with parameters, and a sampler that can resume on another number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from shardmill.augment.config import AugmentationConfig
from shardmill.augment.params import check_rank, gen_augmentation_params
from shardmill.augment.streams import check_state
from shardmill.core.errors import CorruptState, UsageError
from shardmill.core.random import make_key, permute

_ORDER = "augment/order"
_AHEAD = 4096


class AugmentedDataset(Dataset[Any]):
    """A map-style dataset that yields (item, id, parameters of the epoch).

    Persistent loader processes keep the epoch they started with: create a new loader after `set_epoch`.
    """

    def __init__(self, dataset: Any, config: AugmentationConfig, epoch: int = 0) -> None:
        self.dataset, self.config, self.epoch = dataset, config, epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int, dict[str, Any]]:
        return self.dataset[index], index, gen_augmentation_params(index, self.config, epoch=self.epoch)


class AugmentedIterable(IterableDataset[Any]):
    """An iterable dataset that numbers its items from `start_id` and yields (item, id, parameters).

    Every rank and every loader process reads the whole source and keeps its own part, so ids and parameters are the
    same for any number of readers.
    """

    def __init__(
        self,
        source: Iterable[Any],
        config: AugmentationConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_id: int = 0,
        epoch: int = 0,
    ) -> None:
        check_rank(rank, world_size)
        self.source, self.config = source, config
        self.rank, self.world_size, self.start_id, self.epoch = rank, world_size, start_id, epoch

    def __iter__(self) -> Iterator[tuple[Any, int, dict[str, Any]]]:
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        mine, step = self.rank + self.world_size * part, self.world_size * parts
        for i, item in enumerate(self.source):
            if i % step == mine:
                number = self.start_id + i
                yield item, number, gen_augmentation_params(number, self.config, epoch=self.epoch)


class ElasticSampler(Sampler[int]):
    """Item ids for one rank: the epoch's order dealt out to the ranks, without repeats or padding.

    Its state is the number of items of the epoch done by all ranks, so another number of ranks can resume from it.
    Call `advance` after each step with the number of items of all ranks. Ranks differ by at most one item per epoch:
    in the last step some have none.
    """

    def __init__(
        self, size: int, *, rank: int = 0, world_size: int = 1, shuffle: bool = True, seed: int = 0, epoch: int = 0
    ) -> None:
        check_rank(rank, world_size)
        if size < 0:
            raise UsageError(f"The size {size} is below 0.", hint="Give the length of the dataset.")
        self.size, self.rank, self.world_size = size, rank, world_size
        self.shuffle, self.seed, self.epoch, self.done = shuffle, seed, epoch, 0

    def __len__(self) -> int:
        return len(self._positions())

    def __iter__(self) -> Iterator[int]:
        positions, epoch = self._positions(), self.epoch
        for start in range(0, len(positions), _AHEAD):
            chunk = np.array(positions[start : start + _AHEAD], np.int64)
            if self.shuffle:
                chunk = permute(chunk, self.size, make_key(self.seed, _ORDER), epoch)
            yield from chunk.tolist()

    def _positions(self) -> range:
        return range(self.done + self.rank, self.size, self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.epoch, self.done = epoch, 0

    def advance(self, items: int) -> None:
        self.done = min(self.size, self.done + items)

    def state_dict(self) -> dict[str, int]:
        return {"next_id": self.done, "epoch": self.epoch, "seed": self.seed, "size": self.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        done, epoch, seed = check_state(state, 0, self.size)
        if seed != self.seed or state.get("size") != self.size:
            raise CorruptState("The state belongs to another dataset or seed.", hint="Use the ones it was saved with.")
        self.done, self.epoch = done, epoch


def collate(batch: list[tuple[Any, int, dict[str, Any]]]) -> tuple[list[Any], torch.Tensor, dict[str, list[Any]]]:
    """Items as a list, ids as a tensor, parameters as columns, as `apply` takes them."""
    items, ids, params = zip(*batch, strict=True)
    return list(items), torch.tensor(ids), {name: [p[name] for p in params] for name in params[0]}
