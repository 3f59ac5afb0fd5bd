"""A model of another kind than a verb runs is refused before a run is planned, with the verb that fits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.errors import ModelError
from shardmill.tasks import open_task
from tests.support.libraries import needed

save_file = needed("safetensors.numpy").save_file

BERT = {"model_type": "bert", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
ST = "sentence_transformers.models."
LISTED = {
    "embedder": [f"{ST}Transformer", f"{ST}Pooling"],
    "splade": ["sentence_transformers.sparse_encoder.models.MLMTransformer", f"{ST}SpladePooling"],
    "colbert": [f"{ST}Transformer", "pylate.models.Dense.Dense"],
    "saved re-ranker": [f"{ST}Transformer"],
}
WHOLE = {"colbert": {"document_prefix": "[D] "}, "saved re-ranker": {"model_type": "CrossEncoder"}}
ARCHITECTURES = {
    "saved re-ranker": "BertForSequenceClassification",
    "plain": "BertModel",
    "classifier": "BertForSequenceClassification",
    "re-ranker": "BertForSequenceClassification",
    "tagger": "BertForTokenClassification",
    "reader": "BertForQuestionAnswering",
    "masked": "BertForMaskedLM",
    "stanford": "HF_ColBERT",
    "writer": "LlamaForCausalLM",
}
FITS = {
    "embedder": "shardmill embed --model",
    "plain": "shardmill embed --model",
    "splade": "shardmill embed-sparse --model",
    "masked": "shardmill embed-sparse --model",
    "colbert": "shardmill embed-tokens --model",
    "stanford": "shardmill embed-tokens --model",
    "classifier": "shardmill classify --model",
    "tagger": "shardmill classify --model",
    "re-ranker": "shardmill score --model",
    "saved re-ranker": "shardmill score --model",
    "reader": "shardmill answer --reader",
    "writer": "shardmill generate --model",
}
# What a verb takes, or takes with a note, because runs exist that did.
TAKES = {
    "embed": {"embedder", "plain", "classifier", "re-ranker", "tagger", "reader", "masked", "writer"},
    "embed-sparse": {"splade", "masked"},
    "embed-tokens": {"colbert", "stanford"},
    "classify": {"classifier", "tagger", "re-ranker", "saved re-ranker"},
    "score": {"re-ranker", "saved re-ranker", "classifier"},
    "generate": {"writer"},
}
# These say it in words of their own.
BESIDE = {("generate", kind) for kind in ("plain", "classifier", "tagger", "re-ranker", "reader", "masked")}
PARAMS: dict[str, dict[str, Any]] = {"score": {"query_text": "q"}, "generate": {"max_tokens": 3}}


def write(folder: Path, kind: str) -> Path:
    """As much of a model of this kind as says what it is."""
    folder.mkdir()
    labels = {"id2label": {str(i): f"L{i}" for i in range(1 if "re-ranker" in kind else 3)}}
    said = {**BERT, "architectures": [ARCHITECTURES.get(kind, "BertModel")], **labels}
    (folder / "config.json").write_text(json.dumps(said))
    save_file({"x": np.zeros(1, np.float32)}, folder / "model.safetensors")
    if kind in LISTED:
        listed = [{"path": f"{i}_" if i else "", "type": name} for i, name in enumerate(LISTED[kind])]
        (folder / "modules.json").write_text(json.dumps(listed))
    if kind in WHOLE:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(WHOLE[kind]))
    return folder


@pytest.mark.parametrize(("verb", "kind"), [(verb, kind) for verb in TAKES for kind in FITS if kind not in TAKES[verb]])
def test_the_verb_that_fits_is_named(verb: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        open_task(verb, {"model": str(write(tmp_path / "model", kind)), **PARAMS.get(verb, {})}).fingerprint()
    assert caught.value.message.startswith("model ")
    fits = FITS[kind].removesuffix(" --model") if (verb, kind) not in BESIDE else "shardmill "
    assert fits in caught.value.hint, caught.value.hint


@pytest.mark.parametrize("verb", TAKES)
def test_an_adapter_alone_asks_for_its_base(verb: str, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ModelError, match="is an adapter") as caught:
        open_task(verb, {"model": str(tmp_path / "adapter"), **PARAMS.get(verb, {})}).fingerprint()
    assert "--model BASE" in caught.value.hint
