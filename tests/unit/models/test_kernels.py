"""The choice of a kernel on a CPU: without torch where the network is described, and what happens where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models import installed
from shardmill.models.choosing import choose_kernel
from shardmill.models.folder import read_folder
from shardmill.models.kernels import Tried
from shardmill.models.openvino import OpenVinoEncoder, precisions
from tests.support.tiny_models import bert, pooling, qwen3, write_model

CPU = Device("cpu", "the CPU", 2)
GOLDEN = [np.arange(100, 100 + n, dtype=np.int32) for n in (3, 9, 20)]


def tried(folder: Path) -> Tried:
    return Tried(read_folder(folder), 0, 64, GOLDEN, 0)


@pytest.fixture(autouse=True)
def own_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test tries is not known to the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny", bert(), [pooling("mean")])


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        return None if name == "torch" else importlib.util.find_spec(name)

    monkeypatch.setattr(installed, "find_spec", find)


def test_openvino_is_taken_where_the_network_is_described(tiny: Path) -> None:
    choice = choose_kernel(tried(tiny), CPU)
    assert choice.kernel.name.startswith(f"openvino {precisions()[0]}")
    precise = choose_kernel(tried(tiny), Device("cpu", "the CPU", 2, precise=True))
    assert precise.kernel.precision == "float32"


def test_a_kernel_that_computes_something_else_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then float32, and then NumPy; the worker's record says why."""
    encode = OpenVinoEncoder.encode
    monkeypatch.setattr(OpenVinoEncoder, "encode", lambda *given: encode(*given)[:, ::-1])
    choice = choose_kernel(tried(tiny), CPU)
    assert choice.kernel.name == "numpy float32"
    refused = [f"openvino {precision}, 2 streams gave different vectors" for precision in precisions()]
    assert choice.why == f"numpy float32 ({'; '.join(refused)})"


def test_the_reference_is_torch_or_numpy(tiny: Path, request: pytest.FixtureRequest) -> None:
    device = Device("cpu", "the CPU", 2, precise=True, reference=True)
    assert choose_kernel(tried(tiny), device).kernel.name == "torch float32, padded"
    request.getfixturevalue("without_torch")
    assert choose_kernel(tried(tiny), device).kernel.name == "numpy float32"


def test_what_is_not_described_runs_with_torch(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = write_model(tmp_path / "tiny", qwen3(), [pooling("lasttoken")])
    assert choose_kernel(tried(folder), CPU).kernel.name.startswith("torch ")
    request.getfixturevalue("without_torch")
    with pytest.raises(ModelError) as caught:
        choose_kernel(tried(folder), CPU)
    assert caught.value.message.startswith("tiny needs torch, which is not installed: its family qwen3 is not among ")
    assert caught.value.hint == "Install it with: pip install 'shardmill[embed]'"


def test_weights_with_nan(tiny: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(tiny / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, tiny / "model.safetensors")
    with pytest.raises(ModelError, match="gives NaN or infinity in float32"):
        choose_kernel(tried(tiny), CPU)
