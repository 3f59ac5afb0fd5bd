"""How exported networks run: with the vectors of the weights that they were made from, and which way is chosen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.tiny_models import WIDTH, bert, pooling, write_model, xlm_roberta  # isort: skip

from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models.embedder import TextEmbedder
from shardmill.models.encoder import Encoder
from shardmill.models.exported import choosing
from shardmill.models.exported.choosing import choose_exported
from shardmill.models.exported.encoder import ExportedEncoder
from shardmill.models.extras import extras_of_encoder
from shardmill.models.folder import read_folder
from shardmill.models.golden import agree
from shardmill.models.kernels import KernelChoice, Tried
from tests.support.libraries import needed
from tests.support.onnx_models import copy_without_weights, say_pooling, write_ir, write_onnx

# Imported here, OpenVINO would report its use.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")
needed("onnx")

CPU = Device("cpu", "the CPU", 2)
EXACT = Device("cpu", "the CPU", 2, precise=True)
REFERENCE = Device("cpu", "the CPU", 2, precise=True, reference=True)
TYPED = ["input_ids", "attention_mask", "token_type_ids"]
GOLDEN = [np.arange(100, 100 + n, dtype=np.int32) for n in (3, 9, 20)]
Rows = list[NDArray[np.int32]]


def random_rows() -> Rows:
    random = np.random.default_rng(5)
    return [random.integers(5, 900, n).astype(np.int32) for n in (60, 33, 17, 9, 3, 2, 1, 41)]


def choose(folder: Path, device: Device = CPU, pad_id: int = 0) -> KernelChoice:
    return choose_exported(Tried(read_folder(folder), pad_id, 64, GOLDEN, 0), device)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", bert(), [pooling("mean"), ("Normalize", {}, {})])


@pytest.fixture
def bare(tiny: Path, tmp_path: Path) -> Path:
    """All but the weights."""
    return copy_without_weights(tiny, tmp_path / "bare")


@pytest.fixture
def without_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *given: Any) -> Any:
        return None if name == "onnxruntime" else importlib.util.find_spec(name, *given)

    monkeypatch.setattr(choosing, "find_spec", find)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "transformers", "shardmill.models.torch_kernels"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("form", ["onnx", "types", "positions", "outside", "ir"])
def test_the_vectors_are_those_of_its_weights(tiny: Path, bare: Path, form: str) -> None:
    inputs = {"types": TYPED, "positions": [*TYPED, "position_ids"]}.get(form, TYPED[:2])
    if form == "ir":
        write_ir(tiny, bare / "openvino" / "openvino_model.xml")
    else:
        write_onnx(tiny, bare / "model.onnx", inputs=inputs, outside="model.data" if form == "outside" else "")
    kernel = choose(bare, EXACT).kernel
    assert (kernel.name, kernel.precision, kernel.padded) == ("openvino f32, 2 streams", "float32", True)
    rows, expected = random_rows(), Encoder(read_folder(tiny), device="cpu", pad_id=0)
    for batch in (rows, rows[:1], rows[3:5]):
        np.testing.assert_allclose(kernel.encode(batch), expected.encode(batch), rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(kernel.begin(batch)(), kernel.encode(batch))


@pytest.mark.parametrize("mode", ["cls", "max", "lasttoken"])
def test_pooling_is_done_here(tiny: Path, bare: Path, mode: str) -> None:
    write_onnx(tiny, bare / "model.onnx")
    kernel = choose(say_pooling(bare, mode, WIDTH), EXACT).kernel
    pooled = read_folder(bare).pooling
    expected = Encoder(read_folder(tiny), device="cpu", pad_id=0).pooled_by(pooled)
    np.testing.assert_allclose(kernel.encode(random_rows()), expected.encode(random_rows()), rtol=2e-4, atol=2e-5)


def test_a_network_that_pools_by_itself(tiny: Path, bare: Path) -> None:
    write_onnx(tiny, bare / "model.onnx", sentences=True)
    expected = Encoder(read_folder(tiny), device="cpu", pad_id=0)
    seen = choose(bare, EXACT).kernel.encode(random_rows())
    np.testing.assert_allclose(seen, expected.encode(random_rows()), rtol=2e-4, atol=2e-5)


def test_positions_that_are_counted_by_the_padding(tmp_path: Path) -> None:
    """The network counts them itself, or the file is refused."""
    tiny = write_model(tmp_path / "tiny", xlm_roberta(pad_token_id=1), [pooling("mean")])
    bare = copy_without_weights(tiny, tmp_path / "bare")
    write_onnx(tiny, bare / "model.onnx")
    seen = choose(bare, EXACT, pad_id=1).kernel.encode(random_rows())
    expected = Encoder(read_folder(tiny), device="cpu", pad_id=1)
    np.testing.assert_allclose(seen, expected.encode(random_rows()), rtol=2e-4, atol=2e-5)
    write_onnx(tiny, bare / "model.onnx", inputs=["input_ids", "attention_mask", "position_ids"])
    with pytest.raises(ModelError, match=r"wants position_ids, which xlm-roberta models count by their padding"):
        choose(bare)


def test_eight_bits_are_computed_one_by_one(tiny: Path, bare: Path) -> None:
    """The scale of its numbers is that of a whole batch, so the vector of a text would depend on its neighbours."""
    write_onnx(tiny, bare / "model.onnx", int8=True)
    choice = choose(bare)
    assert choice.kernel.name == "openvino f32, 2 streams, one text at a time"
    assert choice.why == f"{choice.kernel.name} (a batch would change its vectors)"
    assert (choice.kernel.precision, choice.kernel.padded) == ("int8", False)
    rows = random_rows()
    alone = np.concatenate([choice.kernel.encode([row]) for row in rows])
    np.testing.assert_array_equal(choice.kernel.encode(rows), alone)
    expected = Encoder(read_folder(tiny), device="cpu", pad_id=0).encode(rows)
    assert not agree(alone, expected, "float32"), "it is another model"
    assert agree(alone, expected, "int8")


def test_nothing_of_torch_is_imported(tiny: Path, bare: Path, without_torch: None) -> None:
    write_onnx(tiny, bare / "model.onnx")
    for device in (CPU, REFERENCE):
        embedder = TextEmbedder(str(bare))
        embedder.open(device)
        assert np.isfinite(embedder.embed_texts(["A text.", "Another one, which is longer."])).all()
        embedder.close()


def test_what_verify_computes_with(tiny: Path, bare: Path, request: pytest.FixtureRequest) -> None:
    write_onnx(tiny, bare / "onnx" / "model.onnx")
    write_ir(tiny, bare / "openvino" / "openvino_model.xml")
    if importlib.util.find_spec("onnxruntime") is not None:
        kernel = choose(bare, REFERENCE).kernel
        assert (kernel.name, kernel.precision) == ("onnxruntime float32", "float32")
        expected = Encoder(read_folder(tiny), device="cpu", pad_id=0).encode(random_rows())
        np.testing.assert_allclose(kernel.encode(random_rows()), expected, rtol=2e-4, atol=2e-5)
    request.getfixturevalue("without_runtime")
    assert choose(bare, REFERENCE).kernel.name == "openvino f32, 2 streams, one text at a time"


def test_onnx_runtime_cannot_run_openvinos_files(tiny: Path, bare: Path) -> None:
    write_ir(tiny, bare / "openvino" / "openvino_model.xml")
    assert choose(bare, REFERENCE).kernel.name == "openvino f32, 2 streams, one text at a time"


def test_where_openvino_computes_something_else(tiny: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is what it is compared with, and what is used then."""
    needed("onnxruntime")
    write_onnx(tiny, bare / "model.onnx")
    encode = ExportedEncoder.encode
    monkeypatch.setattr(ExportedEncoder, "encode", lambda *given: encode(*given)[:, ::-1])
    choice = choose(bare)
    assert choice.why == ("onnxruntime float32 (openvino f32, 2 streams, one text at a time gave different vectors)")


