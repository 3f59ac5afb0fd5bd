"""What a worker says of its device. NVML is that of a machine with two GPUs, one of them cut into slices."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.worker.meter import Meter

UUIDS = ["GPU-11111111-aaaa", "GPU-22222222-bbbb"]
GPU = Device("cuda", "H", 1)


class NVMLError(Exception):
    pass


def _by_uuid(uuid: str) -> str:
    if uuid != "MIG-3333":
        raise NVMLError("not found")
    return uuid


def _use(handle: Any) -> SimpleNamespace:
    if handle == "MIG-3333":
        raise NVMLError("not supported")
    return SimpleNamespace(gpu=40 + 10 * handle)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {0: 1 << 30, 1: 2 << 30, "MIG-3333": 3 << 30}
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetHandleByUUID=_by_uuid,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=used[handle]),
        nvmlDeviceGetUtilizationRates=_use,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("visible", "memory", "use"),
    [
        ("1", 2 << 30, 0.5),
        (UUIDS[1], 2 << 30, 0.5),
        ("GPU-2222", 2 << 30, 0.5),
        (" GPU-1111 , GPU-2222", 1 << 30, 0.4),
        ("MIG-3333", 3 << 30, None),
        ("GPU-9", None, None),
    ],
)
def test_the_gpu_that_the_process_sees_is_measured(
    monkeypatch: pytest.MonkeyPatch, visible: str, memory: int | None, use: float | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Meter(GPU).read() == {"device_bytes": memory, "use": use}


def test_a_cpu_is_measured_by_the_time_of_this_process() -> None:
    meter = Meter(Device("cpu", "cpu", 1))
    began = time.monotonic()
    while time.monotonic() - began < 0.6:
        pass
    seen = meter.read()
    assert seen["device_bytes"] is None
    assert 0 < seen["use"] <= 1
