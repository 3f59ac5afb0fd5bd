"""Tasks that run for hours on one item: what they get of their run, and what they owe it.

Design: docs/design/training-and-studies.md
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shardmill.core.errors import TaskError
from shardmill.tasks.base import Agreement, Output, Prepared, Task

# The key of an item's text beside the columns that the task names in `fields`.
TEXT = "text"


class Stopped(Exception):
    """Work ends here, unfinished: it was asked to stop, and goes on later from its last checkpoint."""


class Checkpoint(Protocol):
    """What an attempt at an item kept last, whole: files by name."""

    @property
    def step(self) -> int: ...
    @property
    def names(self) -> Sequence[str]: ...
    def read(self, name: str) -> bytes:
        """The content of one file."""
        ...

    def fetch(self, folder: Path) -> None:
        """Write all files into a folder."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that work on an item together, until one is lost or others want to join.

    Process 0 is at `address`, where it has a `listener`; the others have none. After `timeout_s` without an answer a
    process counts as lost.
    """

    rank: int
    size: int
    address: str
    generation: int
    timeout_s: float
    current: Callable[[], bool]
    wait_lost: Callable[[float], bool]
    listener: socket | None = None

    @classmethod
    def alone(cls) -> Group:
        """A group of one, which nobody joins."""
        return cls(0, 1, "", 0, 0.0, lambda: True, lambda seconds: False)

    def is_current(self) -> bool:
        """Whether to go on together. If not, keep a checkpoint if all can, leave, and join the next group."""
        return self.current()

    def is_lost(self) -> bool:
        """Whether another process is gone, after an error that may come from that; waits up to `timeout_s` for it."""
        return self.size > 1 and self.wait_lost(self.timeout_s)


class Context(Protocol):
    """What a task that runs for hours has of its run: for one item, while it is worked on."""

    @property
    def shard(self) -> int:
        """The number of the item's shard."""
        ...

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Say how far the item is. A bounded number of reports is kept in the run folder; each counts as progress."""
        ...

    def checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint of this item, of this attempt or an earlier one; None if there is none."""
        ...

    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> None:
        """Make these files the item's checkpoint, all of them or none; the one before it stays until the next one.

        It counts as progress. If its step is higher than before, deaths no longer count against the item. Files
        are safetensors, JSON and text. Raises Stopped if another worker has the item now.
        """
        ...

    def publish(self, folder: Path) -> None:
        """Copy a folder of a model into the run's `model`, for others to load. Raises Stopped as `keep` does."""
        ...

    def join(self) -> AbstractContextManager[Group]:
        """Work on the item in a group with other workers, if the task is a `gang`; else alone.

        Waits until there are enough. Raises Stopped if it is asked to stop meanwhile.
        """
        ...

    def should_stop(self) -> bool:
        """Whether to keep what there is and raise Stopped: the run or worker is stopped, or another has the item."""
        ...


class LongTask(Task):
    """A task that works on one item for long. A subclass defines `output`, `fingerprint`, `open` and `work`.

    Its worker holds one shard at a time, and no other repeats that shard beside it. It is not stuck as long as it
    reports or keeps within `stuck_s`. `verify` does not compute its rows again.
    """

    batch_budget = 1
    padded = False
    one_shard = True
    max_errors = "50%"
    few_rows = 10

    metrics: tuple[str, ...] | None = None
    """The names under which its row may say, in `metric` and `best`, what it measured; None if it does not tell."""

    gang: bool = False
    """Whether workers without an item help another with its own: `work` calls `context.join()`."""

    @abstractmethod
    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        """Work on one item, its text and the columns in `fields`, and return the row of the task's columns.

        Goes on from `context.checkpoint()`, if there is one. Raises TaskError to set the item aside with that reason,
        as any error of its own does, and Stopped once `context.should_stop()`.
        """

    def probe(self) -> None:
        """Check the device before an item that killed workers is tried again; by default nothing is checked."""

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        rows = [{} for _ in texts] if fields is None else fields.to_pylist()
        items = [{TEXT: text, **row} for text, row in zip(texts, rows, strict=True)]
        return Prepared(items, np.ones(len(items), np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        raise TaskError("A task that runs for hours works in a worker only.", hint="Call `work` with a context.")

    def bytes_per_s(self, kind: str) -> float:
        return 1.0

    def agreement(self, precision: str) -> Agreement:
        return "none"