def test_a_network_without_a_mask_is_computed_one_by_one(
    tiny: Path, bare: Path, without_runtime: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding would count as text."""
    write_onnx(tiny, bare / "model.onnx")
    given = ExportedEncoder._given
    monkeypatch.setattr(ExportedEncoder, "_given", lambda own, ids, mask: given(own, ids, np.ones_like(mask)))
    kernel = choose(bare).kernel
    assert kernel.name.endswith("one text at a time")
    expected = Encoder(read_folder(tiny), device="cpu", pad_id=0).encode(random_rows())
    np.testing.assert_allclose(kernel.encode(random_rows()), expected, rtol=2e-4, atol=2e-5)


def test_weights_with_nan(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tiny = write_model(tmp_path / "tiny", bert(), [pooling("mean")])
    weights = load_file(tiny / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, tiny / "model.safetensors")
    bare = copy_without_weights(tiny, tmp_path / "bare")
    write_onnx(tiny, bare / "model.onnx")
    with pytest.raises(ModelError, match="bare gives NaN or infinity in float32"):
        choose(bare)


def test_what_onnx_runtime_cannot_run_is_run_without_it(
    tiny: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = needed("onnxruntime")

    def refuse(*_: Any) -> None:
        raise RuntimeError("no such operation\nand more")

    write_onnx(tiny, bare / "model.onnx")
    monkeypatch.setattr(runtime.InferenceSession, "run", refuse)
    for device in (EXACT, REFERENCE):
        choice = choose(bare, device)
        assert choice.kernel.name.startswith("openvino f32")
        assert "ONNX Runtime cannot run model.onnx: no such operation)" in choice.why


def test_operations_that_openvino_does_not_have(tiny: Path, bare: Path, without_runtime: None) -> None:
    path = write_onnx(tiny, bare / "model.onnx")
    path.write_bytes(path.read_bytes().replace(b"Softmax", b"Sofamax"))
    with pytest.raises(ModelError) as caught:
        choose(bare)
    assert caught.value.message.startswith("OpenVINO cannot run bare/model.onnx: ")
    assert "\n" not in caught.value.message
    assert caught.value.hint == "Export the model again, or pass a folder with its safetensors."


def test_on_a_gpu(tiny: Path, bare: Path) -> None:
    write_onnx(tiny, bare / "model.onnx")
    with pytest.raises(MissingExtra) as caught:
        TextEmbedder(str(bare)).check_installed("cuda")
    assert caught.value.message == "bare has only ONNX or OpenVINO files, which run on CPUs."
    with pytest.raises(MissingExtra, match="which run on CPUs"):
        choose(bare, Device("cuda", "a GPU"))
    assert TextEmbedder(str(bare)).gpu_bytes(precise=True) is None
    assert extras_of_encoder(str(bare), gpu=True) == ("light",)
