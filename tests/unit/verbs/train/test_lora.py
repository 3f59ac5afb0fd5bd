"""Training of an adapter: the base model stays, a resume ends with the same bits, model and adapter say the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.errors import ModelError, SpecError
from shardmill.models.embedder import TextEmbedder
from shardmill.models.location import find_model
from shardmill.tasks.params import read_params
from shardmill.verbs.train.params import TrainParams
from shardmill.verbs.train.task import TrainTask
from tests.support.libraries import needed
from tests.support.training import CPU, MemoryContext, a_model, a_network, pairs_of, topic_pairs

torch = needed("torch")
load_file = needed("safetensors.torch").load_file
RANK, ALPHA = 2, 6.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("model") / "base")


def loop(folder: Path, context: Any) -> Any:
    from shardmill.verbs.train.loop import TrainingLoop

    pairs = pairs_of(topic_pairs(), folder, epochs=2, learning_rate=1e-2, lora=RANK, lora_alpha=ALPHA)
    return TrainingLoop(a_network(folder, lora=pairs.options.adapter), pairs, context, "digest")


def test_only_the_factors_learn_and_a_resume_ends_with_the_same_bits(folder: Path) -> None:
    whole = loop(folder, MemoryContext())
    before = {name: weight.clone() for name, weight in whole.network.modules.named_parameters()}
    learning = whole.network.weights()
    assert {name.rpartition(".")[2] for name in learning} == {"lora_a", "lora_b"}
    assert not any("pooler" in name for name in learning)
    wanted = whole.run()
    for name, weight in whole.network.modules.named_parameters():
        assert torch.equal(weight, before[name]) == (name not in learning), name
    context = MemoryContext(stop_at=5)
    assert loop(folder, context).run() is None
    assert context.kept is not None
    assert load_keys(context) == set(learning)
    context.stop_at = None
    resumed = loop(folder, context)
    assert resumed.run() == wanted
    for name, weight in whole.network.weights().items():
        assert torch.equal(weight, resumed.network.weights()[name]), name


def load_keys(context: Any) -> set[str]:
    import safetensors.torch

    return set(safetensors.torch.load(context.kept.files["weights.safetensors"]))


def test_the_model_and_the_adapter_on_its_base_are_the_same(folder: Path, tmp_path: Path) -> None:
    from shardmill.verbs.train.result import write_model

    trained = loop(folder, MemoryContext())
    trained.run()
    network, texts = trained.network, ["the river", "a castle and so on", ""]
    learnt = network.embed([("", text) for text in texts]).numpy()
    digest = find_model(str(folder)).digests()["weights"]
    network.adapter.write(tmp_path / "model" / "adapter", str(folder), digest)
    network.adapter.merge()
    write_model(network, folder, tmp_path / "model", (), "# Card\n")
    vectors = []
    for model, adapter in ((tmp_path / "model", None), (folder, tmp_path / "model" / "adapter"), (folder, None)):
        embedder = TextEmbedder(str(model), adapter=None if adapter is None else str(adapter))
        embedder.open(replace(CPU, precise=True))
        vectors.append(embedder.embed_texts(texts))
    np.testing.assert_allclose(vectors[0], learnt, atol=1e-5)
    np.testing.assert_allclose(vectors[1], learnt, atol=1e-5)
    assert np.abs(vectors[2] - learnt).max() > 0.01
    said = json.loads((tmp_path / "model" / "adapter" / "adapter_config.json").read_text())
    assert (said["peft_type"], said["r"], said["lora_alpha"]) == ("LORA", RANK, ALPHA)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert stored.keys() == load_file(folder / "model.safetensors").keys()
    with pytest.raises(ModelError, match=r"adapter was trained on other weights than those of model \(.*base"):
        find_model(str(tmp_path / "model"), str(tmp_path / "model" / "adapter"))
    task = TrainTask(model=str(tmp_path / "model" / "adapter"), columns=("a", "b"), lora=2)
    with pytest.raises(SpecError, match="is an adapter itself"):
        task.fingerprint()


def test_peft_reads_the_adapter(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = needed("transformers")
    trained = loop(folder, MemoryContext())
    trained.run()
    trained.network.adapter.write(tmp_path / "adapter", str(folder), "")
    model = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(folder), tmp_path / "adapter")
    merged = model.merge_and_unload().state_dict()
    trained.network.adapter.merge()
    for name, weight in trained.network.modules[0].state_dict().items():
        torch.testing.assert_close(merged[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_an_alpha_needs_a_rank() -> None:
    given = {"model": "m", "columns": ("a", "b")}
    assert read_params(TrainParams, {**given, "lora": 8}, "train").adapter == (8, 16.0)
    assert read_params(TrainParams, given, "train").adapter is None
    with pytest.raises(SpecError, match="given without lora"):
        read_params(TrainParams, {**given, "lora_alpha": 8}, "train")
