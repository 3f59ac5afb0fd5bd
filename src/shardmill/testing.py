"""A fake task and an in-process engine: for our own tests, and for yours.

Write a task of your own like `FakeTask`, name it `yourmodule:YourTask` in a spec, and run it under `InProcessEngine` to
test it without starting a process. `crash_at` kills a worker at a named step, as `kill -9` would.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.devices import Device
from shardmill.errors import DeviceOutOfMemory
from shardmill.ledger import Ledger
from shardmill.tasks.base import Output, Prepared
from shardmill.worker import Worker

STEPS = ("claimed", "batch", "staging", "staged", "committing", "committed")


class FakeTask:
    """Unit vectors that depend on the text alone, made without a model. Words in a text make it misbehave:

    `!nan` gives a vector that is not finite, `!raise` fails, `!unpreparable` fails earlier, `!kill` kills the process.
    `fits` is the largest batch, in characters, that does not run out of memory. A task that is `broken` by "raise" or
    "kill" does that with every text.
    """

    batch_budget = 2048

    def __init__(
        self, dims: int = 8, fits: int | None = None, version: str = "1", delay_s: float = 0.0, broken: str = ""
    ) -> None:
        self.dims = dims
        self.fits = fits
        self.version = version
        self.delay_s = delay_s
        self.broken = broken
        self.output = pa.schema([pa.field("embedding", pa.list_(pa.float32(), dims))])
        self.unit_norm = True

    def fingerprint(self) -> dict[str, str]:
        return {"weights": f"fake-{self.version}"}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        if any(t and "!unpreparable" in t for t in texts):
            raise LookupError("no tokens for this")
        costs = np.array([len(t) if t else 0 for t in texts], np.int64)
        return Prepared(list(texts), costs, tokens=int(costs.sum()))

    def run(self, inputs: Sequence[Any]) -> Output:
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.fits is not None and len(inputs) * max(len(t) for t in inputs) > self.fits:
            raise DeviceOutOfMemory(f"{len(inputs)} texts do not fit")
        bad = {}
        vectors = np.stack([fake_vector(t, self.dims) for t in inputs])
        for i, text in enumerate(inputs):
            if "!kill" in text or self.broken == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if "!raise" in text or self.broken == "raise":
                raise ValueError("this text is poison")
            if "!nan" in text:
                bad[i] = "the model gave NaN or infinity for this text"
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dims)
        return Output(pa.RecordBatch.from_arrays([column], schema=self.output), bad)

    def embed_query(self, text: str) -> np.ndarray[Any, Any]:
        return fake_vector(text, self.dims)


def fake_vector(text: str, dims: int = 8) -> np.ndarray[Any, Any]:
    """The vector FakeTask gives a text.

    >>> bool(abs(np.linalg.norm(fake_vector("a")) - 1) < 1e-6)
    True
    """
    raw = hashlib.shake_128(text.encode("utf-8", "replace")).digest(dims * 2)
    vector = np.frombuffer(raw, np.int16).astype(np.float32) + 0.5
    return vector / np.linalg.norm(vector)


class InProcessEngine:
    """Runs one worker after another in this process, so that a debugger and coverage see it."""

    def __init__(self, workers: int = 1, on_step: Callable[[str, int], None] = lambda step, shard: None) -> None:
        self.workers = workers
        self.on_step = on_step

    def start(self, run: str) -> InProcessEngine:
        for i in range(self.workers):
            worker = Worker(Ledger(run), device=Device("cpu", "cpu"), name=f"in-process-{i}", on_step=self.on_step)
            worker.work()
        return self

    def poll(self) -> bool:
        return False

    def stop(self) -> None:
        pass


def crash_at(step: str, after: int = 0) -> Callable[[str, int], None]:
    """A hook that kills this process, with no chance to clean up, the next time `step` is reached after so many."""
    seen = 0

    def hook(reached: str, shard: int) -> None:
        nonlocal seen
        if reached == step:
            if seen == after:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    return hook


def crash_somewhere(seed: int) -> Callable[[str, int], None]:
    """A hook that kills this process at a step and a moment chosen by the seed."""
    choose = random.Random(seed)
    return crash_at(choose.choice(STEPS), choose.randrange(6))
