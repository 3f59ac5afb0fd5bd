"""What a machine has, and how workers share it; NVML is a fake here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardmill.core import devices
from shardmill.core.devices import (
    Device,
    cores,
    cpu_model,
    format_cpus,
    gpus,
    near_cpus,
    parse_cpus,
    place_workers,
    share_cores,
    use_first,
)
from shardmill.core.errors import UsageError
from shardmill.plan.spec import Spec
from shardmill.run.planner import devices_for
from tests.support.libraries import needed

UUIDS = ["GPU-aaaa-1111", "GPU-bbbb-2222", "GPU-cccc-3333"]
ADDRESSES: list[str | bytes] = ["00000000:3B:00.0", b"00000000:AF:00.0", "00010000:D8:00.0"]


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "allowed_cpus", lambda: set(range(8)))
    monkeypatch.setattr(devices, "_cgroup_quota", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


FREE = (2 << 30, 70 << 30, 40 << 30)


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An NVML with three GPUs; old versions of it answer in bytes."""
    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle].encode() if handle == 1 else UUIDS[handle],
        nvmlDeviceGetName=lambda handle: f"H{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 << 30, free=FREE[handle]),
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=ADDRESSES[handle]),
        nvmlDeviceGetMigMode=lambda handle: [0, 0],
        NVMLError=RuntimeError,
        ended=0,
    )

    def end() -> None:
        fake.ended += 1

    fake.nvmlShutdown = end
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def sliced_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An NVML with a GPU that is whole, and one in which a container may use two of seven slices."""
    slices = {("big", 2): ("MIG-x", 10, 9), ("big", 5): ("MIG-y", 20, 20)}

    def refused(*_: object) -> Any:
        raise RuntimeError("Insufficient Permissions")

    def slice_of(gpu: str, i: int) -> Any:
        return (gpu, i) if (gpu, i) in slices else refused()

    def memory_of(handle: Any) -> SimpleNamespace:
        if handle == "big":
            refused()
        _, total, free = slices.get(handle, ("", 24, 23))
        return SimpleNamespace(total=total << 30, free=free << 30)

    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: ("plain", "big")[i],
        nvmlDeviceGetUUID=lambda handle: slices[handle][0] if handle in slices else f"GPU-{handle}",
        nvmlDeviceGetName=lambda handle: "NVIDIA H100 MIG 1g.10gb" if handle in slices else "NVIDIA L4",
        nvmlDeviceGetMemoryInfo=memory_of,
        nvmlDeviceGetPciInfo=refused,
        nvmlDeviceGetMigMode=lambda handle: [1, 1] if handle == "big" else refused(),
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=slice_of,
        NVMLError=RuntimeError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fail))


@pytest.fixture
def sys_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A /sys that says which CPUs are near the three GPUs, as far as it is told."""

    def make(*lists: str) -> Path:
        for address, cpus in zip(("0000:3b:00.0", "0000:af:00.0", "10000:d8:00.0"), lists, strict=False):
            folder = tmp_path / "bus/pci/devices" / address
            folder.mkdir(parents=True)
            (folder / "local_cpulist").write_text(cpus + "\n")
        monkeypatch.setattr(devices, "near_cpus", partial(near_cpus, root=tmp_path))
        return tmp_path

    return make


def _visible(found: list[Device]) -> list[str]:
    return [d.visible for d in found]


def test_one_worker_a_gpu_with_its_share_of_the_cores(three_gpus: Any) -> None:
    placed = place_workers()
    assert placed == [Device("cuda", f"H{i}", 2, 80 << 30, str(i)) for i in range(3)]
    assert three_gpus.ended == 1


def test_more_workers_than_gpus_go_round(three_gpus: Any) -> None:
    assert _visible(place_workers("cuda", 5)) == ["0", "1", "2", "0", "1"]


def test_those_that_are_needed_share_what_the_others_would_have_had(three_gpus: Any) -> None:
    placed = place_workers("cuda", 6)
    assert [d.sharing for d in placed] == [2] * 6
    assert use_first(placed, 2) == place_workers("cuda", 2)
    assert use_first(placed, 6) == use_first(placed, 99) == placed
    assert len(use_first(placed, 0)) == 1


def _train_on(device: str, workers: int | None) -> list[Device]:
    params = {"model": "a-model", "columns": ["question", "passage"]}
    work = {"source": ["pairs.jsonl"], "text": "item", "task": "train", "params": params}
    return devices_for(Spec.model_validate({"work": work, "execution": {"device": device, "workers": workers}}))


