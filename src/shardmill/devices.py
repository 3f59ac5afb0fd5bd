"""What this machine has to compute on, asked without loading torch."""

from __future__ import annotations

import contextlib
import os
import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from shardmill.errors import UsageError

_ARM_PARTS = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
}


@dataclass(frozen=True, slots=True)
class Device:
    """One thing a worker runs on: `kind` is "cpu" or "cuda"; `visible` is what CUDA_VISIBLE_DEVICES must say.

    `sharing` workers use it, this one included; `work_bytes` of the source are to be done. On a `precise` one a task
    computes in float32, whatever else would be faster.
    """

    kind: str
    name: str
    threads: int = 1
    memory_bytes: int = 0
    visible: str = ""
    precise: bool = False
    sharing: int = 1
    work_bytes: int = 0

    @property
    def share(self) -> float:
        """How much of a whole device this worker has: of a GPU, or of the machine's cores."""
        return 1 / self.sharing if self.kind == "cuda" else min(1.0, self.threads / cores())


def cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(allowed, quota) if quota else allowed)


@cache
def cpu_model() -> str:
    """What the CPU is called, as far as the system tells: Linux on ARM gives numbers, of which some are known here."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            told.setdefault(name.strip(), value.strip())
    if "model name" in told:
        return told["model name"]
    part = (told.get("CPU implementer", ""), told.get("CPU part", ""))
    return _ARM_PARTS.get(part) or " ".join(filter(None, (platform.processor() or platform.machine(), *part)))


def _cgroup_quota() -> int | None:
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            limit, period = file.read().split()
        return None if limit == "max" else max(1, int(limit) // int(period))
    except (OSError, ValueError):
        return None


def gpus() -> list[Device]:
    """The NVIDIA GPUs this process may use, by NVML; CUDA_VISIBLE_DEVICES is respected."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None and not allowed.strip():
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    try:
        found = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            name = _text(pynvml.nvmlDeviceGetName(handle))
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append((str(i), uuid, Device("cuda", name, 1, memory, str(i))))
        if allowed is None:
            return [device for _, _, device in found]
        wanted = [w.strip() for w in allowed.split(",") if w.strip()]
        return [d for w in wanted for i, uuid, d in found if w == i or uuid.startswith(w)]
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def place_workers(
    kind: str = "auto", workers: int | None = None, per_gpu: Callable[[int], int] = lambda cores: 1
) -> list[Device]:
    """One device for each worker: the GPUs there are, or shares of the CPU's cores.

    Where no number is asked for, `per_gpu` says how many workers share a GPU that so many cores can feed.
    """
    if kind not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {kind}: no such device.", hint="Choose auto, cpu or cuda.")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: at least one worker is needed.")
    found = gpus() if kind != "cpu" else []
    if found and workers is None:
        workers = len(found) * per_gpu(max(1, cores() // len(found)))
    share = max(1, cores() // max(1, workers or len(found) or 1))
    if found:
        placed = range(workers or len(found))
        sharing = Counter(i % len(found) for i in placed)
        return [replace(found[i % len(found)], threads=share, sharing=sharing[i % len(found)]) for i in placed]
    if kind == "cuda":
        raise UsageError("No NVIDIA GPU was found.", hint="Run nvidia-smi to see why, or use --device cpu.")
    return [Device("cpu", "cpu", share) for _ in range(workers or 1)]
