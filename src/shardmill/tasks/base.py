"""The contract of a task: what is done to every item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.devices import Device


@dataclass(frozen=True, slots=True)
class Prepared:
    """Texts made ready for the device: one input a row, what it costs of a batch budget, and rows that cannot be done.

    `tokens` and `truncated` are for the record.
    """

    inputs: Sequence[Any]
    costs: NDArray[np.int64]
    bad: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """One row for each input, in the order of the inputs; `bad` says why a row is null."""

    rows: pa.RecordBatch
    bad: dict[int, str] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """A task is made from its parameters (plain JSON), and `open`ed once in each worker.

    `prepare` runs beside the device on another thread and never touches it. `run` is called from one thread with the
    inputs of one batch; it raises DeviceOutOfMemory when the batch does not fit, DeviceLost when the device is gone for
    this process, and anything else when a row in it is poison.
    """

    batch_budget: int

    @property
    def output(self) -> pa.Schema: ...
    def fingerprint(self) -> dict[str, str]: ...
    def open(self, device: Device) -> None: ...
    def prepare(self, texts: Sequence[str | None]) -> Prepared: ...
    def run(self, inputs: Sequence[Any]) -> Output: ...
