"""Vectors of texts without a task, and replies from plain values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.models.answer_schema import AnswerSchema
from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.embedder import TextEmbedder, not_finite
from shardmill.models.replies import LocalModel, RemoteModel, most_new_tokens, open_replies
from tests.support.tiny_models import bert, pooling, write_model

TEXTS = ["a text", "a longer text, with more words", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("embedder") / "tiny"
    return write_model(root, bert(vocab_size=30522), [pooling("mean"), ("Normalize", {}, {})])


def test_texts_are_embedded_as_the_batches_of_a_task_are(folder: Path) -> None:
    embedder = TextEmbedder(str(folder))
    assert embedder.numerics == {}
    embedder.open(Device("cpu", "cpu", threads=1, precise=True))
    made = embedder.embed_texts(TEXTS)
    rows = embedder.encode(TEXTS).rows
    assert np.array_equal(made, embedder.begin(rows)())
    assert np.array_equal(made, embedder.embed_queries(TEXTS))
    assert embedder.notes == ["Kernel: openvino f32, 1 stream."]
    assert embedder.begin([])().shape == (0, embedder.dims)
    embedder.close()
    with pytest.raises(RuntimeError, match="open"):
        embedder.begin(rows)


def test_fewer_dimensions_are_the_first_ones_at_length_one(folder: Path) -> None:
    device = Device("cpu", "cpu", threads=1, precise=True)
    whole, part = TextEmbedder(str(folder)), TextEmbedder(str(folder), dims=5)
    whole.open(device)
    part.open(device)
    due = whole.embed_texts(TEXTS)[:, :5]
    due /= np.linalg.norm(due, axis=1, keepdims=True)
    assert np.allclose(part.embed_texts(TEXTS), due, atol=1e-6)
    assert part.fingerprint() == whole.fingerprint()


def test_rows_that_are_not_finite() -> None:
    assert not_finite(np.array([[0, 1], [np.nan, 1], [1, np.inf]])) == [1, 2]


def test_a_folder_is_asked_for_twice_the_tokens_if_there_is_a_schema_and_a_server_is_not() -> None:
    schema, options = AnswerSchema({"type": "object"}), GenerationOptions(max_new_tokens=20)
    assert most_new_tokens(20, None) == 20
    found = [open_replies("m", options), open_replies("m", options, schema)]
    found.append(open_replies("m", options, schema, endpoint="http://localhost:1/v1"))
    assert [type(each) for each in found] == [LocalModel, LocalModel, RemoteModel]
    assert [each._options.max_new_tokens for each in found] == [20, 40, 20]  # type: ignore[attr-defined]
