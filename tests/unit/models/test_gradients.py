"""Packed batches learn what padded ones learn: the gradients of every weight are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.libraries import needed
from tests.support.tiny_models import SMALL, bert, pooling, qwen3, write_model, xlm_roberta

torch = needed("torch")
transformers = needed("transformers")

TEXTS = ["a", "hello world", "one two three four five six " * 12, "Zwei Sätze. Und noch einer!"] * 2


def modern() -> Any:
    """Layers that see everything and layers with a window shorter than the longest text."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return transformers.ModernBertConfig(**SMALL, **special, vocab_size=30522, local_attention=16)


def gradients(encoder: Any, rows: Any, autocast: Any = None) -> dict[str, Any]:
    vectors = encoder.vectors(rows, autocast=autocast)
    torch.manual_seed(3)
    encoder.backward(vectors, torch.randn(vectors.shape).to(vectors.device), rows)
    named = torch.nn.ModuleList(encoder.modules()).named_parameters()
    return {name: weight.grad for name, weight in named if weight.grad is not None}


def both(folder: Path, device: str) -> tuple[Any, Any, Any]:
    from shardmill.models.embedder import TextEmbedder
    from shardmill.models.encoder import Encoder
    from shardmill.models.packed import PackedEncoder

    own = TextEmbedder(str(folder))
    rows = list(own.tokenizer.encode(TEXTS, "").rows)
    settings: dict[str, Any] = {"device": device, "pad_id": own.tokenizer.pad_id}
    return Encoder(own.folder, **settings), PackedEncoder(own.folder, **settings), rows


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        *((bert, mode) for mode in ("mean", "cls", "lasttoken", "max", "weightedmean", "mean_sqrt_len_tokens")),
        (xlm_roberta, "mean"),
        (qwen3, "lasttoken"),
        (modern, "mean"),
    ],
)
def test_the_gradients_of_a_packed_batch(tmp_path: Path, config: Any, mode: str) -> None:
    padded, packed, rows = both(write_model(tmp_path / "tiny", config(), [pooling(mode)]), "cpu")
    wanted, seen = gradients(padded, rows), gradients(packed, rows)
    assert set(seen) == set(wanted)
    for name, gradient in wanted.items():
        scale = gradient.abs().max().item()
        np.testing.assert_allclose(seen[name], gradient, atol=2e-5 * max(1.0, scale), err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("config", [bert, xlm_roberta, qwen3, modern])
def test_the_gradients_of_a_packed_batch_on_a_gpu(tmp_path: Path, config: Any, compiled: bool) -> None:
    padded, packed, rows = both(write_model(tmp_path / "tiny", config(), [pooling("mean")], scale=1), "cuda")
    if compiled:
        packed.compile(learns=True)
    wanted, seen = gradients(padded, rows), gradients(packed, rows, torch.bfloat16)
    most = max(gradient.norm().item() for gradient in wanted.values())
    for name, gradient in wanted.items():
        # Some gradients, as those of the biases of keys, are zero but for rounding.
        assert (seen[name] - gradient).norm() < 0.05 * gradient.norm() + 1e-3 * most, name


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "key_heads", "width", "window"),
    [(3, 3, 64, (-1, -1)), (4, 2, 64, (-1, 0)), (2, 2, 32, (8, 8)), (2, 1, 128, (16, 0)), (2, 2, 80, (-1, -1))],
)
def test_the_kernel_gives_what_the_formula_gives(
    heads: int, key_heads: int, width: int, window: tuple[int, int]
) -> None:
    from shardmill.models.gradients import by_flash, one_by_one
    from shardmill.models.packed import _window_mask

    lengths = [70, 33, 1, 64, 5, 200, 2]
    starts = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    up, q, k, v = (
        torch.randn(sum(lengths), n, width, device="cuda", dtype=torch.bfloat16)
        for n in (heads, heads, key_heads, key_heads)
    )
    masks = [_window_mask(n, window, q.device, 0) for n in lengths]
    wanted = one_by_one(up.float(), q.float(), k.float(), v.float(), lengths, masks, 0.3)
    for seen, expected in zip(by_flash(up, q, k, v, starts, max(lengths), 0.3, window), wanted, strict=True):
        assert (seen.float() - expected).norm() / expected.norm() < 1e-2
