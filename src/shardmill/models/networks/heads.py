"""The matrices after the encoder of a classifier, a re-ranker or a reader, as transformers has them for each family."""

from __future__ import annotations

from shardmill.models.kinds import READER, TAGGER
from shardmill.models.networks.description import Head, Linear
from shardmill.models.networks.names import Names, check_activation
from shardmill.models.networks.said import Said
from shardmill.models.networks.unknown import NotDescribed

_POOLED = ("pooler.dense", "tanh", "classifier")
_ROBERTA = ("classifier.dense", "tanh", "classifier.out_proj")
# Of re-rankers: the matrix that the first token goes through, the activation after it, and the last matrix.
_CLASSIFIERS = {
    "albert": ("pooler", "tanh", "classifier"),
    "bert": _POOLED,
    "camembert": _ROBERTA,
    "distilbert": ("pre_classifier", "relu", "classifier"),
    "electra": ("classifier.dense", "gelu", "classifier.out_proj"),
    "mpnet": _ROBERTA,
    "nomic_bert": _POOLED,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
_POOLINGS = {"cls": "first", "mean": "mean"}


def describe_head(said: Said, names: Names, family: str, kind: str) -> Head:
    """The head of a classifier of texts or tokens, a re-ranker or a reader."""
    if family == "modernbert":
        return _describe_modernbert(said, names, kind)
    if family not in _CLASSIFIERS:
        raise NotDescribed(f"no re-ranker or reader of its family {family} is described")
    if kind == READER:
        return Head("each", ((_biased("qa_outputs"), "", None),))
    if kind == TAGGER:
        return Head("each", ((_biased("classifier"), "", None),))
    dense, activation, last = _CLASSIFIERS[family]
    # The pooler belongs to the encoder.
    first = _biased(names(dense) if dense.startswith("pooler") else dense)
    return Head("first", ((first, activation, None), (_biased(last), "", None)))


def _describe_modernbert(said: Said, names: Names, kind: str) -> Head:
    pooling = str(said.get("classifier_pooling", "cls"))
    if pooling not in _POOLINGS:
        raise NotDescribed(f"its classifier_pooling is {pooling}")
    activation = check_activation(said.get("classifier_activation", "gelu"))
    norm = names.norm("head.norm", float(said.get("norm_eps", 1e-5)), outside=True)
    dense = names.linear("head.dense", outside=True)
    steps = ((dense, activation, norm), (_biased("classifier"), "", None))
    return Head("each" if kind in (READER, TAGGER) else _POOLINGS[pooling], steps)


def _biased(name: str) -> Linear:
    return Linear(f"{name}.weight", f"{name}.bias")
