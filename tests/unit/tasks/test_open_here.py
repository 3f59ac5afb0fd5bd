"""A task opened for few items in one process: on a GPU with room, else on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory
from shardmill.tasks import open_here
from shardmill.testing import FakeTask
from shardmill.verbs.embed.task import EmbedTask


class Opened(FakeTask):
    """Needs a gigabyte of a GPU; opening fails on it as told."""

    def __init__(self, failure: BaseException | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.tried: list[str] = []

    def gpu_bytes(self, precise: bool) -> int:
        return 1 << 30

    def open(self, device: Device) -> None:
        self.tried.append(device.kind)
        if device.kind == "cuda" and self.failure is not None:
            raise self.failure


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr("shardmill.core.devices.gpus", lambda: [Device("cuda", "H200", free_bytes=20 << 30)])


def test_a_gpu_with_room_is_taken(one_gpu: None) -> None:
    assert open_here(Opened(), precise=True).name == "H200"
    assert open_here(FakeTask(), precise=True).name == "the CPU"


@pytest.mark.parametrize("failure", [DeviceOutOfMemory("full"), RuntimeError("no CUDA"), AssertionError("no CUDA")])
def test_the_cpu_is_taken_if_the_gpu_fails(one_gpu: None, failure: Any) -> None:
    task = Opened(failure)
    assert open_here(task, precise=False).kind == "cpu"
    assert task.tried == ["cuda", "cpu"]


@pytest.mark.model
def test_an_embedding_model_says_what_it_needs() -> None:
    """Weights stored in float32 are loaded as they are, and once more in half precision to compare kernels."""
    task = EmbedTask()
    assert 80 << 20 < task.gpu_bytes(precise=True) < 100 << 20
    assert task.gpu_bytes(precise=False) * 2 == pytest.approx(task.gpu_bytes(precise=True) * 3, rel=1e-6)


@pytest.mark.gpu
@pytest.mark.model
@pytest.mark.parametrize("precise", [True, False])
def test_a_gpu_gives_the_vectors_of_the_cpu(monkeypatch: pytest.MonkeyPatch, precise: bool) -> None:
    text = "The battery died after an hour. " * 40
    there = EmbedTask()
    assert open_here(there, precise=precise).kind == "cuda"
    monkeypatch.setattr("shardmill.core.devices.gpus", list)
    here = EmbedTask()
    assert open_here(here, precise=precise).kind == "cpu"
    assert float(there.embed_query(text) @ here.embed_query(text)) >= (0.99999 if precise else 0.9998)
