"""What `audit` says of vectors of sentence-transformers and the real model: rightly made, and in twelve wrong ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardmill
from shardmill.verbs.audit.report import Audit
from tests.support.audited import as_bfloat16, docstrings, unit, write_vectors
from tests.support.libraries import needed
from tests.support.tiny_models import MINILM, torch

pytestmark = pytest.mark.model

SentenceTransformer = needed("sentence_transformers").SentenceTransformer
quantize = needed("sentence_transformers.util").quantize_embeddings

ROWS = 100
Vectors = NDArray[Any]


class Made:
    """Texts, and what the model makes of them."""

    def __init__(self) -> None:
        self.texts = docstrings(ROWS, longest=1000)
        self.peer = SentenceTransformer(str(MINILM), device="cpu")
        self.right = self.encode()
        self.tokens = [each.numpy() for each in self.encode(output_value="token_embeddings")]

    def encode(self, before: str = "", limit: int = 256, **how: Any) -> Any:
        self.peer.max_seq_length = limit
        made = self.peer.encode([before + text for text in self.texts], batch_size=4, show_progress_bar=False, **how)
        self.peer.max_seq_length = 256
        return made

    def pooled(self, pool: Callable[[Vectors], Vectors]) -> Vectors:
        return np.stack([pool(each) for each in self.tokens])


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


def perturbed(made: Made) -> Vectors:
    """Of weights that are a little different."""
    peer = SentenceTransformer(str(MINILM), device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in peer.parameters():
            weights.add_(torch.randn_like(weights) * weights.std(correction=0) * 0.05)
    vectors: Vectors = peer.encode(made.texts, batch_size=4, show_progress_bar=False)
    return vectors


def from_row(row: int, made: Made, wrong: Vectors) -> Vectors:
    return np.concatenate([made.right[:row], wrong[row:]])


RIGHT: dict[str, Callable[[Made], Vectors]] = {
    "float32": lambda m: m.right,
    "float16": lambda m: m.right.astype(np.float16),
    "bfloat16": lambda m: as_bfloat16(m.right),
    "int8": lambda m: quantize(m.right, "int8"),
    "int8 by one scale": lambda m: np.rint(m.right * 127).astype(np.int8),
    "bits": lambda m: quantize(m.right, "ubinary"),
}
WRONG: dict[str, tuple[str, Callable[[Made], Vectors]]] = {
    "cls": ("pooling", lambda m: unit(m.pooled(lambda t: t[0]))),
    "last token": ("pooling", lambda m: unit(m.pooled(lambda t: t[-1]))),
    "max": ("pooling", lambda m: unit(m.pooled(lambda t: t.max(axis=0)))),
    "a prompt": ("prompt", lambda m: m.encode("query: ")),
    "not normalized": ("normalization", lambda m: m.pooled(lambda t: t.mean(axis=0))),
    "cut at 64": ("cut", lambda m: m.encode(limit=64)),
    "128 dimensions": ("dims", lambda m: unit(m.right[:, :128])),
    "shifted by 3": ("shifted", lambda m: np.roll(m.right, 3, axis=0)),
    "shuffled": ("shuffled", lambda m: m.right[np.random.default_rng(1).permutation(ROWS)]),
    "cls from row 61": ("pooling", lambda m: from_row(61, m, unit(m.pooled(lambda t: t[0])))),
    "other weights": ("revision", perturbed),
    "another model from row 61": (
        "other",
        lambda m: from_row(61, m, unit(np.random.default_rng(2).standard_normal(m.right.shape))),
    ),
}


def audit(folder: Path, made: Made, vectors: Vectors) -> Audit:
    path = write_vectors(folder / "vectors.parquet", made.texts, vectors)
    return shardmill.audit(str(path), text="body", model="all-MiniLM-L6-v2", sample=40)


@pytest.mark.parametrize("how", RIGHT)
def test_right_vectors(made: Made, tmp_path: Path, how: str) -> None:
    found = audit(tmp_path, made, RIGHT[how](made))
    assert found.right, found


@pytest.mark.parametrize("how", WRONG)
def test_wrong_vectors(made: Made, tmp_path: Path, how: str) -> None:
    name, make = WRONG[how]
    found = audit(tmp_path, made, make(made))
    assert not found.right
    assert [cause.name for cause in found.causes] == [name]
    if "from row 61" in how:
        assert (found.causes[0].first, found.causes[0].rows) == (61, ROWS - 61)