def test_workers_that_train_together_have_a_gpu_each(three_gpus: Any) -> None:
    for library in ("torch", "transformers", "safetensors"):
        needed(library)
    assert _visible(_train_on("auto", None)) == ["0", "1", "2"]
    assert _visible(_train_on("cuda", 2)) == ["0", "1"]
    with pytest.raises(UsageError, match="4 workers cannot work on one item together on 3 GPUs") as refused:
        _train_on("cuda", 4)
    assert "--workers 3" in str(refused.value.hint)
    with pytest.raises(UsageError, match="on a GPU and on the CPU cannot work on one item together"):
        _train_on("all", 1)


def test_fewer_workers_than_gpus_leave_some_alone(three_gpus: Any) -> None:
    assert _visible(place_workers("auto", 2)) == ["0", "1"]


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        ("2,0", ["2", "0"]),
        ("GPU-bbbb", ["1"]),
        (f"{UUIDS[2]}, 0", ["2", "0"]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("7", []),
    ],
)
def test_cuda_visible_devices_is_respected(
    three_gpus: Any, monkeypatch: pytest.MonkeyPatch, allowed: str, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert _visible(gpus()) == found


def test_hidden_gpus_leave_the_cpu(three_gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert place_workers() == [Device("cpu", "cpu", 8)]


def test_asking_for_the_cpu_leaves_the_gpus_alone(three_gpus: Any) -> None:
    assert place_workers("cpu", 3) == [Device("cpu", "cpu", 2)] * 3


def test_without_a_driver_the_cpu_is_used(no_gpus: None) -> None:
    assert place_workers() == [Device("cpu", "cpu", 8)]


def test_more_workers_than_cores_have_a_thread_each(no_gpus: None) -> None:
    assert place_workers("cpu", 20) == [Device("cpu", "cpu", 1)] * 20


def test_asking_for_a_gpu_that_is_not_there_is_refused(no_gpus: None) -> None:
    with pytest.raises(UsageError, match="No NVIDIA GPU was found"):
        place_workers("cuda")


@pytest.mark.parametrize(("kind", "workers"), [("tpu", None), ("cpu", 0)])
def test_what_cannot_be_placed_is_refused(kind: str, workers: int | None) -> None:
    with pytest.raises(UsageError, match=f"--device: {kind!r}|--workers {workers}"):
        place_workers(kind, workers)


def test_a_container_has_the_cores_of_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cgroup_quota", lambda: 1)
    assert cores() == 1


def test_the_cpu_has_a_name() -> None:
    assert cpu_model().strip()
    assert "\n" not in cpu_model()


@pytest.mark.parametrize("text", ["", "3", "0-7", "0-3,8-11,16", "1,3,5-6"])
def test_lists_of_cpus_go_there_and_back(text: str) -> None:
    assert format_cpus(parse_cpus(text + "\n")) == text


def test_workers_are_near_their_gpu_and_share_its_node(three_gpus: Any, sys_tree: Callable[..., Path]) -> None:
    sys_tree("0-3,16-19", "0-3,16-19", "4-7,20-23")
    placed = place_workers()
    assert [d.cpus for d in placed] == [(0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7)], "of the node, those that are allowed"
    assert [d.threads for d in placed] == [2, 2, 4]
    assert [d.threads for d in place_workers("cuda", 6)] == [1, 1, 2, 1, 1, 2]


def test_workers_share_a_gpu_by_the_cores_of_its_node(three_gpus: Any, sys_tree: Callable[..., Path]) -> None:
    sys_tree("0-3", "0-3", "4-7")
    asked: list[int] = []
    place_workers(per_gpu=lambda cores: asked.append(cores) or 1)
    assert asked == [2]


@pytest.mark.parametrize("near", ["0-7", "0-63", "", "8-15", "many"])
def test_one_node_or_another_or_none_pins_nothing(sys_tree: Callable[..., Path], near: str) -> None:
    assert near_cpus("00000000:3B:00.0", sys_tree(near)) == ()


@pytest.mark.parametrize("address", ["", "N/A", "00000000:AF:00.0"])
def test_a_gpu_that_the_system_does_not_know_is_not_pinned(sys_tree: Callable[..., Path], address: str) -> None:
    assert near_cpus(address, sys_tree("0-3")) == ()


def test_a_driver_that_gives_no_address_pins_nothing(three_gpus: Any, sys_tree: Callable[..., Path]) -> None:
    def refuse(handle: int) -> None:
        raise RuntimeError("Not Supported")

    sys_tree("0-3", "0-3", "4-7")
    three_gpus.nvmlDeviceGetPciInfo = refuse
    assert [d.cpus for d in gpus()] == [(), (), ()]


@pytest.mark.parametrize(
    ("pinned", "quota", "threads"),
    [
        ([(), ()], None, [4, 4]),
        ([(0, 1, 2, 3), ()], None, [2, 6]),
        ([(0, 1, 2, 3), (4, 5, 6, 7)], 4, [2, 2]),
        ([(0, 1, 2, 3)], 2, [2]),
        ([(0,)] * 3, None, [1, 1, 1]),
    ],
)
def test_cores_are_shared_fairly(
    monkeypatch: pytest.MonkeyPatch, pinned: list[tuple[int, ...]], quota: int | None, threads: list[int]
) -> None:
    monkeypatch.setattr(devices, "_cgroup_quota", lambda: quota)
    assert share_cores(pinned) == threads


def _kinds_and_threads(placed: list[Device]) -> list[tuple[str, int]]:
    return [(d.kind, d.threads) for d in placed]


def test_all_places_one_on_the_cores_that_gpus_leave(three_gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "allowed_cpus", lambda: set(range(32)))
    assert _kinds_and_threads(place_workers("all")) == [("cuda", 4)] * 3 + [("cpu", 20)]
    assert _kinds_and_threads(place_workers("all", 12)) == [("cuda", 2)] * 12 + [("cpu", 8)], "8 cores feed a GPU"
    assert _kinds_and_threads(place_workers("all", 1)) == [("cuda", 4), ("cpu", 28)]


def test_all_places_none_on_the_cpu_when_the_gpus_need_it(three_gpus: Any) -> None:
    assert place_workers("all", 8) == place_workers("cuda", 8)


def test_all_without_a_gpu_is_the_cpu(no_gpus: None) -> None:
    assert place_workers("all", 2) == [Device("cpu", "cpu", 4)] * 2


PINNED = """
import json, os, threading
resting = threading.Event()
threading.Thread(target=resting.wait, daemon=True).start()
from shardmill.core.devices import cores, pin
kept = pin([CPU])
threads = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
print(json.dumps([kept, threads, cores(), pin([4000]), pin([])]))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins nothing")
def test_a_process_is_kept_to_its_cpus_with_all_its_threads() -> None:
    cpu = max(os.sched_getaffinity(0))
    said = subprocess.run(
        [sys.executable, "-c", PINNED.replace("CPU", str(cpu))], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(said) == [[cpu], [[cpu], [cpu]], 1, [], []]


def test_one_process_takes_the_gpu_with_the_most_free_memory(
    three_gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    picked = devices.pick_device(32 << 30, precise=True)
    assert (picked.kind, picked.name, picked.index, picked.precise) == ("cuda", "H1", 1, True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    picked = devices.pick_device(32 << 30, precise=False)
    assert (picked.name, picked.index, picked.precise) == ("H2", 1, False)


@pytest.mark.parametrize("need_bytes", [70 << 30, 67 << 30, None])
def test_one_process_takes_the_cpu_if_no_gpu_has_room(
    three_gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, need_bytes: int | None
) -> None:
    """The weights must leave room for a batch; a task that says nothing of GPUs gets none."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    picked = devices.pick_device(need_bytes, precise=False)
    assert (picked.kind, picked.name, picked.index, picked.precise) == ("cpu", "the CPU", 0, True)


def test_one_process_takes_the_cpu_without_a_gpu(no_gpus: None) -> None:
    assert devices.pick_device(1, precise=True).kind == "cpu"


def test_a_worker_that_nobody_placed_picks_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    found = [Device("cuda", "T4", visible=str(i), free_bytes=free << 30) for i, free in enumerate((3, 9, 7))]
    monkeypatch.setattr(devices, "gpus", lambda: found)
    for kind, need_bytes, picked in (
        ("auto", 4 << 30, ("cuda", "T4", 1)),
        ("auto", 6 << 30, ("cpu", "cpu", 0)),
        ("cuda", 6 << 30, ("cuda", "T4", 1)),
        ("cpu", 0, ("cpu", "cpu", 0)),
    ):
        device = devices.pick_worker_device(kind, need_bytes)
        assert (device.kind, device.name, device.index) == picked
        assert not device.precise
    with pytest.raises(UsageError, match="one device"):
        devices.pick_worker_device("all", 0)


def test_a_divided_gpu_is_its_slices(sliced_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(gpu.name, gpu.visible, gpu.memory_bytes >> 30) for gpu in gpus()]
    assert found == [
        ("NVIDIA L4", "0", 24),
        ("NVIDIA H100 MIG 1g.10gb", "MIG-x", 10),
        ("NVIDIA H100 MIG 1g.10gb", "MIG-y", 20),
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-y")
    assert [gpu.visible for gpu in gpus()] == ["MIG-y"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.visible for gpu in gpus()] == ["MIG-x"]
    assert [device.visible for device in place_workers("cuda", 1)] == ["MIG-x"]


def test_a_process_on_a_slice_sees_that_one_alone(sliced_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x,MIG-y")
    picked = devices.pick_device(0, precise=False)
    assert (picked.visible, picked.index, picked.memory_bytes >> 30) == ("MIG-y", 0, 20)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-y"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x,MIG-y")
    chosen = devices.pick_worker_device("cuda:1", 0)
    assert (chosen.visible, chosen.index) == ("MIG-y", 0)
