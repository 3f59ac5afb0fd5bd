"""What the facts of a machine mean for a run: fine, absent without harm, or to be repaired."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardmill._version import __version__
from shardmill.core.console import count
from shardmill.core.extras import EXTRA_OF, pip_install
from shardmill.plugins import check, installed
from shardmill.verbs.doctor.machine import MachineFacts

State = Literal["ok", "absent", "wrong"]

_GIB = 1 << 30
_LITTLE_MEMORY, _LITTLE_DISK = 1 << 30, 2 << 30
# The first driver of each CUDA: any later one of the same major number runs what is built for it.
_FIRST_DRIVER = {11: "450", 12: "525", 13: "580"}
_RUNTIMES = {"light", "embed", "web", "endpoint"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw; `fix` is the command that helps."""

    name: str
    state: State
    seen: str
    fix: str = ""


def examine(machine: MachineFacts) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{machine.python}, shardmill {__version__}")
    yield _runtime(machine)
    yield _gpu(machine)
    yield _memory(machine)
    yield _cores(machine)
    yield Finding("numa", "ok", count(machine.numa_nodes, "node"))
    yield from _disks(machine)
    yield _packages(machine)
    yield _cluster(machine)
    yield _plugins()


def _runtime(machine: MachineFacts) -> Finding:
    """What models run in."""
    torch, light = machine.torch, machine.packages.get("openvino", "")
    has_gpu = bool(machine.nvidia.gpus)
    if torch is None:
        if has_gpu:
            where = f"only the CPU is used, by OpenVINO {light}" if light else "no model runs"
            return Finding("torch", "wrong", f"not installed, and there is a GPU: {where}", pip_install("embed"))
        if not light:
            return Finding("torch", "wrong", "neither torch nor OpenVINO: no model runs", pip_install("light"))
        seen = f"not installed: OpenVINO {light} runs models; train and generate need torch"
        return Finding("torch", "absent", seen, pip_install("generate"))
    if has_gpu and not torch.cuda:
        seen = f"{torch.version} is built for CPUs, and there is a GPU"
        return Finding("torch", "wrong", seen, f"pip uninstall --yes torch && {pip_install('embed')}")
    if missing := [name for name in ("transformers", "safetensors", "tokenizers") if name not in machine.packages]:
        return Finding("torch", "wrong", f"{torch.version} without {', '.join(missing)}", pip_install("embed"))
    built = f"for CUDA {torch.cuda}" if torch.cuda else "for CPUs"
    return Finding("torch", "ok", f"{torch.version}, {built}" + (f"; OpenVINO {light}" if light else ""))


def _gpu(machine: MachineFacts) -> Finding:
    seen, torch = machine.nvidia, machine.torch
    if not seen.gpus:
        if seen.cards:
            said = f"{count(seen.cards, 'NVIDIA card')} on the bus, and no driver answers"
            return Finding("gpu", "wrong", said, _driver_command(machine, max(_FIRST_DRIVER)))
        return Finding("gpu", "absent", "no NVIDIA GPU: runs use the CPU")
    named = f"{'; '.join(dict.fromkeys(seen.gpus))}{f' ({len(seen.gpus)})' if len(seen.gpus) > 1 else ''}"
    runs = f"driver {seen.driver} runs CUDA {seen.cuda[0]}.{seen.cuda[1]}"
    wanted = int(torch.cuda.partition(".")[0]) if torch is not None and torch.cuda else 0
    if wanted > seen.cuda[0]:
        said = f"{named}: {runs}, and torch is built for CUDA {torch.cuda if torch else ''}"
        return Finding("gpu", "wrong", said, _driver_command(machine, wanted))
    if machine.hidden_gpus:
        return Finding("gpu", "absent", f"{named}: hidden by CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES")
    return Finding("gpu", "ok", f"{named}; {runs}")


def _driver_command(machine: MachineFacts, cuda: int) -> str:
    """What installs a driver for a CUDA; a restart loads it."""
    first = _FIRST_DRIVER.get(cuda, _FIRST_DRIVER[max(_FIRST_DRIVER)])
    if "dnf" in machine.commands:
        return "sudo dnf install cuda-drivers && sudo reboot"
    return f"sudo apt-get install nvidia-driver-{first} && sudo reboot"


