"""The items of a training run, in memory, and the part of them that is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.training.batch import StepBatch, Text
from shardmill.training.options import TrainOptions

# Texts that a held-out anchor is ranked against, at most.
_RANKED = 10_000


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts by column, the label of each item if it has one, and the group by which items are split."""

    table: pa.Table
    options: TrainOptions
    prompts: tuple[str, ...]

    def __len__(self) -> int:
        count: int = self.table.num_rows
        return count

    def batch(self, items: Sequence[int] | NDArray[np.int64]) -> StepBatch:
        """The batch of some items, by number."""
        rows = self.table.take(pa.array(items, pa.int64()))
        columns = [rows[name].to_pylist() for name in self.options.columns]
        labels = rows[self.options.label].to_numpy().astype(np.float32) if self.options.label else None
        return StepBatch.of(columns, self.prompts, labels)

    def split(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of the items to train on, and of those held out; whole groups, drawn by the seed."""
        every = np.arange(len(self), dtype=np.int64)
        wanted = round(self.options.held_out * len(self))
        if not wanted:
            return every, every[:0]
        groups = self.table[self.options.split_column].combine_chunks().dictionary_encode()
        codes = groups.indices.to_numpy(zero_copy_only=False)
        names, sizes = groups.dictionary.to_pylist(), np.bincount(codes)
        order = np.array(sorted(range(len(names)), key=lambda i: _draw(self.options.seed, str(names[i]))))
        before = np.cumsum(sizes[order]) - sizes[order]
        # At least one group is held out, and at least one is trained on.
        chosen = order[: min(max(1, int((before < wanted).sum())), len(order) - 1)]
        held = np.isin(codes, chosen)
        return every[~held], every[held]

    def ranking(self, held: NDArray[np.int64]) -> Ranking:
        """What is ranked to evaluate: held-out anchors against the partners of all items, of held-out ones first."""
        rest = np.setdiff1d(np.arange(len(self)), held)
        partners = self.table[self.options.columns[1]]
        texts = dict.fromkeys(partners.take(pa.array(held)).to_pylist())
        for start in range(0, len(rest), _RANKED):
            if len(texts) >= _RANKED:
                break
            texts |= dict.fromkeys(partners.take(pa.array(rest[start : start + _RANKED])).to_pylist())
        found = list(texts)[: max(_RANKED, len(dict.fromkeys(partners.take(pa.array(held)).to_pylist())))]
        right: dict[str, list[str]] = {}
        rows = self.table.take(pa.array(held))
        for anchor, partner in zip(
            rows[self.options.columns[0]].to_pylist(), rows[self.options.columns[1]].to_pylist(), strict=True
        ):
            right.setdefault(anchor, []).append(partner)
        return Ranking(
            tuple((self.prompts[0], anchor) for anchor in right),
            tuple((self.prompts[1], text) for text in found),
            tuple(tuple(partners) for partners in right.values()),
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """Anchors, the texts they are ranked against, and the right ones of each anchor."""

    anchors: tuple[Text, ...]
    texts: tuple[Text, ...]
    right: tuple[tuple[str, ...], ...]


def _draw(seed: int, group: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{group}".encode()).digest()
