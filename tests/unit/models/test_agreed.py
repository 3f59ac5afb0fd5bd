"""A trial of a kernel that was made before is not made again, unless anything that it depends on is different."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.models import agreed
from shardmill.models.choosing import choose_kernel
from shardmill.models.folder import read_folder
from shardmill.models.kernels import Tried
from shardmill.models.plain import PlainEncoder
from tests.support.tiny_models import bert, pooling, write_model

CPU = Device("cpu", "the CPU", 2, precise=True)
GOLDEN = [np.arange(100, 100 + n, dtype=np.int32) for n in (3, 9, 20)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/shardmill/agreed.json"


@pytest.fixture
def model(tmp_path: Path, cache: Path) -> Tried:
    return Tried(read_folder(write_model(tmp_path / "tiny", bert(), [pooling("mean")])), 0, 64, GOLDEN, 0)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the reference has computed, each time."""
    rows: list[int] = []
    encode = PlainEncoder.encode

    def count(self: PlainEncoder, given: list[np.ndarray], skip: int = 0) -> np.ndarray:
        rows.append(len(given))
        return encode(self, given, skip)

    monkeypatch.setattr(PlainEncoder, "encode", count)
    return rows


def test_the_second_time_the_reference_computes_nothing(model: Tried, computed: list[int]) -> None:
    first, second = choose_kernel(model, CPU), choose_kernel(model, CPU)
    assert computed == [3]
    assert (second.why, second.batch_budget) == (first.why, first.batch_budget)
    np.testing.assert_array_equal(second.kernel.encode(GOLDEN), first.kernel.encode(GOLDEN))


def _change_weights(model: Tried) -> Tried:
    from safetensors.numpy import load_file, save_file

    path = model.folder.transformer / "model.safetensors"
    save_file({name: array * np.float32(1.01) for name, array in load_file(path).items()}, path)
    return model


OTHERS: dict[str, Callable[[Tried], Tried]] = {
    "weights": _change_weights,
    "pooling": lambda model: replace(
        model, folder=replace(model.folder, pooling=replace(model.folder.pooling, modes=("cls",)))
    ),
    "limit": lambda model: replace(model, limit=32),
    "padding": lambda model: replace(model, pad_id=1),
    "rows": lambda model: replace(model, golden=GOLDEN[:2]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_model_is_tried(model: Tried, computed: list[int], other: str) -> None:
    choose_kernel(model, CPU)
    choose_kernel(OTHERS[other](model), CPU)
    assert len(computed) == 2


@pytest.mark.parametrize("name", ["__version__", "cpu_features", "cpu_model"])
def test_another_version_or_cpu_tries_again(
    model: Tried, computed: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_kernel(model, CPU)
    monkeypatch.setattr(agreed, name, "9.9" if name == "__version__" else lambda: "another")
    choose_kernel(model, CPU)
    assert len(computed) == 2


def test_another_number_of_threads_is_tried(model: Tried, computed: list[int]) -> None:
    for threads in (2, 1, 2):
        choose_kernel(model, replace(CPU, threads=threads))
    assert len(computed) == 2


@pytest.mark.parametrize("damage", [b"", b'{"version": 1, "kern', b'{"version": 2, "kernels": {}}', b"\xff"])
def test_a_damaged_file_is_ignored_and_written_anew(
    model: Tried, computed: list[int], cache: Path, damage: bytes
) -> None:
    choose_kernel(model, CPU)
    cache.write_bytes(damage if damage else cache.read_bytes()[:20])
    for _ in range(2):
        choose_kernel(model, CPU)
    assert len(computed) == 2


def test_what_was_refused_is_tried_again(model: Tried, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from shardmill.models.openvino import OpenVinoEncoder

    encode = OpenVinoEncoder.encode
    with monkeypatch.context() as broken:
        broken.setattr(OpenVinoEncoder, "encode", lambda *given: encode(*given)[:, ::-1])
        assert choose_kernel(model, CPU).kernel.name == "numpy float32"
    assert choose_kernel(model, CPU).kernel.name.startswith("openvino ")


def test_a_bundled_model_is_read_whole_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again once its file is another one."""
    import hashlib
    import os

    from shardmill.core.errors import ModelError
    from shardmill.models.location import Location, check_bundled

    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    location = Location("mini", tmp_path, hashlib.sha256(b"weights").hexdigest())
    check_bundled(location)
    with monkeypatch.context() as unread:
        unread.setattr(hashlib, "file_digest", None)
        check_bundled(location)
    before = file.stat()
    file.write_bytes(b"wEights")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(ModelError, match="The weights of mini have sha256"):
            check_bundled(location)
