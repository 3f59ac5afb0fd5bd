"""Static embeddings equal those of sentence-transformers, which reads folders of model2vec too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.models.embedder import TextEmbedder
from tests.support.libraries import needed
from tests.support.static_models import CORPUS, unigram, word_piece, write_model2vec, write_static

SentenceTransformer = needed("sentence_transformers").SentenceTransformer
pytestmark = pytest.mark.model
TEXTS = ["A train left.", "word " * 300, "Поезд ушёл, 漢字も 🙂 [SEP] [MASK]", "a-b_c.d/e\\f" * 60, *CORPUS[:4]]


def assert_equal(folder: Path, texts: list[str], **how: Any) -> None:
    embedder = TextEmbedder(str(folder), prompt=how.get("prompt"))
    embedder.open(Device("cpu", "cpu", threads=2))
    due = SentenceTransformer(str(folder), device="cpu").encode(texts, **how)
    assert np.allclose(embedder.embed_texts(texts), due, atol=1e-6)


@pytest.mark.parametrize("make", [word_piece, unigram])
@pytest.mark.parametrize("more", [(), ("Normalize",), ("Dropout", "Normalize")])
def test_static_embedding(make: Any, more: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_static(tmp_path / "m", make(), *more, prompts={"query": "about: "})
    assert_equal(folder, TEXTS)
    assert_equal(folder, TEXTS, prompt="query: ")


def test_a_folder_that_it_saves_again(tmp_path: Path) -> None:
    """Of texts that are short and known, where model2vec's rules are the same."""
    folder = write_model2vec(tmp_path / "m", word_piece(), max_length=100)
    assert_equal(folder, CORPUS[:1])
    SentenceTransformer(str(folder), device="cpu").save_pretrained(str(tmp_path / "again"))
    assert_equal(tmp_path / "again", TEXTS)
