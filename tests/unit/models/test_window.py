"""Packed attention sees what plain attention sees, for every way in which models bound it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.encoder import Encoder
from shardmill.models.folder import read_folder
from shardmill.models.kernels import Tried
from shardmill.models.packed import PackedEncoder, check_mask, packed_attention
from shardmill.models.torch_kernels import _Trial
from shardmill.models.window import find_reach, find_window, numerics_revision
from tests.support.tiny_models import SMALL, bert, pooling, qwen3, torch, transformers, write_model, xlm_roberta

WINDOW = 8
LONGEST = 5 * WINDOW
USUAL = {"vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**USUAL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
BY_TURNS = {"layer_types": ["sliding_attention", "full_attention"]}


def modernbert() -> Any:
    special = {"cls_token_id": 1, "sep_token_id": 2}
    every_other = {"global_attn_every_n_layers": 2}
    return transformers.ModernBertConfig(**SMALL, **USUAL, **special, **every_other, local_attention=2 * WINDOW)


def gemma3(**options: Any) -> Any:
    return transformers.Gemma3TextConfig(**SMALL, **GROUPED, **BY_TURNS, query_pre_attn_scalar=8, **options)


def windowed_qwen3(**options: Any) -> Any:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, **BY_TURNS}
    return qwen3(vocab_size=500, **windows, **options)


FAMILIES = {
    "bert": lambda: bert(vocab_size=500),
    "xlm-roberta": lambda: xlm_roberta(vocab_size=500),
    "modernbert": modernbert,
    "qwen3": lambda: qwen3(vocab_size=500),
    "qwen3, bidirectional": lambda: qwen3(vocab_size=500, is_causal=False),
    "qwen3, windows": windowed_qwen3,
    "qwen3, windows, bidirectional": lambda: windowed_qwen3(is_causal=False),
    "mistral": lambda: transformers.MistralConfig(**SMALL, **GROUPED, sliding_window=WINDOW),
    "gemma3": lambda: gemma3(sliding_window=WINDOW),
    "gemma3, bidirectional": lambda: gemma3(sliding_window=2 * WINDOW, use_bidirectional_attention=True),
}


def _rows(*lengths: int) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.integers(3, 500, size=n, dtype=np.int32) for n in lengths]


def _write(folder: Path, family: str) -> Any:
    return read_folder(write_model(folder, FAMILIES[family](), [pooling("mean")]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_attention_is_eager_attention_around_the_window(tmp_path: Path, family: str, device: str) -> None:
    folder = _write(tmp_path / "tiny", family)
    plain = Encoder(folder, device=device, pad_id=0, attention="eager")
    packed = PackedEncoder(folder, device=device, pad_id=0)
    if device == "cuda":
        packed.cast(torch.float16)  # The kernels for packed texts on a GPU know half precision alone.
    rows = _rows(WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 2 * WINDOW + 1, LONGEST)
    expected = np.concatenate([plain.encode([row]) for row in rows])
    found = packed.encode(rows)
    if device == "cpu":
        assert np.allclose(found, expected, atol=1e-5, rtol=1e-5)
    sizes = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert np.all((found * expected).sum(axis=1) / sizes >= 0.9998)


def test_arguments_that_change_the_result_are_refused(tmp_path: Path) -> None:
    """Gemma 2 caps its scores, gpt-oss has sinks, and a chunk is no window: none of them runs packed."""
    rows = _rows(5)
    capped = transformers.Gemma2Config(**SMALL, **GROUPED, attn_logit_softcapping=5.0)
    folder = read_folder(write_model(tmp_path / "capped", capped, [pooling("mean")]))
    with pytest.raises(ModelError, match="softcap"):
        PackedEncoder(folder, device="cpu", pad_id=0).encode(rows)
    inputs = SimpleNamespace(is_causal=True), *(torch.zeros(1, 1, 2, 8),) * 3
    for name in ("s_aux", "position_bias", "anything_new"):
        with pytest.raises(ModelError, match=name):
            packed_attention(*inputs, None, **{name: torch.ones(1)})
    with pytest.raises(ModelError, match="attention_mask"):
        packed_attention(*inputs, torch.ones(1, 1, 2, 2))


def test_masks_other_than_bands_are_refused() -> None:
    from transformers import masking_utils as masks

    config = object()
    check_mask(mask_function=masks.causal_mask_function, config=object())
    check_mask(mask_function=masks.sliding_window_causal_mask_function(8), config=object(), local_size=8)
    chunks = masks.chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ModelError, match="mask"):
        check_mask(mask_function=chunks, config=config, local_size=8)
    with pytest.raises(ModelError, match="mask"):
        check_mask(mask_function=lambda b, h, q, k: (k <= q) | (k < 5 * q // 4), config=config)


@pytest.mark.parametrize(
    ("family", "window", "revised"),
    [
        ("bert", 0, False),
        ("qwen3", 0, False),
        ("qwen3, windows", WINDOW, False),
        ("qwen3, windows, bidirectional", WINDOW, True),
        ("mistral", WINDOW, False),
        ("gemma3", WINDOW, False),
        ("gemma3, bidirectional", 2 * WINDOW, True),
        ("modernbert", 2 * WINDOW, True),
    ],
)
def test_only_models_whose_windows_were_halved_get_a_revision(
    tmp_path: Path, family: str, window: int, revised: bool
) -> None:
    """The fingerprint of every other model stays as it was, so that its runs can be resumed."""
    config = _write(tmp_path / "tiny", family).config
    assert find_window(config) == window
    assert numerics_revision(config) == ({"numerics": "2"} if revised else {})


def test_older_configs_name_no_layers() -> None:
    assert find_window({"model_type": "modernbert", "local_attention": 128, "global_attn_every_n_layers": 3}) == 128
    assert find_window({"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}) == 0
    assert find_window({"model_type": "gemma3", "text_config": {"sliding_window": 512}}) == 512
    assert find_window({"model_type": "mistral", "sliding_window": None}) == 0


def test_the_trial_refuses_a_kernel_with_half_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden texts are shorter than a window; the trial adds a row that is not."""
    folder = _write(tmp_path / "tiny", "modernbert")
    trial = _Trial(Tried(folder, 0, None, _rows(2, WINDOW // 2), 0).reaching(), Device("cpu", "cpu"))
    assert trial._is_right(PackedEncoder(folder, device="cpu", pad_id=0))
    monkeypatch.setattr("shardmill.models.packed.find_reach", lambda *given: (find_reach(*given)[0] // 2,) * 2)
    assert not trial._is_right(PackedEncoder(folder, device="cpu", pad_id=0))
