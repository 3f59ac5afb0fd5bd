"""Re-rankers and readers: what computes them, that all of it agrees, and that pairs are cut as transformers does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import (  # isort: skip
    bert,
    needed,
    roberta_tokenizer,
    transformers,
    write_model,
    xlm_roberta_tokenizer,
)
from safetensors.numpy import load_file, save_file  # isort: skip

from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models import openvino, pair_networks
from shardmill.models.backend import open_backend
from shardmill.models.kinds import READER, RERANKER
from shardmill.models.networks.graph import build_graph
from shardmill.models.pair_networks import OpenVinoPairs, PlainPairs
from shardmill.models.pair_tokens import PairTokenizer
from shardmill.models.pairs import PairModel
from shardmill.models.torch_pairs import TorchPairs
from tests.support.answers import passages, write_reader, write_reranker

# Imported here it would report its use; shardmill imports it without.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")

CPU = Device("cpu", "cpu", 1)
QUESTION = "When was the harbour of Arden built, and who visits it?"
LONG = " ".join(row["text"] for row in passages()[:8])
# Below, at and above the limit of the models, with the question and with the passage as the longer text.
PAIRS = [(QUESTION, "In 1500."), (QUESTION, LONG), (LONG, QUESTION), (LONG, LONG), ("", LONG), (LONG, ""), ("a", "b")]
FIRSTS, SECONDS = [first for first, _ in PAIRS], [second for _, second in PAIRS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {READER: write_reader(root / "reader"), RERANKER: write_reranker(root / "reranker", 2)}


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_networks, "has_torch", lambda: False)


def _wrong(network: Any, *given: Any, **options: Any) -> Any:
    """The graph of a network with other norms."""
    return build_graph(replace(network, norm=replace(network.norm, eps=0.5)), *given, **options)


def _computed_by(model: PairModel) -> type:
    return type(model._network)


@pytest.mark.parametrize("kind", [READER, RERANKER])
def test_openvino_numpy_and_torch_give_the_same_logits(folders: dict[str, Path], kind: str) -> None:
    model = PairModel(folders[kind], kind, CPU)
    assert (_computed_by(model), model.note, model.limit) == (OpenVinoPairs, "openvino f32", 128)
    pairs = model.encode(FIRSTS, SECONDS)
    assert sorted({len(pair.ids) for pair in pairs})[-1] == 128
    found = {}
    for network in (OpenVinoPairs, PlainPairs, TorchPairs):
        model._network = {
            OpenVinoPairs: model._network,
            PlainPairs: PlainPairs(folders[kind], kind),
            TorchPairs: TorchPairs(folders[kind], kind, CPU),
        }[network]
        assert (model._network.longest, model._network.known_ids) == (128, 30522)
        found[network] = model.spans(pairs) if kind == READER else [model.score(pairs)]
    for fast, plain, torch in zip(*found.values(), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(fast, torch, rtol=1e-3, atol=1e-3)


_LIGHT = """
import sys
from pathlib import Path
from shardmill.core.devices import Device
from shardmill.models.kinds import READER, RERANKER
from shardmill.models.location import find_model
from shardmill.models.pairs import PairModel
from shardmill.verbs.answer.reader import SpanReader

