"""Rows that a task left without a vector, in a table: found by `verify` of the run and of the table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.errors import DatabaseError
from shardmill.plan.spec import make_spec
from shardmill.results.report import Report
from shardmill.run import Run, start
from shardmill.run.loading import place_of
from shardmill.run.table import Table
from shardmill.tasks.base import Output
from shardmill.testing import FakeTask, InProcessEngine
from tests.support.corpora import fake_rows
from tests.support.services import PostgresServer
from tests.support.tables import table_spec

pytestmark = pytest.mark.services

Write = Callable[..., Path]
Load = Callable[..., Run]


class Forgetful(FakeTask):
    """Leaves the vector out, and says nothing, where a text has `!empty`."""

    def _run(self, inputs: Sequence[str]) -> Output:
        output = super()._run(inputs)
        column = output.rows.column("embedding")
        there = pa.array([None if "!empty" in text else i for i, text in enumerate(inputs)], pa.int64())
        return Output(pa.RecordBatch.from_arrays([column.take(there)], names=["embedding"]), output.bad)


class Answering(Forgetful):
    null_rows_are_answers = True


@pytest.fixture
def load(postgres: PostgresServer, write_jsonl: Write, tmp_path: Path) -> Callable[..., Run]:
    """Load 40 rows: one without a vector or an error, one with an error."""

    def run(task: type, table: str, mark: str = " !empty", **settings: Any) -> Run:
        rows = fake_rows(40)
        rows[7]["text"] += mark
        rows[21]["text"] += " !nan"
        spec = table_spec(write_jsonl(rows), postgres.url(), table, **settings)
        work = {**spec.work.model_dump(mode="json"), "task": f"{__name__}:{task.__name__}"}
        again = make_spec(work, spec.execution.model_dump())
        return start(again, tmp_path / f"{table}-{uuid.uuid4().hex}", engine=InProcessEngine())

    return run


def failed(report: Report) -> dict[str, str]:
    assert report.verified == all(check.ok for check in report.checks)
    return {check.name: check.seen for check in report.checks if not check.ok}


@pytest.mark.parametrize("mode", ["update", "skip", "fail"])
def test_a_row_without_a_vector_or_an_error_is_found(load: Load, mode: str) -> None:
    run = load(Forgetful, f"silent_{mode}", mode=mode)
    of_run = failed(run.verify(sample=0))
    assert of_run.keys() == {"vectors"}
    assert "1 rows were loaded without one" in of_run["vectors"]
    assert "null_rows_are_answers" in of_run["vectors"]
    assert "1 without a vector" in failed(Table(place_of(run)).verify(sample=0))["rows"]


def test_a_row_that_loses_its_vector_does_not_keep_that_of_its_former_text(load: Load) -> None:
    assert failed(load(Forgetful, "lost", " as it was").verify(sample=0)) == {}
    assert failed(load(Forgetful, "lost").verify(sample=0)).keys() == {"vectors"}
    with pytest.raises(DatabaseError, match="1 rows would have no vector"):
        load(Forgetful, "lost", " !empty again", changed_only=True)


def test_a_task_may_declare_such_rows_an_answer(load: Load) -> None:
    run = load(Answering, "silent_answers")
    assert failed(run.verify(sample=0)) == {}
    assert failed(Table(place_of(run)).verify(sample=0)) == {}
