"""The contract of a task: what is done to every item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.devices import Device
from shardmill.plan import START, STOP, WINDOW

__all__ = ["START", "STOP", "WINDOW", "Combined", "Output", "Prepared", "Task"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Texts made ready for the device: inputs, what each costs of a batch budget, and texts that cannot be done.

    `inputs` is a sequence, of which `run` gets lists, or an array, of which it gets arrays. There is one input a text,
    or as many as it takes: then `owners` has the text of each input, in order, and a text that is None or bad has none.
    `tokens` and `truncated` are for the record.
    """

    inputs: Any
    costs: NDArray[np.int64]
    bad: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    truncated: int = 0
    owners: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One row for each input, in the order of the inputs; `bad` says why a row is null."""

    rows: pa.RecordBatch
    bad: dict[int, str] = field(default_factory=dict)


class Combined(Protocol):
    """Makes one row an item of the rows of its inputs, which come in any order and in several batches."""

    def add(self, items: NDArray[np.int64], rows: pa.RecordBatch) -> None: ...
    def finish(self) -> Output: ...


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
