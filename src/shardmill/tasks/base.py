"""The contract of a task: what is done to every item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Task(ABC):
    """What is done to every item. Made from its parameters (plain JSON) and opened once in each worker.

    A subclass owes `output`, `batch_budget` and the four abstract methods; the rest has defaults that it may override.
    An attribute may be set on the class, in `__init__` or in `open`, or be a property; `output` is read before `open`.
    A class that does not inherit and has what is owed is given the same defaults by `shardmill.tasks.open_task`.
    """

    output: pa.Schema
    """The columns it adds. With a column `window`, each input gives one row, and the worker fills that column."""

    batch_budget: int
    """How much cost goes into one batch; read after `open`."""

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """What must not change between resumes: the model, the version."""

    @abstractmethod
    def open(self, device: Device) -> None:
        """Load the model; called once in each worker, before `prepare` and `run`."""

    @abstractmethod
    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        """Make texts ready, beside the device on another thread. None is an item without a usable text."""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Output:
        """Run one batch on the device; always called from one thread.

        Raises DeviceOutOfMemory if the batch does not fit, DeviceLost if the device is gone for this process, and
        anything else if a row in it is poison.
        """

    padded: bool = True
    """Whether a batch costs its longest input times their number; if not, it costs the sum of its inputs."""

    unit_norm: bool = False
    """Whether the vectors it makes have length one, which `verify` then checks."""

    notes: Sequence[str] = ()
    """Sentences for the worker's record: how the rows were made."""

    device_clock: Mapping[str, float] | None = None
    """`busy_s` and `idle_s` of the GPU, for the worker's record."""

    embed_query: Callable[[str], NDArray[np.float32]] | None = None
    """A method that gives the vector to search the result with; None if the result cannot be searched."""

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Hand a batch to the device and return a function that waits for its output; by default that one calls `run`.

        A task that overrides this lets the device go on while the next batch is made ready.
        """
        return lambda: self.run(inputs)

    def combine(self, items: int) -> Combined | None:
        """What makes one row per item, for N items whose texts give several inputs; None if each input is a row."""
        return None

    def workers_per_gpu(self, cores: int) -> int:
        """How many workers share one GPU that is fed by this many cores."""
        return 1
