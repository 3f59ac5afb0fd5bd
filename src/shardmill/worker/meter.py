"""What a worker uses of its device: memory, and how busy it is."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from shardmill.core.devices import Device

# A shorter time says little.
_LEAST_S = 0.5


class Meter:
    """Measures one device: a GPU by NVML, a CPU by the processor time of this process."""

    def __init__(self, device: Device) -> None:
        self._threads = max(1, device.threads)
        self._gpu = _open_gpu(device) if device.kind == "cuda" else None
        self._at, self._cpu_s = time.monotonic(), time.process_time()
        self._is_gpu, self._use = device.kind == "cuda", 0.0

    def read(self) -> dict[str, Any]:
        """Memory of the GPU, and the share of the time that the device was busy since the last call.

        What cannot be measured is None. A GPU is measured as a whole, whoever else uses it.
        """
        device_bytes, use = self._read_gpu() if self._is_gpu else (None, self._read_cpu())
        return {
            "device_bytes": device_bytes,
            "use": None if use is None else round(use, 3),
        }

    def _read_gpu(self) -> tuple[int | None, float | None]:
        if self._gpu is None:
            return None, None
        nvml, handle = self._gpu
        memory = use = None
        with contextlib.suppress(nvml.NVMLError):
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        # A slice of a GPU (MIG) has memory of its own, but no use.
        with contextlib.suppress(nvml.NVMLError):
            use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return memory, use

    def _read_cpu(self) -> float:
        now, cpu_s = time.monotonic(), time.process_time()
        passed_s, used_s = now - self._at, cpu_s - self._cpu_s
        if passed_s >= _LEAST_S:
            self._at, self._cpu_s = now, cpu_s
            self._use = min(1.0, used_s / passed_s / self._threads)
        return self._use


def _open_gpu(device: Device) -> tuple[Any, Any] | None:
    """NVML and its handle of the GPU that this process sees first; None if there is none."""
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", device.visible).split(",") if name.strip()]
    name = seen[min(device.index, len(seen) - 1)] if seen else "0"
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, _find_gpu(pynvml, name)
    except Exception:
        return None


def _find_gpu(nvml: Any, name: str) -> Any:
    """The handle of a GPU by its number, by its UUID or the beginning of it, or of a slice (MIG) by its UUID."""
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(name):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(name)
