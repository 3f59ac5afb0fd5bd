"""fp8 on GPUs: as near float32 as the gate asks, whatever the family; what cannot compute so is refused by name.

Without a GPU the same arithmetic runs on the CPU, rounded in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import SMALL, bert, mpnet, needed, pooling, transformers, write_model

torch = needed("torch")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import ModelError  # noqa: E402
from shardmill.models import golden  # noqa: E402
from shardmill.models.compiling import find_layers  # noqa: E402
from shardmill.models.embedder import TextEmbedder  # noqa: E402
from shardmill.models.folder import read_folder  # noqa: E402
from shardmill.models.fp8 import RoundedEncoder, round_layers  # noqa: E402
from shardmill.models.fp8_linear import RoundedLinear, join_activations, round_rows  # noqa: E402
from shardmill.models.golden import cosines  # noqa: E402
from shardmill.models.packed import PackedEncoder  # noqa: E402

SPECIAL = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102}
GROUPED = {**SMALL, **SPECIAL, "vocab_size": 30522, "num_key_value_heads": 1, "head_dim": 16}
MODERN = {**SMALL, **SPECIAL, "vocab_size": 30522, "cls_token_id": 101, "sep_token_id": 102}
# A family, the matrices of a layer that are rounded, and how those of activations are: with a gate or without.
FAMILIES: dict[str, tuple[Callable[[], Any], int, list[tuple[str, bool]]]] = {
    "bert": (lambda: bert(vocab_size=30522), 5, [("gelu", False)]),
    "bert with relu": (lambda: bert(vocab_size=30522, hidden_act="relu"), 5, []),
    "mpnet": (mpnet, 5, [("gelu", False)]),
    "qwen3": (lambda: transformers.Qwen3Config(**GROUPED), 6, [("silu", True)]),
    "gemma3": (lambda: transformers.Gemma3TextConfig(**GROUPED), 6, [("gelu", True)]),
    "modernbert": (lambda: transformers.ModernBertConfig(**MODERN), 3, [("gelu", True)]),
}


def random_rows(*lengths: int) -> list[Any]:
    random = np.random.default_rng(5)
    return [random.integers(1000, 30000, n).astype(np.int32) for n in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_near_float32(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, matrices, activated = FAMILIES[family]
    # Every layer leaves the rounding to the operation that the compiler joins with activations.
    monkeypatch.setattr("shardmill.models.fp8_linear._JOINED_WIDTH", 0)
    folder = read_folder(write_model(tmp_path / "tiny", config(), [pooling("mean")], scale=1))
    rows = random_rows(60, 33, 12, 3, 1)
    expected = PackedEncoder(folder, device="cpu", pad_id=0).encode(rows)
    kernel = RoundedEncoder(folder, device="cpu", pad_id=0)
    layers = find_layers(kernel.modules()[0])
    assert sum(isinstance(m, RoundedLinear) for m in layers.modules()) == matrices * len(layers)
    seen = kernel.encode(rows)
    assert cosines(seen, expected).min() > 0.98
    assert np.abs(seen - expected).max() > 1e-4 * np.abs(expected).max(), "nothing was rounded"
    np.testing.assert_allclose(kernel.encode(rows[2:3]), seen[2:3], atol=2e-2 * np.abs(seen).max())

    joined: list[Any] = []

    def run(graph: Any, inputs: list[Any]) -> Any:
        join_activations(graph)
        found = graph.graph.find_nodes(op="call_function", target=torch.ops.shardmill.round_activated.default)
        joined.append([(node.args[1], node.args[2] is not None) for node in found if node.args[1]])
        return graph.forward

    for layer in layers:
        layer.compile(backend=run, dynamic=True)
    assert cosines(kernel.encode(rows), seen).min() > 0.995
    assert joined
    assert all(one == activated for one in joined)


def test_what_attention_gives_is_not_rounded() -> None:
    model = transformers.AutoModel.from_config(bert(vocab_size=100))
    round_layers(model)
    (layer, *_) = find_layers(model)
    assert type(layer.attention.output.dense) is torch.nn.Linear
    assert type(layer.output.dense) is RoundedLinear
    assert model.embeddings.word_embeddings.weight.dtype == torch.bfloat16


def test_rows_have_scales_of_their_own() -> None:
    rows = torch.tensor([[1.0, -2.0, 4.0], [1000.0, 0.0, -3000.0], [0.0, 0.0, 0.0]])
    rounded, scales = round_rows(rows)
    back = rounded.float() * scales
    assert torch.equal(back[2], rows[2])
    assert (back - rows).abs().max(1).values.tolist() <= (rows.abs().max(1).values / 16).tolist()
    assert rounded.float().abs().max() == 448


def test_the_gate_refuses_what_is_coarser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardmill.models import torch_kernels

    write_model(tmp_path / "tiny", bert(vocab_size=30522), [pooling("mean")], scale=1)
    monkeypatch.setattr(torch_kernels, "_torch_device", lambda device: "cpu")
    embedder = TextEmbedder(str(tmp_path / "tiny"), precision="fp8")
    monkeypatch.setattr(golden, "_ROUNDED", {"fp8": (1.0, 1.0)})
    with pytest.raises(ModelError, match=r"tiny is not accurate enough in fp8: .* the limits are 1\.0") as told:
        embedder.open(Device("cuda", "a GPU", work_bytes=1000))
    assert "Leave out --precision fp8" in told.value.hint


def test_a_cpu_and_an_older_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "tiny", bert(vocab_size=30522), [pooling("mean")])
    embedder = TextEmbedder(str(folder), precision="fp8")
    with pytest.raises(ModelError, match="fp8 runs on GPUs only") as told:
        embedder.check_installed("cpu")
    assert "--device cuda" in told.value.hint
    assert (embedder.gpu_bytes(False) or 0) > 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(ModelError, match=r"compute capability 9\.0 \(Hopper\) or later, which NVIDIA A100 is not"):
        RoundedEncoder(read_folder(folder), device="cuda:0", pad_id=0)


def test_the_fingerprint_says_it() -> None:
    usual, ours = TextEmbedder().fingerprint(), TextEmbedder(precision="fp8").fingerprint()
    assert ours == {**usual, "precision": "fp8 1"}


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "gated"), [("", False), ("gelu", False), ("silu", True), ("gelu", True)])
def test_one_pass_on_a_gpu_rounds_as_torch_does(kind: str, gated: bool) -> None:
    from shardmill.models.fp8_linear import _round_activated

    x = torch.randn(300, 48, device="cuda", dtype=torch.bfloat16)
    gate = torch.randn_like(x) if gated else None
    rows, scales = _round_activated(x, kind, gate)
    expected = _round_activated(x.cpu(), kind, None if gate is None else gate.cpu())
    torch.testing.assert_close(scales.cpu(), expected[1], rtol=2e-3, atol=1e-6)
    assert torch.cosine_similarity(rows.cpu().float(), expected[0].float()).min() > 0.999


@pytest.mark.gpu
def test_minilm_passes_its_gate_on_a_gpu() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no GPU from Hopper on")
    texts = ["The battery died after an hour.", "Yes.", "A train left Lyon at 08:14 and reached Turin late. " * 6]
    ours, exact = TextEmbedder(precision="fp8"), TextEmbedder()
    ours.open(Device("cuda", torch.cuda.get_device_name()))
    exact.open(Device("cuda", torch.cuda.get_device_name(), precise=True))
    assert ours.numerics["precision"] == "fp8"
    assert 0.95 < cosines(ours.embed_texts(texts), exact.embed_texts(texts)).min() < 0.9999
