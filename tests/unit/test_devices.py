"""What a machine has, and how workers share it; NVML is a fake here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from shardmill import devices
from shardmill.devices import Device, cores, cpu_model, gpus, place_workers
from shardmill.errors import UsageError

UUIDS = ["GPU-aaaa-1111", "GPU-bbbb-2222", "GPU-cccc-3333"]


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cores", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An NVML with three GPUs; old versions of it answer in bytes."""
    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle].encode() if handle == 1 else UUIDS[handle],
        nvmlDeviceGetName=lambda handle: f"H{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 << 30),
        ended=0,
    )

    def end() -> None:
        fake.ended += 1

    fake.nvmlShutdown = end
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fail))


def _visible(found: list[Device]) -> list[str]:
    return [d.visible for d in found]


def test_one_worker_a_gpu_with_its_share_of_the_cores(three_gpus: Any) -> None:
    placed = place_workers()
    assert placed == [Device("cuda", f"H{i}", 2, 80 << 30, str(i)) for i in range(3)]
    assert three_gpus.ended == 1


def test_more_workers_than_gpus_go_round(three_gpus: Any) -> None:
    assert _visible(place_workers("cuda", 5)) == ["0", "1", "2", "0", "1"]


def test_fewer_workers_than_gpus_leave_some_alone(three_gpus: Any) -> None:
    assert _visible(place_workers("auto", 2)) == ["0", "1"]


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        ("2,0", ["2", "0"]),
        ("GPU-bbbb", ["1"]),
        (f"{UUIDS[2]}, 0", ["2", "0"]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("7", []),
    ],
)
def test_cuda_visible_devices_is_respected(
    three_gpus: Any, monkeypatch: pytest.MonkeyPatch, allowed: str, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert _visible(gpus()) == found


def test_hidden_gpus_leave_the_cpu(three_gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert place_workers() == [Device("cpu", "cpu", 8)]


def test_asking_for_the_cpu_leaves_the_gpus_alone(three_gpus: Any) -> None:
    assert place_workers("cpu", 3) == [Device("cpu", "cpu", 2)] * 3


def test_without_a_driver_the_cpu_is_used(no_gpus: None) -> None:
    assert place_workers() == [Device("cpu", "cpu", 8)]


def test_more_workers_than_cores_have_a_thread_each(no_gpus: None) -> None:
    assert place_workers("cpu", 20) == [Device("cpu", "cpu", 1)] * 20


def test_asking_for_a_gpu_that_is_not_there_is_refused(no_gpus: None) -> None:
    with pytest.raises(UsageError, match="No NVIDIA GPU was found"):
        place_workers("cuda")


@pytest.mark.parametrize(("kind", "workers"), [("tpu", None), ("cpu", 0)])
def test_what_cannot_be_placed_is_refused(kind: str, workers: int | None) -> None:
    with pytest.raises(UsageError, match=f"--device {kind}|--workers {workers}"):
        place_workers(kind, workers)


def test_a_container_has_the_cores_of_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cgroup_quota", lambda: 1)
    assert cores() == 1


def test_the_cpu_has_a_name() -> None:
    assert cpu_model().strip()
    assert "\n" not in cpu_model()
