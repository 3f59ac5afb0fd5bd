"""The choice of a kernel as on a GPU, made on a CPU: how often weights are loaded, and what little work is spared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import bert, mpnet, needed, pooling, write_model

torch = needed("torch")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.models import encoder  # noqa: E402
from shardmill.models.folder import read_folder  # noqa: E402
from shardmill.models.kernels import Tried  # noqa: E402
from shardmill.models.packed import PackedEncoder  # noqa: E402
from shardmill.models.paying import Paying  # noqa: E402
from shardmill.models.torch_kernels import _Trial  # noqa: E402

GOLDEN = [np.arange(1000, 1000 + n, dtype=np.int32) for n in (3, 9, 20)]


@pytest.fixture(autouse=True)
def modern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The attention that each load of weights asks for."""
    asked: list[str] = []
    load = encoder.load_transformer

    def count(folder: Any, attention: str) -> Any:
        asked.append(attention)
        return load(folder, attention)

    monkeypatch.setattr(encoder, "load_transformer", count)
    return asked


def trial(folder: Path, work_bytes: int = 1 << 60) -> _Trial:
    return _Trial(Tried(read_folder(folder), 0, 64, GOLDEN, 0), Device("cpu", "cpu", work_bytes=work_bytes))


@pytest.mark.parametrize("config", [bert(), mpnet()], ids=["bert", "mpnet"])
def test_weights_are_loaded_once(tmp_path: Path, loads: list[str], config: Any) -> None:
    one = trial(write_model(tmp_path / "tiny", config, [pooling("mean")], scale=2))
    assert one.choose_on_gpu().name == "torch float16, packed"
    assert loads == ["sdpa"]


def test_they_are_loaded_again_once_a_kernel_was_wrong(
    tmp_path: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = PackedEncoder.encode
    monkeypatch.setattr(PackedEncoder, "encode", lambda *given: encode(*given)[:, ::-1])
    one = trial(write_model(tmp_path / "tiny", bert(), [pooling("mean")]))
    assert one.choose_on_gpu().name == "torch float16, padded"
    assert loads == ["sdpa", "sdpa"]
    assert one.why == ["torch float16, packed gave different vectors"]


def test_a_cache_that_a_kernel_cannot_write_is_told_and_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PackedEncoder, "encode", full)
    one = trial(write_model(tmp_path / "tiny", bert(), [pooling("mean")]))
    assert one.choose_on_gpu().name == "torch float16, padded"
    assert one.why == ["cannot run packed: OSError"]


def test_compiled_is_first_where_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paying, "compiling", lambda self: True)
    one = trial(write_model(tmp_path / "tiny", bert(), [pooling("mean")]))
    assert [how for how, _ in one._gpu_kernels()] == ["compiled", "packed", "padded"]


def test_little_work_tries_nothing(tmp_path: Path, loads: list[str]) -> None:
    one = trial(write_model(tmp_path / "tiny", bert(), [pooling("mean")]), work_bytes=100_000)
    assert one.choose_on_gpu().name == "torch float32, padded"
    assert one.why == ["too little work to try others"]
    assert loads == ["sdpa"]
