"""Each family of embedding models gives sentence-transformers' vectors, alone and in a batch, padded and packed.

docs/families.md is made from the same table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.embedder import TextEmbedder
from tests.support.families import EMBEDDERS
from tests.support.tiny_models import byte_level_bpe, fast, needed, pooling, torch, transformers, write_model

pytestmark = pytest.mark.model
TEXTS = [
    "One short line.",
    "word " * 90,
    "Das Wetter ist schön, und это тоже текст",
    "a b c d e f g h i j k l m n o p",
    "def f(x):\n\treturn x ** 2",
]


def write(folder: Path, name: str) -> Path:
    family = EMBEDDERS[name]
    config = getattr(transformers, family.config)(**family.options)
    kind = transformers.AutoModelForTextEncoding if "T5" in name else transformers.AutoModel
    tokenizer = fast(byte_level_bpe(), pad_token="<|endoftext|>") if family.causal else None
    return write_model(folder, config, [pooling("mean")], kind=kind, tokenizer=tokenizer, scale=2)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    family, folder = EMBEDDERS[name], write(tmp_path / "tiny", name)
    peer = needed("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    # The longest first: BigBird attends to all of every text after a short one.
    made = {text: peer.encode([text])[0] for text in sorted(TEXTS, key=len, reverse=True)}
    due = np.stack([made[text] for text in TEXTS])
    assert np.linalg.norm(due[0] - due[3]) > 0.1

    own = TextEmbedder(str(folder))
    own.open(Device("cpu", "cpu", threads=2, precise=True))
    np.testing.assert_allclose(own.embed_texts(TEXTS), due, rtol=2e-4, atol=2e-5)
    assert own.numerics["kernel"].startswith("openvino") == family.light


@pytest.mark.parametrize("name", EMBEDDERS)
def test_packed_batches_are_equal_or_refused(name: str, tmp_path: Path) -> None:
    from shardmill.models.compiling import find_layers
    from shardmill.models.encoder import Encoder
    from shardmill.models.packed import PackedEncoder

    family, own = EMBEDDERS[name], TextEmbedder(str(write(tmp_path / "tiny", name)))
    rows, pad_id = list(own.encode(TEXTS).rows), own.tokenizer.pad_id

    def pack() -> PackedEncoder:
        kernel = PackedEncoder(own.folder, device="cpu", pad_id=pad_id)
        np.testing.assert_allclose(kernel.encode(rows), expected, rtol=2e-4, atol=2e-5)
        return kernel

    alone = Encoder(own.folder, device="cpu", pad_id=pad_id)
    expected = np.concatenate([alone.encode([row]) for row in rows])
    if not family.padded:
        assert len(find_layers(pack().modules()[0])) > 0
        return
    with pytest.raises((ModelError, TypeError, KeyError)):
        pack()


def test_a_vector_does_not_depend_on_what_was_embedded_before(tmp_path: Path) -> None:
    """BigBird forgets its blocks at a short text, and would attend to all of each long one from then on."""
    folder = write(tmp_path / "tiny", "BigBird")

    def embed(texts: list[str]) -> list[np.ndarray]:  # type: ignore[type-arg]
        torch.manual_seed(0)
        own = TextEmbedder(str(folder))
        own.open(Device("cpu", "cpu", threads=1, precise=True))
        return [own.embed_texts([text])[0] for text in texts]

    (first, *_), (*_, last) = embed([TEXTS[1], TEXTS[0]]), embed([TEXTS[0], TEXTS[1]])
    np.testing.assert_array_equal(first, last)


@pytest.mark.parametrize("name", ["ConvBERT", "Nyströmformer", "BigBird"])
def test_what_padding_changed_is_told_in_the_fingerprint(name: str, tmp_path: Path) -> None:
    assert TextEmbedder(str(write(tmp_path / "tiny", name))).fingerprint()["padding"] == "length 1"
    assert "padding" not in TextEmbedder().fingerprint()
