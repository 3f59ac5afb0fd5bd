"""The devices of this machine, found without loading torch."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from shardmill.core.errors import UsageError

_ARM_PARTS = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
}
# Of x86 and of ARM.
_BYTE_PRODUCTS = {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"}
# Cores for reading, tokenizing and launching; more do not feed a GPU faster.
_CORES_A_GPU_WORKER = 4
_CORES_A_GPU = 8
# What the UUID of a slice of a GPU begins with.
_SLICE = "MIG-"
# For CUDA itself and for a batch of one long text, beside the weights.
_GPU_ROOM_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one worker: `kind` is "cpu" or "cuda"; `visible` is the value for CUDA_VISIBLE_DEVICES.

    `sharing` is the number of workers that use it; `work_bytes` of the source are left for this one, 0 if unknown. If
    `precise`, a task computes in float32 even if another type is faster; for a `reference` it computes by other means
    than a worker does, if it can. The worker is pinned to `cpus`, () for no pinning.
    `free_bytes` was free when the GPU was found; `index` is its number among the GPUs that this process sees.
    """

    kind: str
    name: str
    threads: int = 1
    memory_bytes: int = 0
    visible: str = ""
    precise: bool = False
    reference: bool = False
    sharing: int = 1
    work_bytes: int = 0
    cpus: tuple[int, ...] = ()
    free_bytes: int = field(default=0, compare=False)
    index: int = 0

    @property
    def share(self) -> float:
        """This worker's share of a GPU, or of the machine's cores."""
        return 1 / self.sharing if self.kind == "cuda" else min(1.0, self.threads / cores())


def allowed_cpus() -> set[int]:
    """The CPUs this process may run on, by number."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores() -> int:
    """Cores this process may use; in a container often fewer than the machine has."""
    allowed = len(allowed_cpus())
    quota = _cgroup_quota()
    return max(1, min(allowed, quota) if quota else allowed)


@cache
def _cpu_info() -> dict[str, str]:
    """What Linux says of the first CPU."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            told.setdefault(name.strip(), value.strip())
    return told


def cpu_model() -> str:
    """The name of the CPU model. Linux on ARM gives only part numbers; some are translated here."""
    told = _cpu_info()
    if "model name" in told:
        return told["model name"]
    part = (told.get("CPU implementer", ""), told.get("CPU part", ""))
    return _ARM_PARTS.get(part) or " ".join(filter(None, (platform.processor() or platform.machine(), *part)))


def cpu_features() -> str:
    """What the CPU can do: a virtual machine may have the same CPU with fewer features; empty if unknown."""
    return _cpu_info().get("flags") or _cpu_info().get("Features", "")


def multiplies_bytes() -> bool:
    """Whether this CPU has instructions that multiply and add 8-bit integers; not, if its features are unknown."""
    return not _BYTE_PRODUCTS.isdisjoint(cpu_features().split())


