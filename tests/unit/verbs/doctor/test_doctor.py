"""`shardmill doctor`: what this machine really has, and what other machines would be told."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shardmill.core.extras import EXTRA_OF
from shardmill.plugins import Plugin
from shardmill.verbs.doctor import checks
from shardmill.verbs.doctor import machine as facts
from shardmill.verbs.doctor.checks import Finding, examine
from shardmill.verbs.doctor.machine import MachineFacts, Nvidia, Torch, look
from tests.support.cli import Cli

EMBED, LIGHT = "pip install 'shardmill[embed]'", "pip install 'shardmill[light]'"
L4 = Nvidia(("NVIDIA L4, 22 GiB",), "580.65.06", (13, 0), 1)
MODEL_PACKAGES = {"transformers": "5.0", "safetensors": "0.8", "tokenizers": "0.23"}


@pytest.fixture
def machine(tmp_path: Path) -> MachineFacts:
    """A machine with a GPU, where nothing is wrong."""
    return MachineFacts(
        python="3.11.7",
        packages={**MODEL_PACKAGES, "torch": "2.13.0"},
        torch=Torch("2.13.0", "12.8"),
        nvidia=L4,
        hidden_gpus=False,
        memory_bytes=32 << 30,
        free_memory_bytes=16 << 30,
        cpu="a CPU",
        cores=4,
        all_cores=8,
        numa_nodes=2,
        places={"here": tmp_path, "cache": tmp_path / "cache", "models": tmp_path / "hub"},
        commands=frozenset({"apt-get"}),
        kubeconfig="",
    )


@pytest.fixture(autouse=True)
def much_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100 << 30})
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda place: usage)


def finding(machine: MachineFacts, name: str) -> Finding:
    return next(each for each in examine(machine) if each.name == name)


def test_a_machine_that_is_fine_needs_no_repair(machine: MachineFacts) -> None:
    found = list(examine(machine))
    assert not [each for each in found if each.state == "wrong"]
    assert finding(machine, "gpu").seen == "NVIDIA L4, 22 GiB; driver 580.65.06 runs CUDA 13.0"
    assert finding(machine, "torch").seen == "2.13.0, for CUDA 12.8"
    assert finding(machine, "cores").seen == "4 of 8, a CPU"
    assert finding(machine, "numa").seen == "2 nodes"


BARE: dict[str, Any] = {"torch": None, "packages": {}}
FAULTS = {
    "no torch, no OpenVINO": ({**BARE, "nvidia": Nvidia()}, "torch", "no model runs", LIGHT),
    "no torch, a GPU": (BARE, "torch", "not installed, and there is a GPU: no model runs", EMBED),
    "no torch, a GPU, OpenVINO": (
        {**BARE, "packages": {"openvino": "2026.4"}},
        "torch",
        "only the CPU is used, by OpenVINO 2026.4",
        EMBED,
    ),
    "torch for CPUs, a GPU": (
        {"torch": Torch("2.13.0+cpu", "")},
        "torch",
        "2.13.0+cpu is built for CPUs, and there is a GPU",
        f"pip uninstall --yes torch && {EMBED}",
    ),
    "torch alone": ({"packages": {"torch": "2.13.0"}}, "torch", "2.13.0 without transformers", EMBED),
    "an old driver": (
        {"nvidia": replace(L4, driver="470.82.01", cuda=(11, 4))},
        "gpu",
        "driver 470.82.01 runs CUDA 11.4, and torch is built for CUDA 12.8",
        "sudo apt-get install nvidia-driver-525 && sudo reboot",
    ),
    "an old driver, dnf": (
        {"nvidia": replace(L4, cuda=(11, 4)), "commands": frozenset({"dnf"})},
        "gpu",
        "is built for CUDA 12.8",
        "sudo dnf install cuda-drivers && sudo reboot",
    ),
    "a card, no driver": ({"nvidia": Nvidia(cards=2)}, "gpu", "2 NVIDIA cards on the bus", "sudo apt-get install"),
    "little memory": ({"free_memory_bytes": 1 << 20}, "memory", "too little", "ps "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_command(machine: MachineFacts, fault: str) -> None:
    changed, name, seen, fix = FAULTS[fault]
    found = finding(replace(machine, **changed), name)
    assert found.state == "wrong"
    assert seen in found.seen
    assert found.fix.startswith(fix)


def test_what_is_absent_without_harm_is_no_fault(machine: MachineFacts) -> None:
    light = replace(machine, torch=None, packages={"openvino": "2026.4"}, nvidia=Nvidia())
    assert {each.name for each in examine(light) if each.state == "absent"} == {"torch", "gpu", "extras"}
    assert not [each for each in examine(light) if each.state == "wrong"]
    hidden = finding(replace(machine, hidden_gpus=True), "gpu")
    assert (hidden.state, hidden.fix) == ("absent", "unset CUDA_VISIBLE_DEVICES")
    newer = finding(replace(machine, nvidia=replace(L4, cuda=(12, 2))), "gpu")
    assert newer.state == "ok", "a driver runs all that is built for its major number"


def test_extras_that_are_whole_are_listed(machine: MachineFacts) -> None:
    every = replace(machine, packages=dict.fromkeys(EXTRA_OF, "1"))
    assert finding(every, "extras").state == "ok"
    without = replace(machine, packages={name: "1" for name in EXTRA_OF if name != "numba"})
    assert finding(without, "extras").seen.endswith("not installed: map")


def test_a_cache_that_cannot_be_written_is_told(
    shardmill: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    said = shardmill("doctor", "--json")
    assert said.status == 1
    found = {each["name"]: each for each in json.loads(said.out)["findings"]}
    for name in ("cache", "models"):
        assert found[name]["state"] == "wrong"
        assert "cannot be written" in found[name]["seen"]
        assert found[name]["fix"] == 'export XDG_CACHE_HOME="$PWD/.cache"'


def test_little_disk_is_told(machine: MachineFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1 << 20}))
    assert finding(machine, "here").state == "wrong"
    assert finding(machine, "here").fix.startswith("du -xh ")


def test_a_cluster_and_plug_ins(machine: MachineFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(machine, "cluster").seen == "local"
    packages = {"asyncssh": "2", "lightkube": "1", **machine.packages}
    named = replace(machine, kubeconfig="~/.kube/config", commands=frozenset({"sbatch"}), packages=packages)
    assert finding(named, "cluster").seen == "local, ssh, slurm, kubernetes (~/.kube/config)"
    without = finding(replace(machine, kubeconfig="in a pod"), "cluster")
    assert without.fix == "pip install 'shardmill[kubernetes]'"
    broken = Plugin("sinks", "mine", "nowhere:SINK", package="of-mine", version="1.0")
    monkeypatch.setattr(checks, "installed", lambda: [broken])
    found = finding(machine, "plug-ins")
    assert (found.state, found.fix) == ("wrong", "pip install --upgrade of-mine")
    assert "of-mine 1.0: " in found.seen


def test_the_facts_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look()
    assert sys.executable in found.python
    assert found.memory_bytes > found.free_memory_bytes > 0
    assert 1 <= found.cores <= found.all_cores
    assert "pyarrow" in found.packages
    assert (found.torch is None) == ("torch" not in found.packages)
    if found.torch is not None:
        assert found.torch.version.partition("+")[0] == found.packages["torch"].partition("+")[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert look().hidden_gpus


def test_places_are_looked_at(shardmill: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = shardmill("doctor", tmp_path / "runs" / "new", "memory://bucket", tmp_path / "file" / "x", "--json")
    found = [each for each in json.loads(said.out)["findings"] if each["name"] == "store"]
    assert [each["state"] for each in found] == ["ok", "ok", "wrong"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert said.status == 1


def test_a_database_that_does_not_answer_is_told(shardmill: Cli) -> None:
    said = shardmill("doctor", "postgresql://ann:secret@127.0.0.1:1/none")
    assert said.status == 1
    assert "FAIL database   postgresql://ann@127.0.0.1:1/none" in said.out
    assert "secret" not in said.out + said.err


def test_the_screen_ends_with_the_count(shardmill: Cli, machine: MachineFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.verbs.doctor.start.look", lambda: machine)
    said = shardmill("doctor")
    assert said.status == 0
    assert said.out.endswith("All is fine.\n")
    monkeypatch.setattr("shardmill.verbs.doctor.start.look", lambda: replace(machine, torch=Torch("2.13.0+cpu", "")))
    said = shardmill("doctor")
    assert said.status == 1
    assert f"\n{'':<18}pip uninstall --yes torch && {EMBED}\n" in said.out
    assert said.out.endswith("1 thing to repair.\n")


BUILDS = {"cuda: Optional[str] = '12.8'": "12.8", "cuda = '13.0'": "13.0", "cuda: Optional[str] = None": ""}


@pytest.mark.parametrize("line", BUILDS)
def test_the_build_of_torch_is_read_without_importing_it(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"from typing import Optional\n__version__ = '2.13.0'\n{line}\n")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(facts, "find_spec", lambda name: spec)
    assert look().torch == Torch("2.13.0", BUILDS[line])


def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver as NVML describes it, and one that does not answer."""
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda number: number
    nvml.nvmlDeviceGetName = lambda gpu: b"NVIDIA L4"
    nvml.nvmlDeviceGetMemoryInfo = lambda gpu: SimpleNamespace(total=22 << 30)
    nvml.nvmlSystemGetCudaDriverVersion = lambda: 12080
    nvml.nvmlSystemGetDriverVersion = lambda: "570.1"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(facts, "_cards", lambda: 2)
    assert look().nvidia == Nvidia(("NVIDIA L4, 22 GiB",) * 2, "570.1", (12, 8), 2)

    def fail() -> None:
        raise nvml.NVMLError("Driver Not Loaded")

    nvml.nvmlInit = fail
    assert look().nvidia == Nvidia(cards=2)