reader = SpanReader(find_model(sys.argv[1]), Device("cpu", "cpu", 1), 30)
assert reader.read(["When?"], ["In 1500."])[0].null is not None
ranker = PairModel(Path(sys.argv[2]), RERANKER, Device("cpu", "cpu", 1))
assert ranker.score(ranker.encode(["When?"], ["In 1500."])).shape == (1,)
heavy = {"torch", "transformers", "openvino_telemetry"} & {name for name, module in sys.modules.items() if module}
assert not heavy, heavy
"""


def test_neither_torch_nor_transformers_is_imported(folders: dict[str, Path]) -> None:
    subprocess.run([sys.executable, "-c", _LIGHT, str(folders[READER]), str(folders[RERANKER])], check=True)


def test_a_graph_that_computes_something_else_is_not_used(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_networks, "build_graph", _wrong)
    for kind, folder in folders.items():
        model = PairModel(folder, kind, CPU)
        assert _computed_by(model) is TorchPairs
        assert f"OpenVINO computes {folder.name} wrongly: a logit differs by" in model.note


def test_without_torch_numpy_computes_what_openvino_does_wrongly(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, no_torch: None
) -> None:
    monkeypatch.setattr(pair_networks, "build_graph", _wrong)
    model = PairModel(folders[RERANKER], RERANKER, CPU)
    assert _computed_by(model) is PlainPairs
    assert model.note.startswith("numpy float32 (OpenVINO computes reranker wrongly")
    due = TorchPairs(folders[RERANKER], RERANKER, CPU)
    pairs = model.encode(FIRSTS, SECONDS)
    seen = model.score(pairs)
    model._network = due
    np.testing.assert_allclose(seen, model.score(pairs), rtol=1e-4, atol=1e-4)


def test_the_reference_is_torch_if_there_is_one(folders: dict[str, Path]) -> None:
    assert _computed_by(PairModel(folders[RERANKER], RERANKER, replace(CPU, reference=True))) is TorchPairs


def test_the_reference_is_numpy_without_torch(folders: dict[str, Path], no_torch: None) -> None:
    assert _computed_by(PairModel(folders[RERANKER], RERANKER, replace(CPU, reference=True))) is PlainPairs


def test_a_family_that_is_not_described_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
    config = transformers.ConvBertConfig(**small, vocab_size=30522, embedding_size=32, max_position_embeddings=64)
    kind = transformers.AutoModelForSequenceClassification
    folder = write_model(tmp_path / "conv", config, kind=kind)
    model = PairModel(folder, RERANKER, CPU)
    assert (_computed_by(model), model.limit) == (TorchPairs, 64)
    assert np.isfinite(model.score(model.encode(FIRSTS, SECONDS))).all()
    monkeypatch.setattr(pair_networks, "has_torch", lambda: False)
    with pytest.raises(ModelError, match=r"(?s)conv needs torch, which is not installed: its family convbert.*pip"):
        PairModel(folder, RERANKER, CPU)


def test_without_openvino_torch_computes(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(library: Any) -> None:
        raise MissingExtra("openvino is not installed.")

    monkeypatch.setattr(openvino, "_core", missing)
    assert _computed_by(PairModel(folders[RERANKER], RERANKER, CPU)) is TorchPairs
    monkeypatch.setattr(pair_networks, "has_torch", lambda: False)
    with pytest.raises(MissingExtra, match="openvino is not installed"):
        PairModel(folders[RERANKER], RERANKER, CPU)


def _changed(folder: Path, weights: dict[str, Any] | None = None, **config: Any) -> Path:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    stored = {**load_file(folder / "model.safetensors"), **(weights or {})}
    kept = {name: value for name, value in stored.items() if value is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_reranker_without_its_pooler_is_refused(tmp_path: Path) -> None:
    none: dict[str, Any] = {"bert.pooler.dense.weight": None, "bert.pooler.dense.bias": None}
    folder = _changed(write_reranker(tmp_path / "ranker"), none)
    with pytest.raises(ModelError, match=r"ranker lacks weights: bert\.pooler\.dense\.bias"):
        PairModel(folder, RERANKER, CPU)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    narrow = {"classifier.weight": np.ones((1, 31), np.float32)}
    folder = _changed(write_reranker(tmp_path / "ranker"), narrow)
    with pytest.raises(ModelError, match=r"(?s)ranker cannot be run.*weights do not belong to its config"):
        PairModel(folder, RERANKER, CPU)


def test_a_reader_has_a_start_and_an_end(tmp_path: Path) -> None:
    three = {"qa_outputs.weight": np.ones((3, 32), np.float32), "qa_outputs.bias": np.ones(3, np.float32)}
    folder = _changed(write_reader(tmp_path / "reader"), three)
    with pytest.raises(ModelError, match="gives 3 numbers for each token"):
        PairModel(folder, READER, CPU)


def test_a_token_without_weights_is_told(tmp_path: Path) -> None:
    config = bert(vocab_size=20_000, max_position_embeddings=64)
    folder = write_model(tmp_path / "ranker", config, kind=transformers.AutoModelForSequenceClassification)
    model = PairModel(folder, RERANKER, CPU)
    rare = next(token for i in range(20_000, 30_000) if (token := model.tokenizer.id_to_token(i)).isalpha())
    with pytest.raises(ModelError, match=f"ranker has no weights for the token '{rare}'"):
        model.score(model.encode(["a"], [rare]))


TOKENIZERS = {"bert": lambda: None, "roberta": roberta_tokenizer, "xlm-roberta": xlm_roberta_tokenizer}


@pytest.mark.parametrize("family", TOKENIZERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_are_cut_as_transformers_does(family: str, side: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(family, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    folder = write_model(tmp_path / "model", config, tokenizer=TOKENIZERS[family]())
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, "truncation_side": side}))
    tokens, plain = PairTokenizer(open_backend(folder, {})), transformers.AutoTokenizer.from_pretrained(folder)
    for limit in (20, 21, 64, 4096):
        options = {"truncation": "longest_first", "max_length": limit, "return_token_type_ids": True}
        due = plain(FIRSTS, SECONDS, **options)
        seen = tokens.encode(FIRSTS, SECONDS, limit)
        assert [pair.ids.tolist() for pair in seen] == due["input_ids"]
        assert [pair.types.tolist() for pair in seen] == due["token_type_ids"]
    whole = plain(LONG, add_special_tokens=False, return_offsets_mapping=True)
    made = tokens.tokenizer.encode(LONG, add_special_tokens=False)
    assert (made.ids, made.offsets) == (whole["input_ids"], whole["offset_mapping"])
    assert tokens.tokenizer.encode("a", "b").sequence_ids == plain("a", "b").sequence_ids(0)
