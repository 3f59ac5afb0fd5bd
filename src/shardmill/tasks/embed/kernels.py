"""The ways a model can be run on a device, and which of them is chosen: the fastest that gives the right vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.devices import Device
from shardmill.errors import MissingExtra, ModelError
from shardmill.tasks.embed.encoder import Encoder
from shardmill.tasks.embed.folder import ModelFolder
from shardmill.tasks.embed.golden import agree
from shardmill.tasks.embed.packed import PackedEncoder

Rows = Sequence[NDArray[np.int32]]

# Padded tokens on a CPU, where caches are small; tokens on a GPU, where fewer leave it waiting for the next batch.
_CPU_BUDGET_TOKENS = 1024
_PADDED_BUDGET_TOKENS = 32768
_PACKED_BUDGET_TOKENS = 65536
_TIMED_RUNS = 3


class Kernel(Protocol):
    """Ids -> vectors. `name` says how, `precise` whether in float32, `padded` whether to the longest of a batch."""

    padded: bool

    @property
    def name(self) -> str: ...
    @property
    def precise(self) -> bool: ...
    def encode(self, rows: Rows, skip: int = 0) -> NDArray[np.float32]: ...
    def begin(self, rows: Rows, skip: int = 0) -> Callable[[], NDArray[np.float32]]: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that was chosen, why, and how much goes into a batch of it."""

    kernel: Kernel
    why: str
    batch_budget: int


def plain_kernel(folder: ModelFolder, device: Device, pad_id: int) -> Encoder:
    """float32 and plain attention: slow, and what the others are held against."""
    return Encoder(folder, device=_torch_device(device), pad_id=pad_id, attention="eager")


def choose_kernel(folder: ModelFolder, device: Device, *, pad_id: int, golden: Rows, skip: int) -> Choice:
    """Try the kernels for this device on the golden sentences; take the fastest of those that agree with float32."""
    reference = Encoder(folder, device=_torch_device(device), pad_id=pad_id)
    expected = np.concatenate([reference.encode([row], skip) for row in golden])
    if not np.isfinite(expected).all():
        raise ModelError(f"{folder.transformer.name} gives NaN or infinity in float32.", hint="Fetch the model again.")
    if device.precise:
        return Choice(reference, f"{reference.name} (as asked)", _budget(reference, device))
    refused: list[str] = []
    right: list[tuple[float, int, Kernel]] = []
    candidates = _gpu_kernels if device.kind == "cuda" else _cpu_kernels
    for order, kernel in enumerate(candidates(folder, device, pad_id, reference, refused)):
        if agree(kernel.encode(golden, skip), expected):
            right.append((_time(kernel, golden, skip) if device.kind == "cpu" else order, order, kernel))
        else:
            refused.append(f"{kernel.name} gave other vectors")
        if right and device.kind == "cuda":
            break
    if not right:
        right.append((0.0, 0, plain_kernel(folder, device, pad_id)))
    kernel = min(right)[2]
    others = [k.name for _, _, k in right if k is not kernel]
    why = "; ".join([*([f"faster than {', '.join(others)}"] if others else []), *refused])
    return Choice(kernel, f"{kernel.name}{f' ({why})' if why else ''}", _budget(kernel, device))


def _gpu_kernels(
    folder: ModelFolder, device: Device, pad_id: int, reference: Encoder, refused: list[str]
) -> Iterator[Kernel]:
    """Packed where the chip has the kernel for it, else padded; in half precision both."""
    bf16 = "bfloat16" in (folder.config.get("dtype"), folder.config.get("torch_dtype"))
    dtype = torch.bfloat16 if bf16 and torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    if torch.cuda.get_device_capability() >= (8, 0):
        try:
            packed = PackedEncoder(folder, device=_torch_device(device), pad_id=pad_id)
            packed.cast(dtype)
            packed.encode([np.array([pad_id], np.int32)])
            yield packed
        except (ModelError, ImportError, LookupError, TypeError, ValueError, RuntimeError) as error:
            refused.append(f"it does not run packed: {type(error).__name__}")
    reference.cast(dtype)
    yield reference


def _cpu_kernels(
    folder: ModelFolder, device: Device, pad_id: int, reference: Encoder, refused: list[str]
) -> Iterator[Kernel]:
    """torch, and OpenVINO where it is installed, in what this CPU computes fast."""
    yield reference
    try:
        from shardmill.tasks.embed.openvino import OpenVinoEncoder, precisions

        fast = precisions()[:1]
    except (ImportError, MissingExtra):
        return
    for precision in fast:
        try:
            yield OpenVinoEncoder(folder, pad_id=pad_id, threads=device.threads, precision=precision)
        except ModelError as error:
            refused.append(error.message)


def _time(kernel: Kernel, golden: Rows, skip: int) -> float:
    """Seconds for a batch as full as those to come; the first run, in which shapes are compiled, does not count."""
    middle = sorted(golden, key=len)[len(golden) // 2]
    batch = [middle] * max(1, _CPU_BUDGET_TOKENS // len(middle))
    took = []
    for _ in range(_TIMED_RUNS):
        began = time.perf_counter()
        kernel.encode(batch, skip)
        took.append(time.perf_counter() - began)
    return min(took)


def _budget(kernel: Kernel, device: Device) -> int:
    if device.kind == "cpu":
        return _CPU_BUDGET_TOKENS
    return _PADDED_BUDGET_TOKENS if kernel.padded else _PACKED_BUDGET_TOKENS


def _torch_device(device: Device) -> str:
    return "cuda:0" if device.kind == "cuda" else "cpu"