def _cgroup_quota() -> int | None:
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            limit, period = file.read().split()
        return None if limit == "max" else max(1, int(limit) // int(period))
    except (OSError, ValueError):
        return None


def parse_cpus(text: str) -> tuple[int, ...]:
    """Read a list of CPUs as Linux writes it.

    >>> parse_cpus("0-2,8")
    (0, 1, 2, 8)
    """
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Write a list of CPUs as Linux does.

    >>> format_cpus([0, 1, 2, 8])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def near_cpus(address: str, root: Path = Path("/sys")) -> tuple[int, ...]:
    """The allowed CPUs on the NUMA node of a PCI device; () if unknown, or if those are all allowed CPUs.

    NVML writes the PCI domain with eight digits, Linux with at least four.
    """
    domain, _, rest = address.lower().partition(":")
    try:
        place = root / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "local_cpulist"
        near = set(parse_cpus(place.read_text()))
    except (OSError, ValueError):
        return ()
    allowed = allowed_cpus()
    return tuple(sorted(near & allowed)) if near & allowed < allowed else ()


def pin(cpus: Sequence[int]) -> tuple[int, ...]:
    """Pin this process to CPUs, including threads that libraries have started. Returns the CPUs, () if it failed."""
    if not cpus:
        return ()
    try:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
    except OSError:
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


def gpus() -> list[Device]:
    """The NVIDIA GPUs that this process may use, from NVML and CUDA_VISIBLE_DEVICES."""
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
            whole = pynvml.nvmlDeviceGetHandleByIndex(i)
            cpus = near_cpus(_pci_address(pynvml, whole))
            slices = _slices(pynvml, whole)
            for n, handle in enumerate([whole] if slices is None else slices):
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
                name = _text(pynvml.nvmlDeviceGetName(handle))
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                visible = str(i) if slices is None else uuid
                gpu = Device("cuda", name, 1, int(memory.total), visible, cpus=cpus, free_bytes=int(memory.free))
                found.append((str(i) if n == 0 else uuid, uuid, gpu))
        if allowed is None:
            return [device for _, _, device in found]
        wanted = [w.strip() for w in allowed.split(",") if w.strip()]
        return [d for w in wanted for i, uuid, d in found if w == i or uuid.startswith(w)]
    finally:
        pynvml.nvmlShutdown()


def pick_device(need_bytes: int | None, *, precise: bool, reference: bool = False) -> Device:
    """The device for one process: the GPU with the most free memory, if that is `need_bytes`, else the CPU.

    None is a task that uses no GPU. On the CPU it is always precise: trying other kernels takes longer than few texts.
    """
    found = [] if need_bytes is None else gpus()
    if found:
        index, best = max(enumerate(found), key=lambda each: each[1].free_bytes)
        if best.free_bytes >= (need_bytes or 0) + _GPU_ROOM_BYTES:
            return replace(_to_use(best, index), precise=precise, reference=reference)
    return Device("cpu", "the CPU", cores(), precise=True, reference=reference)


def pick_worker_device(kind: str, need_bytes: int) -> Device:
    """The device for a worker that no engine placed: the GPU with the most free memory, or the CPU.

    With "auto", a GPU without `need_bytes` free is left alone.
    """
    if kind == "all":
        raise UsageError("--device all is for several workers.", hint="One worker has one device: auto, cpu or cuda.")
    (placed,) = place_workers(kind, 1)
    if placed.kind == "cpu":
        return placed
    if numbers := parse_device(kind)[1]:
        return _to_use(placed, numbers[0])
    picked = pick_device(need_bytes if kind == "auto" else -_GPU_ROOM_BYTES, precise=False)
    return replace(picked, precise=False) if picked.kind == "cuda" else place_workers("cpu", 1)[0]


def _to_use(gpu: Device, index: int) -> Device:
    """A GPU for this process, by its number among those that it may use."""
    # CUDA numbers GPUs by speed unless told to number them as NVML does.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if gpu.visible.startswith(_SLICE):
        # A process sees one slice alone, the first one unless another is named.
        os.environ["CUDA_VISIBLE_DEVICES"], index = gpu.visible, 0
    return replace(gpu, index=index, threads=cores())


def _slices(pynvml: Any, gpu: Any) -> list[Any] | None:
    """The slices of a GPU that is divided (MIG), of which CUDA sees nothing else; None of a whole GPU."""
    try:
        if not pynvml.nvmlDeviceGetMigMode(gpu)[0]:
            return None
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except pynvml.NVMLError:
        return None
    found = []
    for i in range(most):
        with contextlib.suppress(pynvml.NVMLError):
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pci_address(pynvml: Any, handle: Any) -> str:
    try:
        return _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    except pynvml.NVMLError:
        return ""


def parse_device(text: str) -> tuple[str, tuple[int, ...]]:
    """The kind of a device, and the numbers of the GPUs that are meant; none for all of them.

    >>> parse_device("cuda:0,2"), parse_device("auto")
    (('cuda', (0, 2)), ('auto', ()))
    """
    kind, colon, numbers = text.partition(":")
    parts = numbers.split(",") if colon else []
    if (
        kind not in ("auto", "cpu", "cuda", "all")
        or (colon and kind != "cuda")
        or not all(p.isdecimal() for p in parts)
    ):
        raise ValueError(f"{text!r} is not a device: auto, cpu, cuda, cuda:0, cuda:0,2 or all")
    return kind, tuple(map(int, parts))


def place_workers(
    kind: str = "auto", workers: int | None = None, per_gpu: Callable[[int], int] = lambda cores: 1
) -> list[Device]:
    """One device per worker: the GPUs, or shares of the CPU's cores.

    If `workers` is None, `per_gpu` gives the workers per GPU for a number of cores per GPU. With "all", one more worker
    runs on the cores that the GPU workers leave, if any.
    """
    try:
        kind, numbers = parse_device(kind)
    except ValueError as error:
        raise UsageError(f"--device: {error}.") from None
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: at least one worker is needed.")
    found = gpus() if kind != "cpu" else []
    if numbers and max(numbers) >= len(found):
        raise UsageError(
            f"--device cuda:{max(numbers)}: there is no such GPU here.",
            hint=f"There are {len(found)}, counted from 0." if found else "Run nvidia-smi to see why.",
        )
    if found:
        found = [found[number] for number in numbers] if numbers else found
        placed = _place_on_gpus(found, workers, per_gpu)
        return _add_cpu_worker(placed) if kind == "all" else placed
    if kind == "cuda":
        raise UsageError("No NVIDIA GPU was found.", hint="Run nvidia-smi to see why, or use --device cpu.")
    return [Device("cpu", "cpu", max(1, cores() // (workers or 1))) for _ in range(workers or 1)]


def use_first(placed: Sequence[Device], count: int) -> list[Device]:
    """The first of some placed workers, with the shares of the GPUs and the cores that the others would have had.

    GPUs come before second workers on one.
    """
    return _share(placed[: max(1, count)])


def _place_on_gpus(found: Sequence[Device], workers: int | None, per_gpu: Callable[[int], int]) -> list[Device]:
    if workers is None:
        fed_by = min(share_cores([gpu.cpus for gpu in found]))
        workers = len(found) * per_gpu(fed_by)
    return _share([found[i % len(found)] for i in range(workers)])


def _share(placed: Sequence[Device]) -> list[Device]:
    """Workers with their share of a GPU, and of the cores."""
    sharing = Counter(gpu.visible for gpu in placed)
    threads = share_cores([gpu.cpus for gpu in placed])
    return [replace(g, threads=t, sharing=sharing[g.visible]) for g, t in zip(placed, threads, strict=True)]


def share_cores(pinned: Sequence[tuple[int, ...]]) -> list[int]:
    """Threads per worker: each CPU is shared by the workers that may run on it; () means all CPUs.

    If the container's quota is below the number of CPUs, all shares are scaled down.
    """
    allowed = allowed_cpus()
    used = Counter(cpu for cpus in pinned for cpu in cpus or allowed)
    shares = [sum(1 / used[cpu] for cpu in cpus or allowed) for cpus in pinned]
    scale = min(1.0, cores() / sum(shares))
    return [max(1, int(share * scale + 1e-9)) for share in shares]


def _add_cpu_worker(placed: Sequence[Device]) -> list[Device]:
    """The GPU workers with the cores they need, and one CPU worker with the rest."""
    kept = [min(g.threads, _CORES_A_GPU_WORKER, max(1, _CORES_A_GPU // g.sharing)) for g in placed]
    left = cores() - sum(kept)
    if left < 1:
        return list(placed)
    return [*(replace(g, threads=n) for g, n in zip(placed, kept, strict=True)), Device("cpu", "cpu", left)]


def own_address() -> str:
    """The address of this machine that others reach, without a name: nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
