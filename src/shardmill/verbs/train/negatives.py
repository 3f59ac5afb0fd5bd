"""Hard negatives: passages of an embed run that are near an item's first text and do not belong to it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from shardmill.core.errors import SpecError, TaskError
from shardmill.models.retrieval.passages import PassageIndex
from shardmill.verbs.train.data import Pairs
from shardmill.verbs.train.group import TrainGroup
from shardmill.verbs.train.measure import embed_all
from shardmill.verbs.train.network import Network
from shardmill.verbs.train.params import NEGATIVE

_NEAREST = 50
# A passage that is almost as near as the right one may be right too.
_CEILING = 0.95
_TOGETHER = 4096


def mine_negatives(pairs: Pairs, place: str, weights: str, network: Network, group: TrainGroup) -> Pairs:
    """The items as triplets: the third text is the nearest passage that is clearly farther than the item's partner.

    The vectors of the run must be of the model whose `weights` have this digest, before it is trained.
    """
    index = PassageIndex(place)
    if index.record.fingerprint.get("weights") != weights or index.record.dims != network.folder.width:
        raise SpecError(
            f"{place} was embedded by another model than the one that is trained, or cut.",
            hint="Embed the passages with that --model, without --dims.",
        )
    anchors, partners = (pairs.table[name].to_pylist() for name in pairs.options.columns[:2])
    right: dict[str, set[str]] = {}
    for anchor, partner in zip(anchors, partners, strict=True):
        right.setdefault(anchor, {anchor}).add(partner)
    texts, found = list(right), {}
    for start in range(0, len(texts), _TOGETHER):
        some = texts[start : start + _TOGETHER]
        vectors = embed_all([(pairs.prompts[0], text) for text in some], network, group).cpu().numpy()
        for text, (numbers, scores) in zip(some, index.by_meaning(vectors, _NEAREST), strict=True):
            passages = [index.passage(int(number)).text for number in numbers]
            found[text] = _choose(list(zip(passages, scores.tolist(), strict=True)), right[text], place, text)
    options = pairs.options.model_copy(update={"columns": (*pairs.options.columns, NEGATIVE)})
    table = pairs.table.append_column(NEGATIVE, pa.array([found[anchor] for anchor in anchors], pa.large_string()))
    return replace(pairs, table=table, options=options, prompts=(*pairs.prompts, pairs.prompts[1]))


def _choose(ranked: list[tuple[str, float]], right: set[str], place: str, anchor: str) -> str:
    others = [(text, score) for text, score in ranked if text not in right]
    if not others:
        raise TaskError(
            f"{place} has no passage that is a negative of {anchor[:60]!r}.",
            hint="Embed more passages, or leave out --hard-negatives.",
        )
    ceiling = _CEILING * max((score for text, score in ranked if text in right), default=float("inf"))
    return next((text for text, score in others if score < ceiling), others[-1][0])
