"""Packed batches give the vectors that padded ones give, whatever the model's attention and pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from shardmill.models.embedder import TextEmbedder
from shardmill.models.encoder import Encoder
from shardmill.models.packed import PackedEncoder
from tests.support.tiny_models import bert, pooling, write_model

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


def test_a_text_does_not_see_its_neighbours(make: Callable[..., Path]) -> None:
    _, packed, rows, skip = _both(make(bert(), [pooling("mean")]))
    together = packed.encode(rows, skip)
    alone = np.concatenate([packed.encode([row], skip) for row in rows])
    assert np.allclose(together, alone, atol=2e-5)
