"""Packed batches give the vectors that padded ones give, whatever the model's attention and pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModel, AutoModelForTextEncoding  # noqa: E402

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import ModelError  # noqa: E402
from shardmill.models.embedder import TextEmbedder  # noqa: E402
from shardmill.models.encoder import Encoder  # noqa: E402
from shardmill.models.folder import read_folder  # noqa: E402
from shardmill.models.packed import PackedEncoder, packed_attention  # noqa: E402
from shardmill.models.torch_kernels import training_encoder  # noqa: E402
from tests.support.tiny_models import bert, mpnet, pooling, t5, write_model  # noqa: E402

TEXTS = ["a", "hello world", "one two three four five six " * 12, "Zwei Sätze. Und noch einer!", "x"] * 3


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    return partial(write_model, tmp_path / "tiny")


def _both(folder: Path, device: str = "cpu") -> tuple[Any, Any, list[Any], int]:
    own = TextEmbedder(str(folder))
    settings: dict[str, Any] = {"device": device, "pad_id": own.tokenizer.pad_id}
    rows = list(own.encode(TEXTS).rows)
    return Encoder(own.folder, **settings), PackedEncoder(own.folder, **settings), rows, own.skip


def _agree(folder: Path) -> None:
    padded, packed, rows, skip = _both(folder)
    assert np.allclose(packed.encode(rows, skip), padded.encode(rows, skip), atol=2e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", "max", "weightedmean", "mean_sqrt_len_tokens"])
def test_every_pooling(make: Callable[..., Path], mode: str) -> None:
    _agree(make(bert(), [pooling(mode)]))


def test_models_that_count_positions_from_the_padding(make: Callable[..., Path]) -> None:
    from transformers import XLMRobertaConfig

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = XLMRobertaConfig(vocab_size=30522, max_position_embeddings=300, pad_token_id=0, type_vocab_size=1, **small)
    _agree(make(config, [pooling("mean")]))


def test_causal_models_with_grouped_keys(make: Callable[..., Path]) -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        vocab_size=30522,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    _agree(make(config, [pooling("lasttoken")]))


# Lengths at which something changes: one token, both sides of where T5's bias here and MPNet's end, and beyond.
BORDERS = (1, 2, 3, 15, 16, 17, 18, 33, 127, 128, 129, 130, 161, 290)
BIASED = {
    "mpnet": mpnet(),
    "t5": t5(),
    "t5 v1.1": t5(feed_forward_proj="gated-gelu", num_layers=3),
    "mt5": t5("MT5"),
    "umt5": t5("UMT5"),
    "wide": t5(d_kv=16, num_heads=3),
}


@pytest.mark.parametrize("name", BIASED)
def test_biases_by_distance(tmp_path: Path, name: str) -> None:
    """Batched, and each text alone; and the bias counts: without it the vectors are others."""
    kind = AutoModel if name == "mpnet" else AutoModelForTextEncoding
    folder = read_folder(write_model(tmp_path / "tiny", BIASED[name], [pooling("mean")], kind=kind, scale=2))
    padded, packed = (cls(folder, device="cpu", pad_id=1) for cls in (Encoder, PackedEncoder))
    assert packed.biased
    choose = np.random.default_rng(0)
    rows = [choose.integers(1000, 20000, n, dtype=np.int32) for n in BORDERS]
    expected = np.concatenate([padded.encode([row]) for row in rows])
    assert np.allclose(packed.encode(rows), expected, atol=2e-5)
    assert np.allclose(packed.encode(rows[4:5]), expected[4:5], atol=2e-5)
    for module in packed.modules()[0].modules():
        if (bias := getattr(module, "shardmill_bias", None)) is not None:
            bias.zero_()
    assert np.abs(packed.encode(rows[2:]) - expected[2:]).max(axis=1).min() > 1e-4


def test_a_bias_that_is_not_by_distance_is_refused() -> None:
    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises(ModelError, match="does not implement position_bias"):
        packed_attention(torch.nn.Identity(), q, q, q, None, position_bias=torch.zeros(1, 2, 3, 3))


def test_a_bias_learns_padded(tmp_path: Path) -> None:
    folder = read_folder(write_model(tmp_path / "tiny", mpnet(), [pooling("mean")]))
    golden = [np.arange(1000, 1000 + n, dtype=np.int32) for n in (3, 9)]
    encoder = training_encoder(folder, Device("cpu", "cpu"), 1, golden, torch.bfloat16, compiled=False)
    assert encoder.padded


def test_weights_that_are_loaded_are_taken_over(make: Callable[..., Path], tmp_path: Path) -> None:
    padded, packed, rows, skip = _both(make(bert(), [pooling("mean")]))
    expected = packed.encode(rows, skip)
    taking = PackedEncoder(read_folder(tmp_path / "tiny"), device="cpu", pad_id=0, loaded=padded)
    assert taking.modules()[0] is padded.modules()[0]
    assert np.array_equal(taking.encode(rows, skip), expected)


def test_a_text_does_not_see_its_neighbours(make: Callable[..., Path]) -> None:
    _, packed, rows, skip = _both(make(bert(), [pooling("mean")]))
    together = packed.encode(rows, skip)
    alone = np.concatenate([packed.encode([row], skip) for row in rows])
    assert np.allclose(together, alone, atol=2e-5)
