"""Tiny classifiers with random weights, in folders as transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.libraries import needed
from tests.support.tiny_models import SMALL, roberta_tokenizer, write_model, xlm_roberta_tokenizer

transformers = needed("transformers")

TOKENS = 64
# Of these, only torch runs DeBERTa.
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "bert": ("Bert", {}, lambda: None),
    "roberta": ("Roberta", {"type_vocab_size": 1}, roberta_tokenizer),
    "distilbert": (
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 30522},
        lambda: None,
    ),
    "deberta": (
        "DebertaV2",
        {"vocab_size": 30522, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
        lambda: None,
    ),
    "modernbert": (
        "ModernBert",
        {
            "vocab_size": 30522,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "pad_token_id": 0,
            "cls_token_id": 101,
            "sep_token_id": 102,
        },
        lambda: None,
    ),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1}, xlm_roberta_tokenizer),
}
TEXTS = [
    "The battery died after an hour, and the charger was never in the box at all.",
    "Поезд ушёл в восемь утра; naïve café, Übergröße.",
    "for (int i = 0; i < n; ++i)",
    "Yes.",
    "A train left Lyon at 08:14 and reached Turin late; nobody on board had been told why. " * 8,
]


def write_classifier(
    folder: Path, family: str = "bert", labels: Any = ("bad", "good", "odd"), kind: str = "Sequence", **options: Any
) -> Path:
    """One with these labels, by number, which reads TOKENS of a text at most."""
    prefix, usual, tokenizer = FAMILIES[family]
    named = labels if isinstance(labels, dict) else dict(enumerate(labels))
    said = {"id2label": named, "label2id": {name: i for i, name in named.items()}, "max_position_embeddings": 80}
    made = getattr(transformers, f"{prefix}Config")
    small = {} if family == "distilbert" else SMALL
    own = tokenizer()
    if own is not None:
        said["vocab_size"] = len(own)
    config = made(**{**small, **said, **usual, **options})
    head = getattr(transformers, f"AutoModelFor{kind}Classification")
    write_model(folder, config, kind=head, tokenizer=own, scale=3)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_max_length": TOKENS}))
    return folder


def write_tagger(folder: Path, family: str = "bert", labels: Any = ("O", "B-PER", "I-PER", "LOC")) -> Path:
    """One that labels tokens."""
    return write_classifier(folder, family, labels, "Token")


def write_entailer(folder: Path, family: str = "bert", **options: Any) -> Path:
    """One that was trained for entailment, by the names of its labels."""
    return write_classifier(folder, family, ("contradiction", "neutral", "entailment"), **options)
