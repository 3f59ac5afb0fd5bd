"""Rows that a task left empty: each has an error on record, or the task declares such rows an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.devices import Device
from shardmill.plan.spec import make_spec
from shardmill.results.report import Report
from shardmill.results.verify import digest
from shardmill.run import Run, start
from shardmill.tasks.base import WINDOW, Output, Prepared, Task
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows

Write = Callable[..., Path]


class Flags(Task):
    """Two columns, no vector. A text with `!empty` gets null in both, with `!half` in one; `!bad` is set aside."""

    output = pa.schema([pa.field("length", pa.int64()), pa.field("flag", pa.string())])
    batch_budget = 200

    def fingerprint(self) -> dict[str, str]:
        return {"version": "1"}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        bad = {i: "it is bad" for i, text in enumerate(texts) if text and "!bad" in text}
        return Prepared(list(texts), np.array([len(t or "") for t in texts], np.int64), bad)

    def run(self, inputs: Sequence[Any]) -> Output:
        lengths = [None if "!empty" in text else len(text) for text in inputs]
        flags = [None if "!empty" in text or "!half" in text else "seen" for text in inputs]
        columns = [pa.array(lengths, pa.int64()), pa.array(flags, pa.string())]
        return Output(pa.RecordBatch.from_arrays(columns, schema=Flags.output))


class Answers(Flags):
    """Declares that an empty row is an answer."""

    null_rows_are_answers = True


class Pieces(Flags):
    """One row per word."""

    output = pa.schema([pa.field(WINDOW, pa.int32()), *Flags.output])

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        bad = {i: "it is bad" for i, text in enumerate(texts) if text and "!bad" in text}
        pieces = [(i, p) for i, text in enumerate(texts) if i not in bad for p in (text or "").split()]
        costs = np.array([len(piece) for _, piece in pieces], np.int64)
        return Prepared([p for _, p in pieces], costs, bad, owners=np.array([i for i, _ in pieces], np.int64))


def go(task: type, rows: list[dict[str, str]], write_jsonl: Write, out: Path) -> Run:
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "task": f"{__name__}:{task.__name__}"}
    return start(make_spec(work, {"shard_bytes": 1_500, "max_errors": "100%"}), out, engine=InProcessEngine())


def failed(report: Report) -> dict[str, str]:
    assert report.verified == all(check.ok for check in report.checks)
    return {check.name: check.seen for check in report.checks if not check.ok}


def with_marks(**marks: str) -> list[dict[str, str]]:
    rows = fake_rows(60)
    for row, mark in marks.items():
        rows[int(row[1:])]["text"] += f" {mark}"
    return rows


@pytest.mark.parametrize("task", [Flags, Pieces])
def test_an_empty_row_without_an_error_is_found(tmp_path: Path, write_jsonl: Write, task: type) -> None:
    rows = with_marks(r7="!empty", r21="!half", r40="!bad", r55="!empty")
    report = go(task, rows, write_jsonl, tmp_path / "run").verify()
    assert failed(report).keys() == {"nulls"}
    assert "3 rows without a result, 2 of them without an error" in failed(report)["nulls"]
    assert "null_rows_are_answers" in failed(report)["nulls"]


@pytest.mark.parametrize("task", [Flags, Pieces])
def test_empty_rows_with_an_error_are_in_order(tmp_path: Path, write_jsonl: Write, task: type) -> None:
    report = go(task, with_marks(r7="!bad", r21="!half", r40="!bad"), write_jsonl, tmp_path / "run").verify()
    assert failed(report) == {}
    assert report.errors == 2


def test_a_task_may_declare_empty_rows_an_answer(tmp_path: Path, write_jsonl: Write) -> None:
    report = go(Answers, with_marks(r7="!empty", r40="!bad"), write_jsonl, tmp_path / "run").verify()
    assert failed(report) == {}


def test_an_error_of_another_row_is_no_excuse(tmp_path: Path, write_jsonl: Write) -> None:
    """As many errors as empty rows, in the same shard, but one of them has a result."""
    run = go(Flags, with_marks(r3="!bad"), write_jsonl, tmp_path / "run")
    commit = run.ledger.commits.read()[0]
    path = tmp_path / "run" / commit.part
    table = pq.read_table(path)
    order = pa.array([0, 3, 2, 1, *range(4, table.num_rows)])
    for name in ("length", "flag"):
        table = table.set_column(
            table.column_names.index(name), table.schema.field(name), table.column(name).take(order)
        )
    pq.write_table(table, path)
    record = replace(commit, digest=digest(run.ledger.store, commit.part), part_bytes=path.stat().st_size)
    (tmp_path / "run" / run.ledger.commits.key(0)).write_text(json.dumps(asdict(record)))
    report = Run(run.ledger.url).verify(sample=0)
    assert failed(report).keys() == {"bindings", "nulls"}
    assert "1 rows without a result, 1 of them without an error" in failed(report)["nulls"]
