"""The folder of a trained model is loaded with equal vectors by sentence-transformers and by the embed task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardmill.models.folder import read_folder
from shardmill.verbs.embed.task import EmbedTask
from tests.support.libraries import needed
from tests.support.tiny_models import WIDTH, bert, pooling, qwen3, torch, write_model
from tests.support.training import CPU, a_network

SentenceTransformer = needed("sentence_transformers").SentenceTransformer
TEXTS = ["a short one", "where is the castle by the river, and who built it?", ""]
DENSE = {
    "in_features": WIDTH,
    "out_features": 16,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def shapes(folder: Path) -> dict[str, Path]:
    weights = {"linear.weight": torch.randn(16, WIDTH), "linear.bias": torch.randn(16)}
    return {
        "plain": write_model(folder / "plain", bert(dtype="float16"), scale=1),
        "cls": write_model(folder / "cls", bert(), [pooling("cls"), ("Normalize", {}, {})], scale=1),
        "dense": write_model(folder / "dense", bert(), [pooling("mean"), ("Dense", DENSE, weights)], scale=1),
        "last": write_model(folder / "last", qwen3(), [pooling("lasttoken"), ("Normalize", {}, {})], scale=1),
    }


@pytest.mark.parametrize("shape", ["plain", "cls", "dense", "last"])
def test_vectors_are_equal_after_training(shape: str, tmp_path: Path) -> None:
    from shardmill.verbs.train.result import write_model as write_result

    origin = shapes(tmp_path)[shape]
    network = a_network(origin)
    with torch.no_grad():
        for weight in network.weights().values():
            weight.add_(0.01 * torch.randn_like(weight))
    write_result(network, origin, tmp_path / "model", ("", ""), "# Card\n")
    wanted = network.embed([("", text) for text in TEXTS]).numpy()
    other = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(other, wanted, atol=1e-5)
    task = EmbedTask(model=str(tmp_path / "model"))
    task.open(replace(CPU, precise=True))
    rows = task.run(task.prepare(TEXTS).inputs).rows["embedding"].to_pylist()
    np.testing.assert_allclose(np.array(rows), wanted, atol=1e-5)
    assert (tmp_path / "model" / "README.md").read_text() == "# Card\n"


def test_prompts_of_columns_become_those_of_the_model(tmp_path: Path) -> None:
    from shardmill.verbs.train.result import write_model as write_result

    origin = shapes(tmp_path)["cls"]
    network = a_network(origin)
    write_result(network, origin, tmp_path / "model", ("query: ", "passage: "), "")
    assert read_folder(tmp_path / "model").prompts == {"query": "query: ", "document": "passage: "}
    made = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    wanted = network.embed([("query: ", "a castle")]).numpy()
    np.testing.assert_allclose(made.encode(["a castle"], prompt_name="query"), wanted, atol=1e-5)


def test_a_model_trained_without_its_prompts_has_none(tmp_path: Path) -> None:
    from shardmill.verbs.train.result import write_model as write_result

    own = {"prompts": {"query": "query: ", "document": "passage: "}}
    origin = write_model(tmp_path / "origin", bert(), [pooling("mean")], whole=own, scale=1)
    network = a_network(origin)
    write_result(network, origin, tmp_path / "same", (), "")
    assert read_folder(tmp_path / "same").prompts == own["prompts"]
    write_result(network, origin, tmp_path / "none", ("", ""), "")
    assert read_folder(tmp_path / "none").prompts == {"query": "", "document": ""}