def _memory(machine: MachineFacts) -> Finding:
    free = machine.free_memory_bytes
    seen = f"{free / _GIB:.1f} of {machine.memory_bytes / _GIB:.1f} GiB are free"
    if machine.memory_bytes and free < _LITTLE_MEMORY:
        return Finding(
            "memory", "wrong", f"{seen}: too little for most models", "ps -eo rss,pid,args --sort=-rss | head"
        )
    return Finding("memory", "ok", seen if machine.memory_bytes else "unknown")


def _cores(machine: MachineFacts) -> Finding:
    seen = f"{machine.cores} of {machine.all_cores}" if machine.cores < machine.all_cores else f"{machine.cores}"
    return Finding("cores", "ok", f"{seen}, {machine.cpu}")


_FOR = {"here": "this folder", "cache": "the cache", "models": "the cache of models"}


def _disks(machine: MachineFacts) -> Iterator[Finding]:
    for name, place in machine.places.items():
        there = next((each for each in (place, *place.parents) if each.exists()), place)
        if why := _why_unwritable(place):
            fix = "cd ~" if name == "here" else 'export XDG_CACHE_HOME="$PWD/.cache"'
            if name == "models" and (os.environ.get("HF_HOME") or os.environ.get("HF_HUB_CACHE")):
                fix = 'unset HF_HUB_CACHE; export HF_HOME="$PWD/.cache/huggingface"'
            yield Finding(name, "wrong", f"{_FOR[name]}, {place}, cannot be written: {why}", fix)
            continue
        free = shutil.disk_usage(there).free
        seen = f"{place}: {free / _GIB:,.0f} GiB are free"
        if free < _LITTLE_DISK:
            yield Finding(name, "wrong", f"{seen}: too little", f"du -xh {there} | sort -h | tail")
        else:
            yield Finding(name, "ok", seen)


def _why_unwritable(place: Path) -> str:
    """Why no file can be made in a folder, or the folder itself; empty if it can."""
    there = place
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def _packages(machine: MachineFacts) -> Finding:
    """The extras that are not installed as a whole; what models run in is told elsewhere."""
    missing = {extra for package, extra in EXTRA_OF.items() if package not in machine.packages} - _RUNTIMES
    have = sorted({*EXTRA_OF.values()} - missing - _RUNTIMES)
    if not missing:
        return Finding("extras", "ok", ", ".join(have))
    seen = f"{', '.join(have) or 'none'}; not installed: {', '.join(sorted(missing))}"
    of_choice = "NAME"
    return Finding("extras", "absent", seen, pip_install(of_choice))


def _cluster(machine: MachineFacts) -> Finding:
    """The engines that this machine can start workers with."""
    engines = ["local"]
    engines += [name for name, package in (("ssh", "asyncssh"), ("ray", "ray")) if package in machine.packages]
    engines += ["slurm"] if "sbatch" in machine.commands else []
    if machine.kubeconfig and "lightkube" not in machine.packages:
        seen = f"{', '.join(engines)}; {machine.kubeconfig} names a Kubernetes cluster"
        return Finding("cluster", "absent", seen, pip_install("kubernetes"))
    if machine.kubeconfig:
        seen = f"{', '.join([*engines, 'kubernetes'])} ({machine.kubeconfig})"
        return Finding("cluster", "ok", seen, "shardmill kubernetes check")
    return Finding("cluster", "ok", ", ".join(engines))


def _plugins() -> Finding:
    found = [check(plugin) for plugin in installed()]
    if broken := [plugin for plugin in found if plugin.fault]:
        first = broken[0]
        seen = f"{first.package} {first.version}: {first.fault}"
        return Finding("plug-ins", "wrong", seen, f"pip install --upgrade {first.package}")
    named = sorted({f"{plugin.package} {plugin.version}" for plugin in found})
    return Finding("plug-ins", "ok", ", ".join(named) or "none")
