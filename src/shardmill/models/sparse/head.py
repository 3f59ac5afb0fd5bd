"""The head of a masked language model, as transformers has it for each family: states of tokens to words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.networks.arrays import ACTIVATIONS
from shardmill.models.networks.description import Head, Linear, Norm

_BERT = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder")
_ROBERTA = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
# The matrix and the norm before the last matrix, the last matrix, the name of the encoder, and the word vectors in it.
_HEADS: dict[str, tuple[tuple[str, str, str], tuple[str, ...], str]] = {
    "albert": (("predictions.dense", "predictions.LayerNorm", "predictions.decoder"), ("albert",), "word_embeddings"),
    "bert": (_BERT, ("bert",), "word_embeddings"),
    "camembert": (_ROBERTA, ("roberta", "camembert"), "word_embeddings"),
    "deberta-v2": (_BERT, ("deberta",), "word_embeddings"),
    "distilbert": (
        ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        ("distilbert",),
        "word_embeddings",
    ),
    "electra": (
        ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
        ("electra",),
        "word_embeddings",
    ),
    "modernbert": (("head.dense", "head.norm", "decoder"), ("model",), "tok_embeddings"),
    "mpnet": (_ROBERTA, ("mpnet",), "word_embeddings"),
    "roberta": (_ROBERTA, ("roberta",), "word_embeddings"),
    "xlm-roberta": (_ROBERTA, ("roberta",), "word_embeddings"),
}
# Families whose activation is no part of the config.
_FIXED = {**dict.fromkeys(("camembert", "electra", "mpnet", "roberta", "xlm-roberta"), "gelu")}
_ACTIVATION_KEYS = {"distilbert": "activation", "modernbert": "classifier_activation"}
_USUAL_ACTIVATION = {"albert": "gelu_new"}
_NORM_KEYS = {"modernbert": ("norm_eps", 1e-5), "deberta-v2": ("layer_norm_eps", 1e-7)}


def describe_words(config: Mapping[str, Any], stored: Collection[str], name: str) -> Head:
    """The head of the masked language model `name`, by its config and the names of its weights."""
    family = str(config.get("model_type"))
    if family not in _HEADS:
        raise ModelError(
            f"{name} is of the family {family}, whose masked language model shardmill does not know.",
            hint=f"Known: {', '.join(sorted(_HEADS))}.",
        )
    (dense, norm, last), encoders, table = _HEADS[family]
    activation = _FIXED.get(family) or config.get(
        _ACTIVATION_KEYS.get(family, "hidden_act"), _USUAL_ACTIVATION.get(family, "gelu")
    )
    if activation not in ACTIVATIONS:
        raise ModelError(f"The head of {name} has the activation {activation!r}.", hint="Choose another model.")
    names = _Stored(stored, name)
    eps_key, eps = _NORM_KEYS.get(family, ("layer_norm_eps", 1e-12))
    first = Linear(names.need(f"{dense}.weight"), names.find(f"{dense}.bias"))
    scale = names.need(f"{norm}.weight", f"{norm}.gamma")
    shift = names.find(f"{norm}.bias", f"{norm}.beta")
    width = 1e-12 if family == "distilbert" else float(config.get(eps_key, eps))
    return Head(
        "each",
        (
            (first, str(activation), Norm(scale, width, shift)),
            (_last(config, names, last, [f"{each}.embeddings.{table}.weight" for each in encoders]), "", None),
        ),
    )


def _last(config: Mapping[str, Any], names: _Stored, last: str, tables: list[str]) -> Linear:
    """The matrix of the words, which is usually the table of their vectors."""
    tied = config.get("tie_word_embeddings", True)
    weight = names.need(*tables, f"{last}.weight") if tied else names.need(f"{last}.weight")
    above = last.rpartition(".")[0]
    return Linear(weight, names.find(f"{last}.bias", *([f"{above}.bias"] if above else [])))


class _Stored:
    """The names of the stored weights of a model."""

    def __init__(self, stored: Collection[str], model: str) -> None:
        self._stored, self._model = stored, model

    def find(self, *names: str) -> str:
        return next((name for name in names if name in self._stored), "")

    def need(self, *names: str) -> str:
        if not (found := self.find(*names)):
            raise ModelError(
                f"{self._model} lacks {names[0]}: it has no head of a masked language model.",
                hint="Pass the folder that AutoModelForMaskedLM or SparseEncoder saved. "
                "A model without that head fits `shardmill embed --model`.",
            )
        return found
