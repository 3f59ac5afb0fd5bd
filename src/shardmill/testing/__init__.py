"""A fake task and an in-process engine for testing tasks, and what a plug-in owes: `check_source` and the others.

Write your own task like `FakeTask`, name it `yourmodule:YourTask` in a spec, and run it under `InProcessEngine` to
test it without starting a process. `crash_at` kills a worker at a named step, as `kill -9` would.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, TaskError
from shardmill.ledger import Ledger
from shardmill.tasks.base import START, STOP, WINDOW, Agreement, Combined, Output, Prepared, StreamingTask, Task
from shardmill.tasks.context import Context, LongTask, Stopped
from shardmill.testing.context import FakeCheckpoint, FakeContext
from shardmill.worker import Worker

__all__ = [
    "CHECKPOINT_STEPS",
    "KEEPING_STEPS",
    "STEPS",
    "TABLE_STEPS",
    "FakeCheckpoint",
    "FakeContext",
    "FakeLong",
    "FakeStream",
    "FakeTask",
    "InProcessEngine",
    "check_engine",
    "check_sink",
    "check_source",
    "check_task",
    "check_writer",
    "crash_at",
    "crash_somewhere",
    "fake_vector",
]

if TYPE_CHECKING:
    from shardmill.testing.conformance import check_engine, check_sink, check_source, check_task, check_writer

_END: Any = object()
STEPS = ("claimed", "batch", "staging", "staged", "committing", "committed")
# Additional steps if rows take so long that they are kept before their shard is committed.
KEEPING_STEPS = ("keeping", "kept")
# Additional steps if a task keeps checkpoints.
CHECKPOINT_STEPS = ("checkpointing", "checkpointed")
# Additional steps if the result goes into a table, each once per batch of rows.
TABLE_STEPS = ("batch-begun", "batch-recorded", "batch-written", "batch-committing", "batch-committed")


def __getattr__(name: str) -> Any:
    """The checks of plug-ins are imported when they are used: workers import this module for its tasks."""
    if not name.startswith("check_") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardmill.testing import conformance

    return getattr(conformance, name)


class FakeTask(Task):
    """Makes unit vectors that depend only on the text, without a model. Words in a text trigger faults:

    `!nan` gives a vector that is not finite, `!raise` fails, `!unpreparable` fails earlier, `!kill` kills the process.
    `fits` is the largest batch, in characters, that does not run out of memory. `broken="raise"` or `broken="kill"`
    does so with every text. `window` cuts a text into pieces of that many characters, each with its own vector, or
    with one mean vector if `mean` is set.
    """

    batch_budget = 2048

    def __init__(
        self,
        dims: int = 8,
        fits: int | None = None,
        version: str = "1",
        delay_s: float = 0.0,
        broken: str = "",
        window: int | None = None,
        mean: bool = False,
    ) -> None:
        self.dims = dims
        self.fits = fits
        self.version = version
        self.delay_s = delay_s
        self.broken = broken
        self.window = window
        self.mean = mean
        self._made = pa.schema([pa.field("embedding", pa.list_(pa.float32(), dims))])
        if window and not mean:
            self._made = pa.schema([pa.field(START, pa.int64()), pa.field(STOP, pa.int64()), *self._made])
        self.output = pa.schema([pa.field(WINDOW, pa.int32()), *self._made]) if window and not mean else self._made
        self.unit_norm = not mean

    def fingerprint(self) -> dict[str, str]:
        return {"weights": f"fake-{self.version}"}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        if any(t and "!unpreparable" in t for t in texts):
            raise LookupError("no tokens for this")
        if self.window:
            return self._cut(texts, self.window)
        costs = np.array([len(t) if t else 0 for t in texts], np.int64)
        return Prepared(list(texts), costs, tokens=int(costs.sum()))

    def _cut(self, texts: Sequence[str | None], size: int) -> Prepared:
        cuts = [(i, at) for i, text in enumerate(texts) if text is not None for at in range(0, len(text) or 1, size)]
        inputs = [(at, (texts[i] or "")[at : at + size]) for i, at in cuts]
        costs = np.array([len(piece) for _, piece in inputs], np.int64)
        return Prepared(inputs, costs, tokens=int(costs.sum()), owners=np.array([i for i, _ in cuts], np.int64))

    def combine(self, items: int) -> Combined | None:
        return _FakeMean(items, self.dims) if self.mean else None

    def run(self, inputs: Sequence[Any]) -> Output:
        if not self.window:
            return self._run(inputs)
        output = self._run([piece for _, piece in inputs])
        if self.mean:
            return output
        spans = [pa.array([at for at, _ in inputs]), pa.array([at + len(piece) for at, piece in inputs])]
        return Output(pa.RecordBatch.from_arrays([*spans, *output.rows.columns], schema=self._made), output.bad)

    def _run(self, inputs: Sequence[str]) -> Output:
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
        return Output(pa.RecordBatch.from_arrays([column], names=["embedding"]), bad)

    def embed_query(self, text: str) -> np.ndarray[Any, Any]:
        return fake_vector(text, self.dims)


def fake_vector(text: str, dims: int = 8) -> np.ndarray[Any, Any]:
    """The vector that FakeTask makes for a text.

    >>> bool(abs(np.linalg.norm(fake_vector("a")) - 1) < 1e-6)
    True
    """
    raw = hashlib.shake_128(text.encode("utf-8", "replace")).digest(dims * 2)
    vector = np.frombuffer(raw, np.int16).astype(np.float32) + 0.5
    return vector / np.linalg.norm(vector)


class _FakeMean:
    def __init__(self, items: int, dims: int) -> None:
        self._sums, self._counts = np.zeros((items, dims)), np.zeros((items, 1))

    def add(self, items: np.ndarray[Any, Any], rows: pa.RecordBatch) -> None:
        np.add.at(self._sums, items, np.stack(rows.column("embedding").to_numpy(zero_copy_only=False)))
        np.add.at(self._counts, items, 1)

    def finish(self) -> Output:
        means = (self._sums / np.maximum(1, self._counts)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(means.reshape(-1)), means.shape[1])
        return Output(pa.RecordBatch.from_arrays([column], names=["embedding"]))


class FakeStream(StreamingTask):
    """Answers each text with its words in reverse, one word at a step, so that rows end at different times.

    `seats` is how many run side by side, `fits` how many words do before memory runs out. Words in a text trigger
    faults: `!raise` fails, `!kill` kills the process, `!bad` gives a reason instead of a row. `field` names a column
    whose value is put before the answer.
    """

    output = pa.schema([pa.field("answer", pa.string()), pa.field("finish_reason", pa.string())])
    batch_budget = 1000

    def __init__(self, seats: int = 4, fits: int | None = None, delay_s: float = 0.0, field: str = "") -> None:
        self.seats, self.fits, self.delay_s = seats, fits, delay_s
        self.fields = (field,) if field else ()

    def fingerprint(self) -> dict[str, str]:
        return {"weights": "fake-stream"}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        before = [""] * len(texts) if fields is None else [f"{value}:" for value in fields.column(0).to_pylist()]
        words = [(before[i], (text or "").split()) for i, text in enumerate(texts)]
        costs = np.array([len(each) for _, each in words], np.int64)
        return Prepared(words, costs, tokens=int(costs.sum()))

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        left: dict[int, list[str]] = {}
        rows: dict[int, tuple[str, list[str]]] = {}
        more = True
        while more or rows:
            while more and len(rows) < self.seats:
                given = next(inputs, _END)
                more = given is not _END
                if given is None or given is _END:
                    break
                number, (before, words) = given
                rows[number], left[number] = (before, words), list(words)
            if self.fits is not None and sum(len(words) for _, words in rows.values()) > self.fits:
                raise DeviceOutOfMemory(f"{len(rows)} texts do not fit")
            time.sleep(self.delay_s)
            ended = [number for number in rows if self._step(left[number])]
            if ended:
                yield ended, self._answer([rows.pop(number) for number in ended])

    def _step(self, left: list[str]) -> bool:
        """Take one word; whether it was the last."""
        word = left.pop() if left else ""
        if word == "!kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "!raise":
            raise ValueError("this text is poison")
        return not left

    def _answer(self, rows: list[tuple[str, list[str]]]) -> Output:
        answers = [before + " ".join(reversed(words)) for before, words in rows]
        bad = {i: "the model has no answer" for i, (_, words) in enumerate(rows) if "!bad" in words}
        columns = [pa.array(answers), pa.array(["stop"] * len(rows))]
        return Output(
            pa.RecordBatch.from_arrays(columns, schema=self.output), bad, tokens_out=[len(words) for _, words in rows]
        )

    def agreement(self, precision: str) -> Agreement:
        return "exact"

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        reasons = set(rows.column("finish_reason").drop_null().to_pylist())
        return None if reasons <= {"stop"} else f"unknown reasons {sorted(reasons)}"


class FakeLong(LongTask):
    """Adds up the steps of each item, one after another, as a task that runs for hours does.

    It reports every step, and keeps its sum after every `keep_every` steps. `!raise`, `!nan` and `!kill` in
    `faults`, by item, fail at the step `fault_at`.
    """

    output = pa.schema([pa.field("sum", pa.int64()), pa.field("resumed_at", pa.int64())])

    def __init__(
        self,
        steps: int = 4,
        keep_every: int = 2,
        delay_s: float = 0.0,
        faults: dict[str, str] | None = None,
        fault_at: int = 3,
    ) -> None:
        self.steps, self.keep_every, self.delay_s = steps, keep_every, delay_s
        self.faults, self.fault_at = faults or {}, fault_at

    def fingerprint(self) -> dict[str, str]:
        return {"weights": "fake-long"}

    def open(self, device: Device) -> None:
        pass

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        before = context.checkpoint()
        total = int(json.loads(before.read("state.json"))["sum"]) if before is not None else 0
        first = before.step if before is not None else 0
        for step in range(first + 1, self.steps + 1):
            time.sleep(self.delay_s)
            total += step + int(item["text"])
            if step == self.fault_at:
                self._fail(self.faults.get(item["text"], ""))
            context.report(step, {"sum": total})
            if step % self.keep_every == 0:
                context.keep(step, {"state.json": json.dumps({"sum": total}).encode()})
            if context.should_stop():
                context.keep(step, {"state.json": json.dumps({"sum": total}).encode()})
                raise Stopped
        return {"sum": total, "resumed_at": first}

    def _fail(self, fault: str) -> None:
        if fault == "!kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "!raise":
            raise ValueError("this item is poison")
        if fault == "!nan":
            raise TaskError("the loss is not a number")


class InProcessEngine:
    """Runs workers one after another in this process, visible to a debugger and to coverage."""

    def __init__(self, workers: int = 1, on_step: Callable[[str, int], None] = lambda step, shard: None) -> None:
        self.workers = workers
        self.on_step = on_step

    def start(self, run: str) -> InProcessEngine:
        for _ in range(self.workers):
            worker = Worker(Ledger(run), device=Device("cpu", "cpu"), on_step=self.on_step)
            worker.work()
        return self

    def poll(self) -> bool:
        return False

    def stop(self) -> None:
        pass


def crash_at(step: str, after: int = 0) -> Callable[[str, int], None]:
    """A hook that kills this process, without cleanup, when `step` is reached after `after` earlier times."""
    seen = 0

    def hook(reached: str, shard: int) -> None:
        nonlocal seen
        if reached == step:
            if seen == after:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    return hook


def crash_somewhere(seed: int, steps: Sequence[str] = STEPS) -> Callable[[str, int], None]:
    """A hook that kills this process at a step and a repetition chosen by the seed."""
    choose = random.Random(seed)
    return crash_at(choose.choice(steps), choose.randrange(6))
