"""What this machine has, gathered without importing what takes seconds to import."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardmill.core.cache import cache_folder
from shardmill.core.devices import cores, cpu_model

_NVIDIA, _DISPLAY = "0x10de", "0x03"
_KUBECONFIG = "~/.kube/config"


@dataclass(frozen=True, slots=True)
class Torch:
    """An installed torch; `cuda` is the CUDA that it was built for, empty of a build for CPUs."""

    version: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The NVIDIA GPUs that the driver shows, and the cards on the PCI bus.

    `cuda` is the newest that the driver runs, by its major and minor number.
    """

    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    cards: int = 0


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts that the checks judge. `places` are the folders that are written to, by what for."""

    python: str
    packages: dict[str, str]
    torch: Torch | None
    nvidia: Nvidia
    hidden_gpus: bool
    memory_bytes: int
    free_memory_bytes: int
    cpu: str
    cores: int
    all_cores: int
    numa_nodes: int
    places: dict[str, Path]
    commands: frozenset[str]
    kubeconfig: str


def look() -> MachineFacts:
    total, free = _memory()
    return MachineFacts(
        python=f"{platform.python_version()} ({sys.executable})",
        packages={name.lower().replace("_", "-"): each.version for each in distributions() if (name := each.name)},
        torch=_torch(),
        nvidia=_nvidia(),
        hidden_gpus=os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"),
        memory_bytes=total,
        free_memory_bytes=free,
        cpu=cpu_model(),
        cores=cores(),
        all_cores=os.cpu_count() or 1,
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        places={"here": Path.cwd(), "cache": cache_folder(), "models": _hub_cache()},
        commands=frozenset(name for name in ("sbatch", "kubectl", "apt-get", "dnf") if shutil.which(name)),
        kubeconfig=_kubeconfig(),
    )


def _torch() -> Torch | None:
    """The version of torch, as its file says it: to import it takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    said: dict[str, Any] = {}
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse((Path(spec.origin).parent / "version.py").read_bytes()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                said[target.id] = value.value
    return Torch(str(said.get("__version__", "?")), str(said.get("cuda") or ""))


def _nvidia() -> Nvidia:
    cards = _cards()
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return Nvidia(cards=cards)
    try:
        gpus = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
            memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
            gpus.append(f"{_text(pynvml.nvmlDeviceGetName(gpu))}, {memory.total / 2**30:.0f} GiB")
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return Nvidia(tuple(gpus), driver, (cuda // 1000, cuda % 1000 // 10), max(cards, len(gpus)))
    except pynvml.NVMLError:
        return Nvidia(cards=cards)
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cards() -> int:
    """NVIDIA's display and compute cards on the PCI bus, with a driver or without."""
    count = 0
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            count += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return count


def _memory() -> tuple[int, int]:
    """Memory and what of it is free, of the container if that has a limit; zeros if unknown."""
    said: dict[str, int] = {}
    with suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            said[name] = int(value.split()[0]) << 10
    total, free = said.get("MemTotal", 0), said.get("MemAvailable", 0)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        if limit < total:
            return limit, min(free, limit - int((group / "memory.current").read_text()))
    return total, free


def _hub_cache() -> Path:
    """Where huggingface-hub keeps models."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def _kubeconfig() -> str:
    """The file that names a cluster, or "in a pod"; empty without either."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "in a pod"
    named = [place for place in os.environ.get("KUBECONFIG", _KUBECONFIG).split(os.pathsep) if place]
    return next((place for place in named if Path(place).expanduser().is_file()), "")
