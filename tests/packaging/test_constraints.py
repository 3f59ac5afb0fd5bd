"""What users and `make` install resolves against the package index alone, on x86-64 and on ARM.

The index's torch is a CUDA build with a triton of its own; a wheel on a developer's disk must not hide that. uv
resolves for other platforms than this one, from metadata alone, and pip for this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.services import unavailable
from tests.support.waiting import PATIENCE_S
from tools.install import DRY_PIP, is_for_cuda

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
# The oldest glibc that every wheel runs with: torch's on x86-64, openvino's on ARM.
PLATFORMS = ["x86_64-manylinux_2_28", "aarch64-manylinux_2_35"]
LIGHT = ["light", "answer", "summarize", "demo", "dedup", "web", "endpoint", "postgres", "map", "tune"]
# Kept of the settings of uv and pip: the way to the index, never where else packages lie.
KEPT = {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "PIP_CERT", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT"}


def bare_environment() -> dict[str, str]:
    """This process's environment without the settings of uv and pip, and without pip's files."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_")) or k in KEPT}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def compile_with_uv(*arguments: str | Path, platform: str, python: str = "3.11") -> subprocess.CompletedProcess[str]:
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "compile", "--no-config", "--quiet", "--no-annotate", "--no-header"]
    command += ["--only-binary", ":all:", "--python-version", python, "--python-platform", platform]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def packages_of(compiled: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert compiled.returncode == 0, compiled.stderr
    return dict(re.findall(r"^([\w.-]+)==(\S+)", compiled.stdout, re.MULTILINE))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The package index can be reached, and uv is here."""
    try:
        import uv  # noqa: F401
    except ImportError:
        unavailable("uv is not installed: pip install uv")
    one = tmp_path_factory.mktemp("index") / "one.in"
    one.write_text("packaging\n")
    reached = compile_with_uv(one, platform=PLATFORMS[0])
    if reached.returncode != 0:
        unavailable(f"the package index cannot be reached: {reached.stderr.strip()[-300:]}")


def test_no_pin_depends_on_the_build_of_torch() -> None:
    names = re.findall(r"^([\w.-]+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert [name for name in names if is_for_cuda(name)] == []


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("python", ["3.11", "3.12"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_make_installs_resolves_with_the_torch_of_the_index(platform: str, python: str) -> None:
    """All extras at once: whatever solves them solves each."""
    wanted = ["--all-extras", "pyproject.toml", "tests/requirements.txt"]
    compiled = compile_with_uv("--constraint", CONSTRAINTS, *wanted, platform=platform, python=python)
    packages = packages_of(compiled)
    assert "+" not in packages["torch"]
    assert any(is_for_cuda(name) for name in packages)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_users_install_resolves_without_constraints(platform: str) -> None:
    assert "torch" in packages_of(compile_with_uv("--all-extras", "pyproject.toml", platform=platform))


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("pinned", [True, False])
def test_the_light_extras_do_without_torch(platform: str, pinned: bool) -> None:
    """Extras of what an encoder does, and those that go with them."""
    wanted = [word for extra in LIGHT for word in ("--extra", extra)]
    pins = ["--constraint", CONSTRAINTS] if pinned else []
    packages = packages_of(compile_with_uv(*pins, *wanted, "pyproject.toml", platform=platform))
    assert {"openvino", "tokenizers"} <= packages.keys()
    assert not {"torch", "transformers", "safetensors", "sentence-transformers"} & packages.keys()


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_pinned_triton_is_found_out(tmp_path: Path, platform: str) -> None:
    """The fault that this file was written for."""
    pinned = tmp_path / "constraints.txt"
    pinned.write_text("torch==2.13.0\ntriton==3.9.0\n")
    compiled = compile_with_uv("--constraint", pinned, "--extra", "embed", "pyproject.toml", platform=platform)
    assert compiled.returncode != 0
    assert "triton" in compiled.stderr


@pytest.mark.usefixtures("index")
@pytest.mark.skipif(sys.platform != "linux", reason="the index's torch is a CUDA build on Linux only")
def test_pip_agrees_here_on_torch_and_what_depends_on_its_build() -> None:
    if tuple(map(int, version("pip").split(".")[:2])) < DRY_PIP:
        unavailable(f"pip {version('pip')} downloads gigabytes in a dry run: pip install --upgrade pip")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    triton = next(line for line in (ROOT / "tests/requirements.txt").read_text().splitlines() if "triton>" in line)
    wanted = ["--constraint", "constraints.txt", "torch", "torchvision", triton]
    done = subprocess.run(
        [*command, *wanted], cwd=ROOT, env=bare_environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    would = done.stdout.splitlines()[-1]
    assert "nvidia-" in would
    assert "+cpu" not in would
