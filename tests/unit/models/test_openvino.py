"""The OpenVINO kernel gives the vectors of torch, for every shape of batch, and says when it cannot."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.core.errors import DeviceOutOfMemory, MissingExtra, ModelError
from shardmill.models.folder import ModelFolder, read_folder
from tests.support.tiny_models import MINILM, needed, save_file, torch, transformers

# Imported here it would report its use; shardmill imports it without.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")

from shardmill.models import openvino as ours
from shardmill.models.encoder import Encoder
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.openvino import OpenVinoEncoder, precisions

Rows = list[NDArray[np.int32]]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["lasttoken", "cls", "mean"]]
MIXED = (256, 255, 130, 64, 33, 17, 9, 8, 7, 3, 2, 1)


def random_rows(lengths: tuple[int, ...], known: int) -> Rows:
    random = np.random.default_rng(5)
    return [random.integers(5, known, n).astype(np.int32) for n in lengths]


def lowest_cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).min())


def compiled(folder: ModelFolder, precision: str = "f32", streams: int | None = 2) -> OpenVinoEncoder:
    return OpenVinoEncoder(folder, pad_id=0, threads=2, precision=precision, streams=streams)


def check(folder: ModelFolder, rows: Rows, skip: int = 0) -> None:
    kernel, expected = compiled(folder), Encoder(folder, device="cpu", pad_id=0)
    for batch in (rows, rows[:1], rows[-1:], rows[3:5]):
        seen = kernel.encode(batch, skip)
        assert seen.dtype == np.float32
        np.testing.assert_array_equal(kernel.begin(batch, skip)(), seen)
        np.testing.assert_allclose(seen, expected.encode(batch, skip), rtol=2e-4, atol=2e-5)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., ModelFolder]:
    """Write a tiny random model: `modules` after the transformer are (type, config, weights)."""

    def write(*modules: tuple[str, dict[str, Any], dict[str, Any]], config: Any = None) -> ModelFolder:
        torch.manual_seed(7)
        model = transformers.AutoModel.from_config(config or bert())
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(4)
        model.save_pretrained(tmp_path)
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for i, (name, said, tensors) in enumerate(modules, 1):
            part = tmp_path / f"{i}_{name}"
            part.mkdir()
            (part / "config.json").write_text(json.dumps(said))
            if tensors:
                save_file(tensors, part / "model.safetensors")
            listed.append({"idx": i, "name": str(i), "path": part.name, "type": f"sentence_transformers.models.{name}"})
        (tmp_path / "modules.json").write_text(json.dumps(listed))
        return read_folder(tmp_path)

    return write


SMALL = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 999,
    "max_position_embeddings": 300,
    "pad_token_id": 0,
}


def bert() -> Any:
    return transformers.BertConfig(**SMALL)


def pooling(mode: Any, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return "Pooling", {"embedding_dimension": 32, "pooling_mode": mode, **more}, {}


@pytest.fixture(scope="module")
def minilm() -> ModelFolder:
    return read_folder(MINILM)


@pytest.mark.model
def test_f32_on_minilm(minilm: ModelFolder) -> None:
    kernel, expected = compiled(minilm), Encoder(minilm, device="cpu", pad_id=0)
    rows = random_rows(MIXED, 30522)
    assert lowest_cosine(kernel.encode(rows), expected.encode(rows)) >= 0.99999
    for row in rows:
        assert lowest_cosine(kernel.encode([row]), expected.encode([row])) >= 0.99999


@pytest.mark.model
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_reduced_precision_on_minilm(minilm: ModelFolder, precision: str) -> None:
    if precision not in precisions():
        pytest.skip(f"this CPU has no {precision}")
    from shardmill.models.golden import GOLDEN
    from shardmill.models.tokenizer import load_tokenizer

    found = load_tokenizer(minilm, None).encode(GOLDEN).rows
    rows = sorted((row for row in found if row is not None), key=len, reverse=True)
    kernel = compiled(minilm, precision)
    assert kernel.name == f"openvino {precision}, 2 streams"
    assert kernel.precision == {"f16": "float16", "bf16": "bfloat16"}[precision]
    assert lowest_cosine(kernel.encode(rows), Encoder(minilm, device="cpu", pad_id=0).encode(rows)) >= 0.9998


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_pooling(make: Callable[..., ModelFolder], mode: Any) -> None:
    check(make(pooling(mode)), random_rows(MIXED, 999))


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", ["cls", "mean", "lasttoken"])
def test_prompts_and_the_pooling(make: Callable[..., ModelFolder], mode: str, include_prompt: bool) -> None:
    folder = make(pooling(mode, include_prompt=include_prompt))
    check(folder, random_rows((30, 21, 12, 9, 8, 6), 999), skip=5)


def test_dense_layer_norm_and_normalize(make: Callable[..., ModelFolder]) -> None:
    torch.manual_seed(3)
    dense = {"in_features": 32, "out_features": 24, "activation_function": "torch.nn.modules.activation.Tanh"}
    folder = make(
        pooling("mean"),
        ("Dense", dense, {"linear.weight": torch.randn(24, 32), "linear.bias": torch.randn(24)}),
        ("LayerNorm", {"dimension": 24}, {"norm.weight": torch.rand(24) + 0.5, "norm.bias": torch.randn(24)}),
        ("Normalize", {}, {}),
    )
    check(folder, random_rows(MIXED, 999))


@pytest.mark.parametrize("kind", ["XLMRoberta", "MPNet", "ModernBert"])
def test_other_families(make: Callable[..., ModelFolder], kind: str) -> None:
    folder = make(pooling("mean"), config=getattr(transformers, f"{kind}Config")(**SMALL))
    kernel = compiled(folder)
    rows = random_rows((64, 33, 17, 8, 2, 1), 999)
    assert lowest_cosine(kernel.encode(rows), Encoder(folder, device="cpu", pad_id=0).encode(rows)) >= 0.9999


def test_vectors_do_not_depend_on_the_split(make: Callable[..., ModelFolder]) -> None:
    folder = make(pooling("mean"))
    rows = random_rows(MIXED, 999)
    whole = compiled(folder, streams=1).encode(rows)
    for streams in (2, 3, len(rows) + 1):
        np.testing.assert_allclose(compiled(folder, streams=streams).encode(rows), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [(1,), (280, 3, 300, 2), tuple(range(1, 200)), (9,) * 300], ids=len)
def test_rows_keep_their_order_however_they_are_cut(make: Callable[..., ModelFolder], lengths: tuple[int, ...]) -> None:
    folder = make(pooling("mean"))
    kernel, rows = compiled(folder), random_rows(lengths, 999)
    alone = np.concatenate([kernel.encode([row]) for row in rows])
    np.testing.assert_allclose(kernel.encode(rows), alone, rtol=1e-4, atol=1e-5)


def test_batches_that_are_begun_together_are_not_mixed(make: Callable[..., ModelFolder]) -> None:
    kernel = compiled(make(pooling("mean")))
    batches = [random_rows(tuple(range(1 + i, 90)), 999) for i in range(4)]
    begun = [kernel.begin(rows) for rows in batches]
    for rows, finish in reversed([*zip(batches, begun, strict=True)]):
        np.testing.assert_allclose(finish(), kernel.encode(rows), rtol=1e-4, atol=1e-5)


def test_names(make: Callable[..., ModelFolder]) -> None:
    kernel = compiled(make(pooling("mean")), streams=1)
    assert (kernel.name, kernel.precision) == ("openvino f32, 1 stream", "float32")
    assert precisions()[-1] == "f32"


def test_a_family_that_is_not_described(make: Callable[..., ModelFolder]) -> None:
    more = {"num_key_value_heads": 2, "head_dim": 8}
    folder = make(pooling("mean"), config=transformers.Qwen3Config(**SMALL, **more))
    with pytest.raises(NotDescribed, match="its family qwen3"):
        compiled(folder)


def test_a_network_that_openvino_does_not_take(
    make: Callable[..., ModelFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operation\nand more")

    folder = make(pooling("mean"))
    monkeypatch.setattr(ours, "compile_graph", refuse)
    with pytest.raises(ModelError, match=r"OpenVINO cannot run .*: no such operation\Z"):
        compiled(folder)


def test_a_graph_that_computes_something_else(
    make: Callable[..., ModelFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(pooling("mean"))
    monkeypatch.setattr(ours, "_lowest_cosine", lambda *_: float("nan"))
    with pytest.raises(ModelError, match="in f32 a cosine is nan"):
        compiled(folder)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])
def test_too_little_memory(make: Callable[..., ModelFolder], error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    kernel, rows = compiled(make(pooling("mean"))), random_rows((3,), 999)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "_given", fail)
        with pytest.raises(DeviceOutOfMemory):
            kernel.encode(rows)
    assert kernel.encode(rows).shape[0] == 1


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtra, match=r"(?s)openvino is not installed.*shardmill\[light\]"):
        precisions()


def test_nothing_is_printed_or_reported(make: Callable[..., ModelFolder], tmp_path: Path) -> None:
    make(pooling("mean"))
    program = (
        "import sys\nimport numpy as np\nfrom pathlib import Path\n"
        "from shardmill.models.folder import read_folder\n"
        "from shardmill.models.openvino import OpenVinoEncoder\n"
        "k = OpenVinoEncoder(read_folder(Path(sys.argv[1])), pad_id=0, threads=2, precision='f32')\n"
        "k.encode([np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32)])\n"
        "assert sys.modules['openvino_telemetry'] is None"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")
