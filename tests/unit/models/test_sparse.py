"""Sparse rows, how far two of them are apart, and models that make none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardmill.core.errors import ModelError
from shardmill.models.plain import PlainEncoder
from shardmill.models.sparse.embedder import SparseEmbedder
from shardmill.models.sparse.rows import SparseRows
from shardmill.verbs.embed.task import EmbedTask
from shardmill.verbs.embed_sparse.rows import distance, make_column
from shardmill.verbs.embed_sparse.task import EmbedSparseTask
from tests.support.classifiers import write_classifier
from tests.support.sparse_models import TEXTS, write_masked, write_splade
from tests.support.tiny_models import bert, pooling, write_model

DENSE = np.array([[0, 2, 0, 1, 3], [0, 0, 0, 0, 0], [5, 0, 5, 0, 5]], np.float32)


def test_rows() -> None:
    rows = SparseRows.of(DENSE)
    assert [rows.row(i)[0].tolist() for i in range(3)] == [[1, 3, 4], [], [0, 2, 4]]
    best = rows.heaviest(2)
    assert [best.row(i)[0].tolist() for i in range(3)] == [[1, 4], [], [0, 2]]
    assert rows.heaviest(3) is rows
    other = rows.replaced([0], SparseRows.of(np.array([[7, 0, 0, 0, 0]], np.float32)))
    assert [other.row(i)[1].tolist() for i in range(3)] == [[7], [], [5, 5, 5]]
    column = make_column(rows, np.array([False, False, True]))
    assert column.to_pylist() == [
        [{"index": 1, "weight": 2.0}, {"index": 3, "weight": 1.0}, {"index": 4, "weight": 3.0}],
        [],
        None,
    ]


def test_what_is_not_finite() -> None:
    rows = SparseRows.of(np.array([[0, 1], [np.nan, 0], [0, np.inf]], np.float32))
    assert rows.not_finite() == [1, 2]


def test_distance() -> None:
    def row(*pairs: tuple[int, float]) -> list[dict[str, float]]:
        return [{"index": index, "weight": weight} for index, weight in pairs]

    assert distance(row((1, 2.0)), row((1, 2.0)), None) == 0.0
    assert distance(row((1, 2.0)), row((1, 1.5)), None) == pytest.approx(0.25)
    assert distance(row((1, 0.5)), row((1, 0.5), (3, 0.1)), None) == pytest.approx(0.1)
    assert distance(row((2, 0.5)), row((1, 0.5)), None) == pytest.approx(0.5)
    # With at most one word, a lighter one that was left out is no difference, and a heavier one is.
    assert distance(row((1, 0.5)), row((1, 0.5), (3, 0.1)), 1) == 0.0
    assert distance(row((1, 0.5)), row((1, 0.5), (3, 0.7)), 1) == pytest.approx(0.2)
    assert distance(row((1, 0.5), (3, 0.1)), row((1, 0.5), (3, 0.1)), 1) == 1.0
    assert distance(None, row(), None) == 1.0
    assert distance(None, None, None) == 0.0


def refuse(task: type, folder: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        task(model=str(folder)).fingerprint()
    said = f"{caught.value.message} {caught.value.hint}"
    for word in words:
        assert word in said, said


def test_models_of_another_kind(tmp_path: Path) -> None:
    refuse(EmbedTask, write_splade(tmp_path / "splade"), "shardmill embed-sparse")
    dense = write_model(tmp_path / "dense", bert(), [pooling("mean")])
    refuse(EmbedSparseTask, dense, "no sparse vectors", "`shardmill embed --model`")
    refuse(EmbedSparseTask, write_classifier(tmp_path / "classes"), "no sparse vectors", "shardmill classify")


def test_a_head_without_weights(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = write_masked(tmp_path / "m")
    stored = load_file(folder / "model.safetensors")
    kept = {name: array for name, array in stored.items() if not name.startswith("cls.")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    refuse(EmbedSparseTask, folder, "no head of a masked language model", "AutoModelForMaskedLM")


def test_what_is_not_supported(tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "m", pooling="median")
    refuse(EmbedSparseTask, folder, "'median'", "max, sum")
    other = write_masked(tmp_path / "other")
    config = other / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "funnel"}))
    refuse(EmbedSparseTask, other, "family funnel", "distilbert")


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_packed_and_in_pieces(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text alone, several at a time, a long one in pieces, padded, and in half precision."""
    from shardmill.models.encoder import Encoder, torch
    from shardmill.models.packed import PackedEncoder
    from shardmill.models.sparse import words

    embedder = SparseEmbedder(str(write_splade(tmp_path / "m", pooling=strategy)))
    rows = [row for row in embedder.encode(TEXTS).rows if len(row)]
    how = {"device": "cpu", "pad_id": embedder.tokenizer.pad_id}
    plain = PlainEncoder(embedder.folder, pad_id=embedder.tokenizer.pad_id).encode(rows)
    padded, packed = Encoder(embedder.folder, **how), PackedEncoder(embedder.folder, **how)
    for tokens in (1 << 20, 30, 7):
        monkeypatch.setitem(words._LOGITS, "cpu", tokens * embedder.dims)
        for encoder in (padded, packed):
            assert np.allclose(encoder.encode(rows), plain, atol=1e-4)
    packed.cast(torch.bfloat16)
    assert np.abs(packed.encode(rows) - plain).max() < 0.1 * plain.max()
