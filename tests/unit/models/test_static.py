"""Static embeddings: the rules of model2vec and of StaticEmbedding, sums that do not depend on neighbours, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.embedder import TextEmbedder
from shardmill.models.extras import extras_of_encoder
from shardmill.models.folder import read_folder
from tests.support.static_models import (
    CORPUS,
    WIDTH,
    by_model2vec,
    save_file,
    unigram,
    vectors_for,
    word_piece,
    words,
    write_model2vec,
    write_static,
)

CPU = Device("cpu", "cpu", threads=1)
TEXTS = [
    "One short line about a train.",
    "Поезд ушёл, 漢字も, مرحبا 🙂",
    "the battery " * 700,
    "a" * 4000 + " the end",
    "Nobody told",
    *CORPUS[:4],
]


def opened(folder: Path, device: Device = CPU, **how: Any) -> TextEmbedder:
    embedder = TextEmbedder(str(folder), **how)
    embedder.check_installed("cpu")
    embedder.open(device)
    return embedder


def assert_same(embedder: TextEmbedder, texts: list[str], due: list[NDArray[Any]]) -> None:
    """Equal where there is a token; where the rule gives zeros, the text is set aside."""
    made, expected = embedder.embed_texts(texts), np.stack(due)
    without = ~expected.any(axis=1)
    assert np.isnan(made[without]).all()
    assert set(embedder.encode(texts).bad) == set(np.flatnonzero(without).tolist())
    assert np.allclose(made[~without], expected[~without], atol=1e-6)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("make", "unknown"), [(word_piece, 1), (unigram, 1), (words, 0)])
def test_model2vec_with_each_kind_of_tokenizer(make: Any, unknown: int, listed: bool, tmp_path: Path) -> None:
    backend = make()
    folder = write_model2vec(tmp_path / "m", backend, listed=listed)
    texts = [*TEXTS, "", "🙂🙂 🙂"]
    due = [by_model2vec(text, backend, vectors_for(backend), unknown=unknown) for text in texts]
    embedder = opened(folder)
    assert_same(embedder, texts, due)
    assert embedder.encode(texts).bad[len(TEXTS)] == "the text has no tokens"
    assert embedder.normalizes


@pytest.mark.parametrize(
    ("config", "how"),
    [
        ({"normalize": False}, {"normalize": False}),
        ({"max_length": 6}, {"longest": 6}),
        ({"max_length": None}, {"longest": None}),
    ],
)
def test_what_the_config_of_model2vec_says(config: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    backend = word_piece()
    folder = write_model2vec(tmp_path / "m", backend, **config)
    due = [by_model2vec(text, backend, vectors_for(backend), unknown=1, **how) for text in TEXTS]
    assert_same(opened(folder), TEXTS, due)


def test_a_smaller_limit_cuts_as_model2vec_does_with_it(tmp_path: Path) -> None:
    backend = word_piece()
    folder = write_model2vec(tmp_path / "m", backend)
    due = [by_model2vec(text, backend, vectors_for(backend), unknown=1, longest=4) for text in TEXTS]
    embedder = opened(folder, max_tokens=4)
    assert_same(embedder, TEXTS, due)
    assert embedder.encode(TEXTS).truncated == len(TEXTS) - 1


@pytest.mark.parametrize("kind", ["float16", "float64", "int8"])
def test_a_quantised_vocabulary_with_weights(kind: str, tmp_path: Path) -> None:
    backend = word_piece()
    rows = backend.get_vocab_size()
    random = np.random.default_rng(3)
    table = random.standard_normal((20, WIDTH))
    table = np.rint(table * 40).astype(kind) if kind == "int8" else table.astype(kind)
    mapping, weights = random.integers(0, 20, rows), random.random(rows).astype(np.float32)
    folder = write_model2vec(tmp_path / "m", backend, {"embeddings": table, "mapping": mapping, "weights": weights})
    how: dict[str, Any] = {"mapping": mapping, "weights": weights, "unknown": 1}
    due = [by_model2vec(text, backend, table, **how) for text in TEXTS]
    assert_same(opened(folder), TEXTS, due)
    assert_same(opened(folder, Device("cpu", "cpu", reference=True)), TEXTS, due)


def test_sentence_transformers_keeps_unknown_tokens_and_the_cut_of_the_tokenizer(tmp_path: Path) -> None:
    backend = word_piece(max_length=5, direction="left")
    folder = write_static(tmp_path / "m", backend, "Normalize", prompts={"query": "train: "}, below="0_StaticEmbedding")
    plain = word_piece()
    plain.no_truncation()
    plain.no_padding()
    table, due = vectors_for(backend), []
    for text in TEXTS:
        ids = plain.encode(text, add_special_tokens=False).ids[-5:]
        mean = table[ids].mean(axis=0)
        due.append(mean / np.linalg.norm(mean))
    embedder = opened(folder)
    assert_same(embedder, TEXTS, due)
    asked = plain.encode("train: hour", add_special_tokens=False).ids[-5:]
    mean = table[asked].mean(axis=0)
    assert np.allclose(embedder.embed_queries(["hour"])[0], mean / np.linalg.norm(mean), atol=1e-6)


def test_a_vector_does_not_depend_on_the_texts_beside_it(tmp_path: Path) -> None:
    embedder = opened(write_static(tmp_path / "m", word_piece(max_length=1000)))
    texts = [" ".join(CORPUS[n % 4].split()[: n % 17 + 1]) for n in range(600)] + TEXTS
    together = embedder.embed_texts(texts)
    assert (embedder.encode(texts).rows.lengths > 128).any()
    for n in range(0, len(texts), 37):
        assert np.array_equal(together[n], embedder.embed_texts([texts[n]])[0])
    reference = opened(tmp_path / "m", Device("cpu", "cpu", reference=True))
    assert np.allclose(together, reference.embed_texts(texts), atol=1e-5)
    assert embedder.numerics == {"kernel": "numpy float32, token vectors", "precision": "float32"}
    assert reference.numerics["precision"] == "float64"


def test_what_a_worker_is_given_and_needs(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path / "m", word_piece())
    embedder = opened(folder, dims=5)
    assert embedder.dims == 5
    assert not embedder.padded
    assert np.allclose(np.linalg.norm(embedder.embed_texts(CORPUS), axis=1), 1, atol=1e-6)
    assert embedder.gpu_bytes(precise=True) is None
    assert extras_of_encoder(str(folder), gpu=True) == ("light",)
    with pytest.raises(ModelError, match="averaged on the CPU"):
        embedder.check_installed("cuda")


def _without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _save(**tensors: Any) -> Any:
    return lambda folder: save_file(tensors, folder / "model.safetensors")


def _with_nan(folder: Path) -> None:
    table = vectors_for(word_piece())
    table[3, 4] = np.nan
    save_file({"embeddings": table}, folder / "model.safetensors")


def _with_config(**said: Any) -> Any:
    def write(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | said))

    return write


ROWS = word_piece().get_vocab_size()
TABLE = np.zeros((ROWS, 4), np.float32)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_without_tokenizer, "has no tokenizer.json"),
        (_without_weights, "has no model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), r"tokenizer\.json cannot be read"),
        (_save(embeddings=TABLE[1:]), f"vectors of {ROWS - 1} tokens, and its tokenizer has {ROWS}"),
        (_save(embeddings=np.zeros((ROWS + 8, 4), np.float32)), f"vectors of {ROWS + 8} tokens"),
        (_save(other=TABLE), "no table of token vectors"),
        (_save(embeddings=TABLE[0]), "no table of token vectors"),
        (_save(embeddings=TABLE, weights=np.ones(3, np.float32)), "weights of shape"),
        (_save(embeddings=TABLE[:2], mapping=np.full(ROWS, 2)), "maps tokens to vectors that it does not have"),
        (_with_nan, f"NaN or infinity in 1 of the {ROWS} rows of embeddings"),
        (_with_config(max_length="many"), "max_length 'many'"),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_refused_in_one_line(damage: Any, told: str, listed: bool, tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path / "m", word_piece(), listed=listed)
    damage(folder)
    with pytest.raises(ModelError, match=told) as refused:
        opened(folder)
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_static_embeddings_after_which_a_transformer_comes_are_refused(tmp_path: Path) -> None:
    folder = write_static(tmp_path / "m", word_piece(), "Pooling")
    with pytest.raises(ModelError, match=r"lists StaticEmbedding, Pooling"):
        read_folder(folder)
