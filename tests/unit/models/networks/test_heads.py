"""Heads of every family beside transformers: the same logits, with NumPy and with OpenVINO."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.models.kinds import READER, RERANKER, TAGGER
from shardmill.models.networks.arrays import ArrayNetwork
from shardmill.models.networks.families import describe
from shardmill.models.networks.stored import read_weights
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.plain import pad
from shardmill.models.tokenizer import count_positions
from tests.unit.models.networks.cases import CASES, Case

pytestmark = pytest.mark.model

torch = pytest.importorskip("torch")
HEADS = {
    "bert": "Bert",
    "bert with relu": "Bert",
    "roberta": "Roberta",
    "roberta with another padding": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "albert": "Albert",
    "mpnet": "MPNet",
    "modernbert": "ModernBert",
    "modernbert with biases": "ModernBert",
    "nomic": "NomicBert",
}
_LABELS = (1, 2, 3)
_MEAN = {"classifier_pooling": "mean", "classifier_bias": True, "classifier_activation": "silu"}


def _rerankers() -> dict[str, Case]:
    """Each family with one, two or three labels, in turn; BERT with each of them."""
    made = {}
    for at, (name, prefix) in enumerate(HEADS.items()):
        for labels in _LABELS if name == "bert" else [_LABELS[at % 3]]:
            options = {**CASES[name].options, "num_labels": labels}
            case = replace(CASES[name], model=f"{prefix}ForSequenceClassification", options=options)
            made[f"{name}, {labels} labels"] = case
    cls = replace(CASES["modernbert with biases"], model="ModernBertForSequenceClassification")
    return {**made, "modernbert, mean": replace(cls, options={**cls.options, **_MEAN})}


def _readers() -> dict[str, Case]:
    return {
        name: replace(CASES[name], model=f"{prefix}ForQuestionAnswering")
        for name, prefix in HEADS.items()
        if prefix != "NomicBert"
    }


def _taggers() -> dict[str, Case]:
    return {
        name: replace(
            CASES[name], model=f"{prefix}ForTokenClassification", options={**CASES[name].options, "num_labels": 3}
        )
        for name, prefix in HEADS.items()
    }


RERANKERS, READERS, TAGGERS = _rerankers(), _readers(), _taggers()


def _batch(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Pairs up to the limit of the model, padded; the padding id is also a token of the longest."""
    random, pad_id = np.random.default_rng(3), 1 if model.config.model_type == "mpnet" else model.config.pad_token_id
    lengths = (1, 2, 9, 33, count_positions(model.config.to_dict()) or 64)
    rows = [random.integers(6, 120, size=n).astype(np.int32) for n in lengths]
    rows[-1][4:6] = pad_id
    ids, mask = pad(rows, pad_id)
    typed = getattr(model.config, "type_vocab_size", 0) > 1
    types = (np.arange(ids.shape[1]) >= mask.sum(axis=1, keepdims=True) // 2) * mask
    return {"input_ids": ids, "attention_mask": mask, **({"token_type_ids": types} if typed else {})}


def _expected(model: Any, batch: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        made = model(**{name: torch.from_numpy(array) for name, array in batch.items()})
    logits = made.logits if "logits" in made else torch.stack([made.start_logits, made.end_logits], dim=-1)
    return np.asarray(logits.numpy())


def _network(folder: Path, kind: str) -> tuple[Any, Any]:
    weights = read_weights(folder)
    return describe(json.loads((folder / "config.json").read_text()), weights, kind), weights


def _check(case: Case, folder: Path, kind: str) -> None:
    model = case.make(folder)
    batch = _batch(model)
    network, weights = _network(folder, kind)
    expected = _expected(model, batch)
    real = batch["attention_mask"] > 0 if kind in (READER, TAGGER) else slice(None)
    seen = ArrayNetwork(network, weights)(*batch.values())
    assert seen.shape == expected.shape
    np.testing.assert_allclose(seen[real], expected[real], atol=2e-4, rtol=1e-4)
    openvino = pytest.importorskip("openvino")
    from shardmill.models.networks.graph import build_graph

    graph = build_graph(network, weights, typed="token_type_ids" in batch)
    compiled = openvino.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled(tuple(batch.values()))[0][real], expected[real], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("case", RERANKERS.values(), ids=RERANKERS)
def test_logits_of_rerankers_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path, RERANKER)


@pytest.mark.parametrize("case", READERS.values(), ids=READERS)
def test_logits_of_readers_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path, READER)


@pytest.mark.parametrize("case", TAGGERS.values(), ids=TAGGERS)
def test_logits_of_token_classifiers_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path, TAGGER)


def test_a_head_that_is_not_stored_or_not_known_is_refused_by_name(tmp_path: Path) -> None:
    CASES["bert"].make(tmp_path)
    for kind, name in ((READER, "qa_outputs.bias"), (RERANKER, "classifier.bias")):
        with pytest.raises(NotDescribed, match=f"its weights lack {name}"):
            _network(tmp_path, kind)
    CASES["t5"].make(tmp_path / "t5")
    with pytest.raises(NotDescribed, match="no re-ranker or reader of its family t5"):
        _network(tmp_path / "t5", RERANKER)
    READERS["modernbert"].make(tmp_path / "modernbert")
    config = json.loads((tmp_path / "modernbert" / "config.json").read_text())
    with pytest.raises(NotDescribed, match="its classifier_pooling is max"):
        describe({**config, "classifier_pooling": "max"}, read_weights(tmp_path / "modernbert"), RERANKER)


def test_keys_that_published_rerankers_and_readers_have_are_known(tmp_path: Path) -> None:
    RERANKERS["distilbert, 1 labels"].make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    more = {"tie_weights_": True, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    more |= {"language": "english", "name": "DistilBert", "directionality": "bidi", "pooler_type": "first_token"}
    assert describe({**config, **more}, read_weights(tmp_path), RERANKER).head is not None
