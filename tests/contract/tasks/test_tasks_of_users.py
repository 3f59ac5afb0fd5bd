"""The contract of a task: what a class owes, what it may have, and classes that do not inherit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill import make_spec, start
from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, TaskError, UsageError
from shardmill.run import Run
from shardmill.tasks import open_task
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.corpora import fake_rows

Write = Callable[..., Path]
ROWS = fake_rows(60)


def open_named(name: str, params: dict[str, Any]) -> Task:
    permission.allow([name])
    return open_task(name, params)


class Owed:
    """Only what a task owes; inherits nothing."""

    output = pa.schema([pa.field("length", pa.int64())])
    batch_budget = 200

    def fingerprint(self) -> dict[str, str]:
        return {"version": "1"}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        return Prepared(list(texts), np.array([len(t or "") for t in texts], np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        return Output(pa.RecordBatch.from_arrays([pa.array([len(t) for t in inputs])], schema=self.output))


class Inherited(Owed, Task):
    """The same by inheritance."""


class Forgetful(Task):
    """Owes `run` still."""

    fingerprint, open, prepare = Owed.fingerprint, Owed.open, Owed.prepare


class Longest:
    """Takes the longest piece of each item."""

    def __init__(self, items: int) -> None:
        self._longest = np.zeros(items, np.int64)

    def add(self, items: np.ndarray[Any, Any], rows: pa.RecordBatch) -> None:
        np.maximum.at(self._longest, items, rows.column("length").to_numpy())

    def finish(self) -> Output:
        return Output(pa.RecordBatch.from_arrays([pa.array(self._longest)], schema=Owed.output))


class Pieces(Owed):
    """Several inputs per text. `combine` is None, which counts as missing."""

    combine: Any = None

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        pieces = [(i, piece) for i, text in enumerate(texts) for piece in (text or "").split()]
        costs = np.array([len(piece) for _, piece in pieces], np.int64)
        return Prepared([p for _, p in pieces], costs, owners=np.array([i for i, _ in pieces], np.int64))


class Combining(Pieces):
    def combine(self, items: int) -> Longest:
        return Longest(items)


class Everything(Owed):
    """Every optional part but `combine`; inherits nothing, and sets some of them in `open`."""

    output = pa.schema([pa.field("embedding", pa.list_(pa.float32(), 8))])
    padded = False
    unit_norm = True
    begun = 0

    def open(self, device: Device) -> None:
        self.batch_budget = 100
        self.notes = ["Opened."]

    @property
    def device_clock(self) -> dict[str, float]:
        return {"busy_s": float(Everything.begun), "idle_s": 0.5}

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        Everything.begun += 1
        return lambda: self.run(inputs)

    def run(self, inputs: Sequence[Any]) -> Output:
        vectors = pa.array(np.concatenate([fake_vector(text) for text in inputs]))
        return Output(pa.RecordBatch.from_arrays([pa.FixedSizeListArray.from_arrays(vectors, 8)], schema=self.output))

    def workers_per_gpu(self, cores: int) -> int:
        return cores // 2

    def embed_query(self, text: str) -> np.ndarray[Any, Any]:
        return fake_vector(text)


def go(task: type, source: Path, out: Path) -> Run:
    work = {"source": str(source), "text": "text", "id": "id", "task": f"{__name__}:{task.__name__}"}
    return start(make_spec(work, {"shard_bytes": 1_500}), out, engine=InProcessEngine())


def record(run: Run) -> dict[str, Any]:
    (found,) = run.ledger.workers.read()
    return found


@pytest.mark.parametrize("task", [Owed, Inherited])
def test_what_is_owed_is_enough_for_a_whole_run(tmp_path: Path, write_jsonl: Write, task: type) -> None:
    run = go(task, write_jsonl(ROWS), tmp_path / "run")
    assert len(run.plan.shards) > 1
    assert run.table().column("length").to_pylist() == [len(row["text"]) for row in ROWS]
    assert run.verify().verified
    assert (record(run)["notes"], record(run)["device_clock"]) == ([], None)
    with pytest.raises(UsageError, match="cannot be searched"):
        run.search("a text")


@pytest.mark.parametrize("task", [Owed, Inherited])
def test_the_rest_has_defaults(task: type) -> None:
    made = open_named(f"{__name__}:{task.__name__}", {})
    assert isinstance(made, Task)
    assert (made.batch_budget, made.output) == (200, Owed.output)
    assert (made.padded, made.unit_norm, made.device_clock, list(made.notes)) == (True, False, None, [])
    assert made.null_rows_are_answers is False
    assert (made.embed_query, made.combine(3), made.workers_per_gpu(64)) == (None, None, 1)
    assert made.begin(["four"])().rows.column("length").to_pylist() == [4]


def test_optional_parts_of_a_class_that_does_not_inherit_are_used(tmp_path: Path, write_jsonl: Write) -> None:
    Everything.begun = 0
    run = go(Everything, write_jsonl(ROWS), tmp_path / "run")
    said = record(run)
    assert Everything.begun == said["load"]["batches"] > 1
    assert said["notes"] == ["Opened."]
    assert said["device_clock"] == {"busy_s": float(Everything.begun), "idle_s": 0.5}
    assert said["batch_budget"] == 100
    assert said["load"]["padded_tokens"] == sum(len(row["text"]) for row in ROWS)
    assert run.verify().verified
    assert run.search(ROWS[7]["text"], k=1)[0].row == 7
    made = open_named(f"{__name__}:Everything", {})
    assert (made.unit_norm, made.workers_per_gpu(8)) == (True, 4)


def test_inputs_are_combined_by_a_class_that_does_not_inherit(tmp_path: Path, write_jsonl: Write) -> None:
    run = go(Combining, write_jsonl(ROWS), tmp_path / "run")
    assert run.table().column("length").to_pylist() == [max(map(len, row["text"].split())) for row in ROWS]
    assert run.verify().verified


def test_several_inputs_without_combine_are_refused(tmp_path: Path, write_jsonl: Write) -> None:
    with pytest.raises(TaskError, match="does not say how they become rows"):
        go(Pieces, write_jsonl(ROWS), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("Forgetful", {}, "cannot be made: .*abstract.* run"),
        ("Owed", {"scale": 2}, "cannot be made: .*argument"),
        ("Longest", {"items": 1}, "Longest is not a task"),
        ("ROWS", {}, "ROWS is not a task"),
        ("Missing", {}, "cannot be imported"),
    ],
)
def test_what_is_no_task_is_refused(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        open_named(f"{__name__}:{name}", params)


def test_a_part_that_is_owed_and_missing_names_the_class() -> None:
    class Bare:
        fingerprint, open, prepare, run = Owed.fingerprint, Owed.open, Owed.prepare, Owed.run

    globals()["Bare"] = Bare
    with pytest.raises(AttributeError, match="'Bare' object has no attribute 'output'"):
        _ = open_named(f"{__name__}:Bare", {}).output
