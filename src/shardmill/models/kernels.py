"""What a kernel is, what it is tried with, and OpenVINO's kernels on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.folder import ModelFolder, Pooling
from shardmill.models.golden import reach_past_window
from shardmill.models.window import find_window

Rows = Sequence[NDArray[np.int32]]

# Padded tokens per batch on a CPU, where caches are small: the smallest that is as fast as the others is used. For a
# kernel that cuts batches itself it is the largest.
CPU_BUDGETS_TOKENS = (1024, 2048, 4096)
# On a CPU, loading torch beside OpenVINO and timing both takes some ten seconds.
TRY_TORCH_FROM_BYTES = 8 << 20
_TIMED_RUNS = 5
_TYPICAL_TOKENS = 128
_LONG_RUN_S = 0.5
_WORTH_IT = 0.97


class Kernel(Protocol):
    """Ids -> vectors. `name` describes it; `padded` means rows padded to a batch's longest.

    One that `cuts` a batch into pieces is as fast with any large one.
    """

    padded: bool
    cuts: bool

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> str: ...
    def encode(self, rows: Rows, skip: int = 0) -> NDArray[np.float32]: ...
    def begin(self, rows: Rows, skip: int = 0) -> Callable[[], NDArray[np.float32]]: ...
    def pooled_by(self, pooling: Pooling) -> Kernel: ...


@dataclass(frozen=True, slots=True)
class Tried:
    """What is tried: a folder, its padding id, the most tokens of a text, and golden sentences.

    The first `skip` tokens of each sentence belong to the prompt. `precision` is what the work asks for, "" if any
    that agrees with float32 will do.
    """

    folder: ModelFolder
    pad_id: int
    limit: int | None
    golden: Rows
    skip: int
    precision: str = ""

    def reaching(self) -> Tried:
        """With a golden row that reaches past the windows of the model's layers, if it has any."""
        window = find_window({**self.folder.config, **self.folder.config_options})
        golden = reach_past_window(self.golden, window, self.limit)
        return replace(self, golden=golden)

    @property
    def typical(self) -> NDArray[np.int32]:
        """A row of a usual length."""
        return np.resize(max(self.golden, key=len), min(self.limit or _TYPICAL_TOKENS, _TYPICAL_TOKENS))


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The chosen kernel, the reason, and its batch budget."""

    kernel: Kernel
    why: str
    batch_budget: int


def fast_precisions(device: Device) -> Sequence[str]:
    """The precisions of OpenVINO that are fast on this CPU, the fastest first, or float32 if that is asked for."""
    from shardmill.models.openvino import precisions

    return precisions()[-1 if device.precise else 0 :]


def openvino_kernels(model: Tried, device: Device, why: list[str]) -> Iterator[Kernel]:
    """OpenVINO in its precisions on this CPU; why one cannot run is added to `why`."""
    for precision in fast_precisions(device):
        try:
            yield open_openvino(model, device, precision)
        except ModelError as error:
            why.append(error.message.rstrip("."))


def open_openvino(model: Tried, device: Device, precision: str, *, tried: bool = False) -> Kernel:
    from shardmill.models.openvino import OpenVinoEncoder

    return OpenVinoEncoder(
        model.folder,
        pad_id=model.pad_id,
        limit=model.limit,
        threads=device.threads,
        precision=precision,
        tried=tried,
    )


def tell(kernel: Kernel, why: Sequence[str]) -> str:
    """A kernel's name, and why no other was chosen."""
    return f"{kernel.name} ({'; '.join(why)})" if why else kernel.name


def time_kernel(kernel: Kernel, model: Tried) -> tuple[float, int]:
    """Seconds per token, and the batch budget that reaches that speed."""
    took: dict[int, float] = {}
    for budget in CPU_BUDGETS_TOKENS[-1:] if kernel.cuts else CPU_BUDGETS_TOKENS:
        if took and min(took.values()) * budget > _LONG_RUN_S:
            break
        took[budget] = _time_batch(kernel, model, budget)
    fastest = min(took.values())
    chosen = min(budget for budget, token_s in took.items() if token_s * _WORTH_IT <= fastest)
    return took[chosen], chosen


def _time_batch(kernel: Kernel, model: Tried, budget: int) -> float:
    """Seconds per token for full batches; the first run, which may compile for the shape, does not count."""
    typical = model.typical
    batch = [typical] * (budget // len(typical))
    took = []
    for _ in range(_TIMED_RUNS):
        began = time.perf_counter()
        kernel.encode(batch, model.skip)
        took.append(time.perf_counter() - began)
    return min(took[1:]) / (len(batch) * len(typical))
