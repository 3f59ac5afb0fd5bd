"""The texts of one step, each distinct text once, and the loss over their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.verbs.train import losses
from shardmill.verbs.train.params import TrainParams

Text = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """`texts` are (prompt, text), each once, the shortest first, so that every n-th of them is a fair share.

    Row i of `places` has the texts of item i, one per column.
    """

    texts: tuple[Text, ...]
    places: NDArray[np.int64]
    labels: NDArray[np.float32] | None

    @classmethod
    def of(
        cls, columns: Sequence[Sequence[str]], prompts: Sequence[str], labels: NDArray[np.float32] | None = None
    ) -> StepBatch:
        seen: dict[Text, int] = {}
        places = [
            [seen.setdefault((prompt, text), len(seen)) for text in column]
            for prompt, column in zip(prompts, columns, strict=True)
        ]
        texts = list(seen)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][1]))
        moved = np.empty(len(order), np.int64)
        moved[order] = np.arange(len(order))
        return cls(tuple(texts[i] for i in order), moved[np.array(places, np.int64).T], labels)

    def loss(self, vectors: Tensor, options: TrainParams) -> Tensor:
        """The loss of the whole batch; `vectors` has one row per text."""
        return losses.at_lengths(lambda cut: self._loss(cut, options), vectors, options.dims)

    def _loss(self, vectors: Tensor, options: TrainParams) -> Tensor:
        places = torch.from_numpy(self.places).to(vectors.device)
        columns = [vectors[places[:, c]] for c in range(places.shape[1])]
        if self.labels is not None:
            labels = torch.from_numpy(self.labels).to(vectors.device)
            if options.objective == "cosine":
                return losses.cosine(columns[0], columns[1], labels)
            return losses.cosent(columns[0], columns[1], labels, options.temperature)
        if options.objective == "triplet":
            return losses.triplet(columns[0], columns[1], columns[2])
        candidates, own, hidden = (torch.from_numpy(each).to(vectors.device) for each in self._candidates())
        return losses.in_batch(columns[0], vectors[candidates], own, hidden, options.temperature)

    def _candidates(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The distinct texts of the later columns, each item's own among them, and those that an anchor must not see.

        These are its other partners in the batch, and a text equal to itself.
        """
        candidates = np.array(list(dict.fromkeys(self.places[:, 1:].T.ravel().tolist())), np.int64)
        order = np.argsort(candidates)
        own = order[np.searchsorted(candidates, self.places[:, 1], sorter=order)]
        anchors = self.places[:, 0]
        words = np.array([text for _, text in self.texts], object)
        hidden = words[anchors][:, None] == words[candidates][None, :]
        same = anchors[:, None] == anchors[None, :]
        for i, k in zip(*np.nonzero(same), strict=True):
            hidden[i, own[k]] = True
        hidden[np.arange(len(own)), own] = False
        return candidates, own, hidden
