"""How good a model is on items that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.core.evaluation.ranking import reciprocal_rank
from shardmill.models.retrieval.vectors import nearest
from shardmill.verbs.train.batch import Text
from shardmill.verbs.train.data import Pairs, Ranking
from shardmill.verbs.train.group import TrainGroup
from shardmill.verbs.train.losses import cosines
from shardmill.verbs.train.network import Network
from shardmill.verbs.train.params import DEPTH, MRR, SPEARMAN

# Texts embedded together, so that their tokens are not all in memory at once.
_TOGETHER = 4096


class Measure:
    """MRR@10 of held-out anchors or, with labels, the rank correlation of cosines and labels."""

    def __init__(self, pairs: Pairs, held: NDArray[np.int64]) -> None:
        self._labelled = pairs.batch(held) if pairs.options.label else None
        self._ranking: Ranking | None = None if pairs.options.label else pairs.ranking(held)
        self.name = SPEARMAN if pairs.options.label else MRR

    def of(self, network: Network, group: TrainGroup) -> float:
        if self._ranking is not None:
            return float(np.mean(reciprocal_ranks(self._ranking, network, group)[0]))
        assert self._labelled is not None
        vectors, places = embed_all(self._labelled.texts, network, group), torch.from_numpy(self._labelled.places)
        scores = cosines(vectors[places[:, 0]], vectors[places[:, 1]])
        return spearman(scores.cpu().numpy(), np.asarray(self._labelled.labels))


def reciprocal_ranks(
    ranking: Ranking, network: Network, group: TrainGroup, lengths: Sequence[int | None] = (None,)
) -> list[list[float]]:
    """One over the rank of each anchor's first right text, 0 beyond the tenth, with vectors cut at each length."""
    texts, anchors = (embed_all(each, network, group).cpu().numpy() for each in (ranking.texts, ranking.anchors))
    return [
        [
            reciprocal_rank([ranking.texts[row][1] for row in rows], dict.fromkeys(right, 1), DEPTH)
            for (rows, _), right in zip(
                nearest(texts[:, :length], anchors[:, :length], DEPTH), ranking.right, strict=True
            )
        ]
        for length in lengths
    ]


def embed_all(texts: Sequence[Text], network: Network, group: TrainGroup) -> torch.Tensor:
    """The vectors of texts; each process embeds a part."""
    mine = texts[group.rank :: group.size]
    parts = [network.embed(mine[start : start + _TOGETHER]) for start in range(0, max(1, len(mine)), _TOGETHER)]
    return group.gather(torch.cat(parts), len(texts))


def spearman(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The correlation of ranks; equal values share their mean rank; 0 if all values of one side are equal.

    >>> spearman(np.array([0.1, 0.5, 0.9]), np.array([1.0, 2.0, 3.0]))
    1.0
    """
    a, b = (_ranks(each) - (len(each) - 1) / 2 for each in (first, second))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: NDArray[np.float32]) -> NDArray[np.float64]:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts + 1) / 2)[where]
    return ranks
