"""The column of token vectors, how far two rows are apart, MaxSim, and models that make none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import ModelError
from shardmill.core.token_vectors import TokenColumn
from shardmill.models.colbert.embedder import TokenEmbedder, TokenRows
from shardmill.models.plain import PlainEncoder
from shardmill.models.retrieval.maxsim import best_by_tokens, max_similarity
from shardmill.verbs.embed.task import EmbedTask
from shardmill.verbs.embed_sparse.task import EmbedSparseTask
from shardmill.verbs.embed_tokens.rows import distance
from shardmill.verbs.embed_tokens.task import EmbedTokensTask
from tests.support.classifiers import write_classifier
from tests.support.colbert_models import TEXTS, write_pylate, write_stanford
from tests.support.sparse_models import write_splade
from tests.support.tiny_models import bert, pooling, write_model

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_column(dtype: str) -> None:
    column = TokenColumn("vectors", 3, dtype)
    assert TokenColumn.find(pa.schema([pa.field("a", pa.int64()), column.field])) == column
    assert TokenColumn.find(pa.schema([column.field]), ["vectors"]) is None
    vectors = RANDOM.standard_normal((6, 3)).astype(np.float32)
    made = column.write(vectors, np.array([2, 1, 0, 3]), np.array([False, True, False, False]))
    assert made.null_count == 1
    seen, counts = column.read(made)
    assert counts.tolist() == [2, 0, 0, 3]
    assert np.array_equal(seen, vectors[[0, 1, 3, 4, 5]].astype(dtype))
    assert np.array_equal(column.read(made[3:])[0], vectors[3:].astype(dtype))
    assert made.type.value_type.byte_width == column.vector_bytes == 3 * np.dtype(dtype).itemsize


def test_distance() -> None:
    column = TokenColumn("vectors", 2, "float32")

    def row(*vectors: tuple[float, float]) -> Any:
        return column.write(np.array(vectors, np.float32), np.array([len(vectors)]), np.array([False]))[0]

    assert distance(row((1, 0), (0, 1)), row((1, 0), (0, 1)), column) == 0.0
    assert distance(row((1, 0), (0, 1)), row((1, 0), (0.6, 0.8)), column) == pytest.approx(0.2)
    assert distance(row((1, 0)), row((1, 0), (0, 1)), column) == 1.0
    assert distance(None, row((1, 0)), column) == 1.0
    assert distance(None, None, column) == 0.0


def test_max_similarity() -> None:
    counts = RANDOM.integers(0, 5, 50)
    vectors = RANDOM.standard_normal((counts.sum(), 8)).astype(np.float32)
    queries = [RANDOM.standard_normal((n, 8)).astype(np.float32) for n in (4, 1)]
    starts = np.cumsum(counts) - counts
    due = np.array(
        [
            [(vectors[s : s + n] @ query.T).max(axis=0).sum() if n else 0.0 for query in queries]
            for s, n in zip(starts, counts, strict=True)
        ]
    )
    assert np.allclose(max_similarity(vectors, counts, queries), due, atol=1e-5)
    blocks = [(np.arange(50), vectors, counts)]
    for i, (rows, scores) in enumerate(best_by_tokens(blocks, queries, 7)):
        there = np.flatnonzero(counts)
        assert rows.tolist() == there[np.argsort(-due[there, i], kind="stable")][:7].tolist()
        assert np.allclose(scores, due[rows, i], atol=1e-5)


def test_what_is_not_finite() -> None:
    vectors = np.array([[0, 1], [np.nan, 0], [0, 1], [0, np.inf]], np.float32)
    assert TokenRows(vectors, np.array([1, 1, 0, 2])).not_finite() == [1, 3]


def refuse(task: type, folder: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        task(model=str(folder)).fingerprint()
    said = f"{caught.value.message} {caught.value.hint}"
    for word in words:
        assert word in said, said


def test_models_of_another_kind(tmp_path: Path) -> None:
    for task in (EmbedTask, EmbedSparseTask):
        for write in (write_pylate, write_stanford):
            refuse(task, write(tmp_path / f"{task.__name__}{write.__name__}"), "shardmill embed-tokens --model")
    dense = write_model(tmp_path / "dense", bert(), [pooling("mean")])
    refuse(EmbedTokensTask, dense, "no vectors of tokens", "`shardmill embed --model`")
    refuse(
        EmbedTokensTask, write_model(tmp_path / "plain", bert()), "no vectors of tokens", "`shardmill embed --model`"
    )
    refuse(EmbedTokensTask, write_splade(tmp_path / "splade"), "shardmill embed-sparse --model")
    refuse(EmbedTokensTask, write_classifier(tmp_path / "classes"), "shardmill classify --model")


def test_packed_and_in_half_precision(tmp_path: Path) -> None:
    """The vectors of a text alone, of several texts padded and packed, and by OpenVINO, in the order of texts."""
    from shardmill.models.encoder import Encoder, torch
    from shardmill.models.openvino import OpenVinoEncoder
    from shardmill.models.packed import PackedEncoder

    embedder = TokenEmbedder(str(write_pylate(tmp_path / "m")))
    rows = list(embedder.encode(TEXTS * 3).rows)
    pad_id = embedder.tokenizer.pad_id
    plain = PlainEncoder(embedder.folder, pad_id=pad_id).encode(rows)
    assert len(plain) == sum(map(len, rows))
    how: dict[str, Any] = {"device": "cpu", "pad_id": pad_id}
    packed = PackedEncoder(embedder.folder, **how)
    opened = OpenVinoEncoder(embedder.folder, pad_id=pad_id, threads=2, precision="f32")
    for encoder in (Encoder(embedder.folder, **how), packed, opened):
        assert np.allclose(encoder.encode(rows), plain, atol=1e-4)
    packed.cast(torch.bfloat16)
    assert (packed.encode(rows) * plain).sum(axis=1).min() > 0.98
