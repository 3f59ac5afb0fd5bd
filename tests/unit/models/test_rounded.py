"""int8 on CPUs: as near float32 as the gate asks; what cannot compute so is refused by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core import devices
from shardmill.core.devices import Device, multiplies_bytes
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models import golden, rounded
from shardmill.models.folder import read_folder
from shardmill.models.golden import cosines
from shardmill.models.kernels import Tried
from tests.support.tiny_models import MINILM, SMALL, bert, needed, pooling, transformers, write_model

# Imported here, OpenVINO would report its use.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")

from shardmill.models.embedder import TextEmbedder
from shardmill.models.openvino import Int8Encoder
from shardmill.models.plain import PlainEncoder

CPU = Device("cpu", "cpu", threads=2)
SPECIAL = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102, "cls_token_id": 101, "sep_token_id": 102}
TEXTS = ["The battery died after an hour.", "Yes.", "A train left Lyon at 08:14 and reached Turin late. " * 6]
on_bytes = pytest.mark.skipif(not multiplies_bytes(), reason="this CPU does not multiply bytes")


def random_rows(*lengths: int) -> list[Any]:
    random = np.random.default_rng(5)
    return [random.integers(1000, 30000, n).astype(np.int32) for n in lengths]


def t5() -> Any:
    return transformers.T5Config(
        vocab_size=30522, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )


class T5Encoder:
    from_config = transformers.T5EncoderModel


FAMILIES: dict[str, Callable[[], Any]] = {
    "bert": lambda: bert(vocab_size=30522),
    "relu": lambda: bert(vocab_size=30522, hidden_act="relu"),
    "silu": lambda: bert(vocab_size=30522, hidden_act="silu"),
    "no bias, gated, norms first": lambda: transformers.ModernBertConfig(**SMALL, **SPECIAL, vocab_size=30522),
    "distances": t5,
}


@on_bytes
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_near_float32(family: str, tmp_path: Path) -> None:
    kind = T5Encoder if family == "distances" else transformers.AutoModel
    folder = read_folder(write_model(tmp_path / "tiny", FAMILIES[family](), [pooling("mean")], kind=kind))
    rows = random_rows(60, 33, 12, 3, 1)
    kernel = Int8Encoder(folder, pad_id=0, threads=2, limit=64)
    seen, expected = kernel.encode(rows), PlainEncoder(folder, pad_id=0).encode(rows)
    close = cosines(seen, expected)
    assert close.min() > 0.98, close
    assert np.abs(seen - expected).max() > 1e-4 * np.abs(expected).max(), "nothing was rounded"
    assert (kernel.precision, kernel.name.split(",")[0]) == ("int8", "openvino int8")
    np.testing.assert_allclose(kernel.encode(rows[2:3]), seen[2:3], atol=1e-2 * np.abs(seen).max())


@on_bytes
def test_minilm_passes_its_gate_and_what_is_coarser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = TextEmbedder(precision="int8")
    embedder.open(CPU)
    assert embedder.numerics["precision"] == "int8"
    exact = TextEmbedder()
    exact.open(Device("cpu", "cpu", threads=2, precise=True))
    close = cosines(embedder.embed_texts(TEXTS), exact.embed_texts(TEXTS))
    assert 0.95 < close.min() < close.mean() < 0.99999
    monkeypatch.setattr(rounded, "has_agreed", lambda trial: False)
    for limits in ((0.99999, 0.5), (0.5, 0.99999)):
        with monkeypatch.context() as patch:
            patch.setattr(golden, "_ROUNDED", {"int8": limits})
            with pytest.raises(ModelError, match=r"is not accurate enough in int8: .* the mean 0\.99\d\d"):
                TextEmbedder(precision="int8").open(CPU)


@on_bytes
def test_queries_stay_in_float32() -> None:
    embedder = TextEmbedder(precision="int8")
    embedder.open(Device("cpu", "cpu", threads=2, precise=True))
    assert embedder.numerics["precision"] == "float32"


def test_a_cpu_that_cannot_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_features", lambda: "avx2 fma")
    with pytest.raises(ModelError, match=r"int8 needs a CPU with VNNI, AMX or i8mm, which .* has not") as told:
        TextEmbedder(precision="int8").check_installed("cpu")
    assert "Leave out --precision int8" in told.value.hint
    with pytest.raises(ModelError, match="int8 needs a CPU"):
        TextEmbedder(precision="int8").open(CPU)


@pytest.mark.parametrize(
    ("features", "can"),
    [
        ("fma avx512_vnni", True),
        ("avx_vnni", True),
        ("amx_int8", True),
        ("asimd i8mm", True),
        ("avx2", False),
        ("", False),
    ],
)
def test_features_of_a_cpu(features: str, can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_features", lambda: features)
    assert multiplies_bytes() == can


def test_a_gpu_is_refused() -> None:
    embedder = TextEmbedder(precision="int8")
    assert embedder.gpu_bytes(False) is None
    with pytest.raises(ModelError, match="int8 runs on CPUs only"):
        embedder.check_installed("cuda")
    with pytest.raises(ModelError, match="int8 runs on CPUs only"):
        embedder.open(Device("cuda", "a GPU"))


def test_a_network_that_is_not_described_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_features", lambda: "avx512_vnni")
    strange = bert(vocab_size=30522, hidden_act="leaky_relu")
    write_model(tmp_path / "strange", strange, [pooling("mean")])
    with pytest.raises(ModelError, match="int8 does not run strange"):
        TextEmbedder(str(tmp_path / "strange"), precision="int8").check_installed("cpu")


def test_without_openvino_its_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtra("OpenVINO is missing.")

    monkeypatch.setattr(devices, "cpu_features", lambda: "avx512_vnni")
    monkeypatch.setattr(rounded, "check_light", missing)
    with pytest.raises(MissingExtra, match="OpenVINO"):
        TextEmbedder(precision="int8").check_installed("cpu")


def test_what_only_rounds_and_multiplies_no_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.models.openvino._multiplies_bytes", lambda compiled: False)
    with pytest.raises(ModelError, match=r"does not compute .* in 8 bits on this CPU"):
        Int8Encoder(read_folder(MINILM), pad_id=0, threads=1, limit=64)


def test_the_fingerprint_of_what_is_not_rounded_is_as_it_was() -> None:
    usual, ours = TextEmbedder().fingerprint(), TextEmbedder(precision="int8").fingerprint()
    assert set(ours) - set(usual) == {"precision"}
    assert {name: ours[name] for name in usual} == usual


def test_a_trial_keeps_its_precision() -> None:
    tried = Tried(read_folder(MINILM), 0, 64, random_rows(3, 9), 0, "int8")
    assert tried.reaching().precision == "int8"
