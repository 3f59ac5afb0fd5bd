"""Which pairs tell a model its two texts apart: those of tokenizers that name `token_type_ids`, as in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import needed, torch, transformers  # isort: skip

from shardmill.core.devices import Device
from shardmill.models.kinds import READER, RERANKER
from shardmill.models.location import find_model
from shardmill.models.pair_tokens import lacks_types
from shardmill.models.pairs import PairModel
from shardmill.models.torch_pairs import TorchPairs
from shardmill.verbs.answer.reader import SpanReader
from shardmill.verbs.answer.retriever import Searched
from shardmill.verbs.answer.task import AnswerTask
from tests.support.answers import write_reader, write_reranker

CPU = Device("cpu", "cpu", 1)
WITH = ["input_ids", "token_type_ids", "attention_mask"]
WITHOUT = ["input_ids", "attention_mask"]
# What tokenizer_config.json says, and whether that gives types.
SAID: dict[str, tuple[dict[str, Any], bool]] = {
    "BERT's class": ({}, True),
    "BERT's class without types": ({"model_input_names": WITHOUT}, False),
    "the generic class": ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
    "the generic class with types": ({"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": WITH}, True),
    "the generic class of transformers 5": ({"tokenizer_class": "TokenizersBackend"}, False),
    "DistilBERT's class": ({"tokenizer_class": "DistilBertTokenizer"}, False),
}
PAIRS = [
    ("When was the harbour of Arden built?", "Arden lies on a river. Its harbour was built in 1500."),
    ("", "In 1500."),
    ("When?", "."),
    ("Who built the castle of Corvale, and when did they do it?", "Nobody knows."),
]


def _write(folder: Path, kind: str, said: dict[str, Any]) -> Path:
    write_reader(folder) if kind == READER else write_reranker(folder, 2)
    at = folder / "tokenizer_config.json"
    at.write_text(json.dumps(json.loads(at.read_text()) | said))
    return folder


def _due(folder: Path, kind: str) -> list[Any]:
    """The logits of each pair alone, as transformers' own classes give them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    heads = {
        READER: transformers.AutoModelForQuestionAnswering,
        RERANKER: transformers.AutoModelForSequenceClassification,
    }
    model = heads[kind].from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    for pair in PAIRS:
        with torch.inference_mode():
            made = model(**tokenizer(*pair, return_tensors="pt"))
        if kind == READER:
            found.append(torch.stack([made.start_logits[0], made.end_logits[0]]).numpy())
        else:
            found.append((made.logits[0, -1] - made.logits[0, 0]).numpy())
    return found


@pytest.mark.parametrize("kind", [READER, RERANKER])
@pytest.mark.parametrize("name", SAID)
def test_types_are_given_where_the_tokenizer_names_them(tmp_path: Path, kind: str, name: str) -> None:
    said, _ = SAID[name]
    folder = _write(tmp_path / "model", kind, said)
    due = _due(folder, kind)
    for network in (None, TorchPairs(folder, kind, CPU)):
        model = PairModel(folder, kind, CPU)
        model._network = network or model._network
        tokens = model.encode(*zip(*PAIRS, strict=True))
        seen = model.spans(tokens) if kind == READER else model.score(tokens)
        for ours, theirs in zip(seen, due, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", SAID)
def test_a_reader_reads_its_windows_so(tmp_path: Path, name: str) -> None:
    said, typed = SAID[name]
    folder = _write(tmp_path / "model", READER, said)
    reader = SpanReader(find_model(str(folder)), CPU, 30)
    for (question, passage), due in zip(PAIRS[:1], _due(folder, READER), strict=False):
        [window] = reader.cut(question, passage)[1]
        assert set(window.types.tolist()) == ({0, 1} if typed else {0})
        np.testing.assert_allclose(reader._model.spans([window])[0], due, rtol=1e-4, atol=1e-3)


def test_types_matter_to_these_models(tmp_path: Path) -> None:
    """Else the tests above would pass whatever is given."""
    found = [np.stack(_due(_write(tmp_path / str(i), RERANKER, SAID[name][0]), RERANKER)) for i, name in
             enumerate(("BERT's class", "the generic class"))]  # fmt: skip
    assert np.abs(found[0] - found[1]).max() > 0.01


@pytest.mark.parametrize("name", SAID)
def test_sentence_transformers_scores_them_so(tmp_path: Path, name: str) -> None:
    cross = needed("sentence_transformers").CrossEncoder
    folder = _write(tmp_path / "model", RERANKER, SAID[name][0])
    due = cross(str(folder), device="cpu").predict(PAIRS, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    model = PairModel(folder, RERANKER, CPU)
    seen = model.score(model.encode(*zip(*PAIRS, strict=True)))
    np.testing.assert_allclose(seen, due[:, 1] - due[:, 0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", SAID)
def test_a_new_plan_says_that_types_are_as_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said, typed = SAID[name]
    folder = _write(tmp_path / "model", RERANKER, said)
    assert lacks_types(folder) is not typed
    task = AnswerTask(over="x", by="words", rerank=str(folder))
    assert task.follow_model() == ({} if typed else {"named_types": True})
    monkeypatch.setattr(AnswerTask, "_searched", Searched("embed", {}, {}, {"over": "x"}))
    monkeypatch.setattr(AnswerTask, "_embedder", None)
    assert set(task.fingerprint()) == {"over", "rerank weights", "rerank config"}
    # A plan from before gives them to all models.
    old = PairModel(folder, RERANKER, CPU, named_types=False)
    assert {t for pair in old.encode(["When?"], ["In 1500."]) for t in pair.types.tolist()} == {0, 1}
