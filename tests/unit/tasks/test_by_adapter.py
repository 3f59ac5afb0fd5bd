"""Items that name their adapter: inputs go to its task, rows come back in order, in batches, lists and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.tasks.base import Output, Prepared, StreamingTask, Task
from shardmill.tasks.by_adapter import MOST_ADAPTERS, ByAdapter, any_adapter

SCHEMA = pa.schema([pa.field("said", pa.string())])


class Spelling(Task):
    """Says of each character which adapter read it; digits fail when they are prepared, "!" when it runs."""

    output, batch_budget = SCHEMA, 100

    def __init__(self, adapter: str) -> None:
        self.name = Path(adapter).name

    def fingerprint(self) -> dict[str, str]:
        return {"model": "spelling", "adapter": f"digest of {self.name}"}

    def open(self, device: Device) -> None:
        self.sharing = device.sharing

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        bad = {i: "a digit" for i, text in enumerate(texts) if text is not None and text.isdigit()}
        there = [(i, c) for i, text in enumerate(texts) if text is not None and i not in bad for c in text]
        owners = np.array([i for i, _ in there], np.int64)
        return Prepared([c for _, c in there], np.ones(len(there), np.int64), bad, len(there), owners=owners)

    def run(self, inputs: Sequence[Any]) -> Output:
        rows = pa.record_batch([pa.array([f"{self.name}:{c}" for c in inputs], pa.string())], schema=SCHEMA)
        return Output(
            rows, {i: "a mark" for i, c in enumerate(inputs) if c == "!"}, tokens_out=[ord(c) for c in inputs]
        )


class Streamed(Spelling, StreamingTask):
    """The same, in groups of one, the last first."""

    run = Spelling.run

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        for number, own in reversed([each for each in inputs if each is not None]):
            yield [number], Spelling.run(self, [own])


@pytest.fixture
def adapters(tmp_path: Path) -> str:
    for name in ("a", "b", "c[1]"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    (tmp_path / "no adapter").mkdir()
    return f"{tmp_path}/{{who}}"


def prepare(task: Task, *items: tuple[str | None, str | None]) -> Prepared:
    texts, who = [text for text, _ in items], [name for _, name in items]
    return task.prepare(texts, pa.record_batch({"other": pa.nulls(len(who)), "who": pa.array(who, pa.string())}))


def test_each_input_goes_to_its_adapter(adapters: str) -> None:
    task = ByAdapter(Spelling, {"adapter": adapters})
    task.open(Device("cpu", "cpu"))
    assert (task.batch_budget, task.fields, task.output) == (100, ("who",), SCHEMA)
    made = prepare(task, ("xy", "b"), ("z!", "a"), (None, "a"), ("7", "b"), ("u", "c[1]"), ("v", "d"), ("w", None))
    assert made.owners is not None
    assert made.owners.tolist() == [0, 0, 1, 1, 4]
    assert sorted(made.bad) == [3, 5, 6]
    assert made.bad[3] == "a digit"
    assert made.bad[5].endswith("d is none of the 3 that there are")
    assert made.tokens == 5
    output = task.run([made.inputs[i] for i in (4, 1, 3, 0, 2)])
    assert output.rows.column(0).to_pylist() == ["c[1]:u", "b:y", "a:!", "b:x", "a:z"]
    assert output.bad == {2: "a mark"}
    assert list(output.tokens_out) == [ord(c) for c in "uy!xz"]


def test_a_stream_gives_all_rows(adapters: str) -> None:
    task = ByAdapter(Streamed, {"adapter": adapters})
    made = prepare(task, ("xy", "b"), ("z", "a"), ("uv", "c[1]"))
    numbered = list(enumerate(made.inputs, 10))
    seen = {
        number: output.rows.column(0)[0].as_py()
        for (number,), output in task.stream(iter([*numbered[:3], None, None, *numbered[3:]]))
    }
    assert seen == {10: "b:x", 11: "b:y", 12: "a:z", 13: "c[1]:u", 14: "c[1]:v"}


def test_the_fingerprint_has_each_adapter(adapters: str, tmp_path: Path) -> None:
    before = ByAdapter(Spelling, {"adapter": adapters}).fingerprint()
    assert before == ByAdapter(Spelling, {"adapter": adapters}).fingerprint()
    assert set(before) == {"model", "adapters"}
    (tmp_path / "b").rename(tmp_path / "e")
    assert ByAdapter(Spelling, {"adapter": adapters}).fingerprint() != before
    assert any_adapter(adapters) == str(tmp_path / "a")
    assert any_adapter("plain") == "plain"


def test_models_share_the_device(adapters: str) -> None:
    task = ByAdapter(Spelling, {"adapter": adapters})
    task.open(Device("cuda", "some", sharing=2))
    assert {each.sharing for each in task._every} == {6}  # type: ignore[attr-defined]
    assert task.for_reference() is task


@pytest.mark.parametrize(
    ("adapter", "why"),
    [("nowhere/{who}", "No adapter is in nowhere/{…}"), ("a/{x.y}", "--adapter 'a/{x.y}': only")],
)
def test_what_names_no_adapter_is_refused(adapter: str, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        ByAdapter(Spelling, {"adapter": adapter})
    assert caught.value.message.startswith(why)


def test_too_many_are_refused(tmp_path: Path) -> None:
    for n in range(MOST_ADAPTERS + 1):
        (tmp_path / f"{n}").mkdir()
        (tmp_path / f"{n}" / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecError, match="has 65 adapters; a worker holds 64"):
        ByAdapter(Spelling, {"adapter": f"{tmp_path}/{{who}}"})
