"""Runs that keep vectors of their source: these are data, and only the task's own vectors are judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import UsageError
from shardmill.plan.spec import make_spec
from shardmill.results.report import Report
from shardmill.results.verify import digest
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.corpora import SHOUTING, fake_rows, fake_spec

FAKE = "shardmill.testing:FakeTask"
Write = Callable[..., Path]


def with_vectors(folder: Path, dtype: Any) -> Path:
    """Sixty items with vectors of every length; one of NaN, one with a NaN in it, one missing, one of zeros."""
    rows = fake_rows(60)
    matrix = np.random.default_rng(1).standard_normal((60, 3)).astype(dtype) * 7
    matrix[5], matrix[6, 0], matrix[8] = np.nan, np.nan, 0
    vectors: list[Any] = list(matrix)
    vectors[7] = None
    kind = pa.list_(pa.from_numpy_dtype(dtype), 3)
    table = pa.table({name: [row[name] for row in rows] for name in ("id", "text")})
    pq.write_table(table.append_column("known", pa.array(vectors, kind)), folder / "items.parquet")
    return folder / "items.parquet"


def go(source: Path | str, out: Path, task: str, **work: Any) -> Run:
    spec = make_spec({"source": str(source), "text": "text", "id": "id", "task": task, **work}, {"shard_bytes": 800})
    return start(spec, out, engine=InProcessEngine())


def failed(report: Report) -> dict[str, str]:
    return {check.name: check.seen for check in report.checks if not check.ok}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("task", [FAKE, SHOUTING])
def test_a_run_that_keeps_vectors_is_verified(tmp_path: Path, task: str, dtype: Any) -> None:
    run = go(with_vectors(tmp_path, dtype), tmp_path / "run", task, keep=["known"])
    assert failed(run.verify(sample="all")) == {}
    known = run.table(["known"]).column("known").combine_chunks()
    assert known.null_count == 1
    assert not known[7].is_valid
    assert np.isnan(known[5].values.to_numpy(zero_copy_only=False)).all()
    assert np.isnan(known[6].values.to_numpy(zero_copy_only=False)).tolist() == [True, False, False]


def test_a_kept_vector_that_was_changed_is_found(tmp_path: Path) -> None:
    """Twice as long: its direction is the same."""
    run = go(with_vectors(tmp_path, np.float32), tmp_path / "run", FAKE, keep=["known"])
    commit = run.ledger.commits.read()[0]
    path = tmp_path / "run" / commit.part
    table = pq.read_table(path)
    column = table.column("known").combine_chunks()
    twice = pa.FixedSizeListArray.from_arrays(pa.array(column.values.to_numpy() * 2), type=column.type)
    pq.write_table(table.set_column(table.column_names.index("known"), table.schema.field("known"), twice), path)
    record = replace(commit, digest=digest(run.ledger.store, commit.part), part_bytes=path.stat().st_size)
    (tmp_path / "run" / run.ledger.commits.key(0)).write_text(json.dumps(asdict(record)))
    report = Run(run.ledger.url).verify(sample="all")
    assert failed(report).keys() == {"bindings", "contents", "sample"}
    assert "known does not match the source" in failed(report)["sample"]
    named = next(check.rows for check in report.checks if check.name == "sample")
    assert {"shard": 0, "row": 0, "id": {"id": "k0"}} in named


def test_the_task_s_own_vectors_are_merged_and_searched(tmp_path: Path) -> None:
    run = go(with_vectors(tmp_path, np.float32), tmp_path / "run", FAKE, keep=["known"])
    run.merge(tmp_path / "all.npy")
    assert np.load(tmp_path / "all.npy").shape == (60, 8)
    others = pq.read_table(tmp_path / "all.ids.parquet").column_names
    assert others == ["row", "id", "known"]
    no_vectors = go(tmp_path / "items.parquet", tmp_path / "shouts", SHOUTING, keep=["known"])
    with pytest.raises(UsageError, match="no vector column"):
        no_vectors.merge(tmp_path / "none.npy")


def test_a_vector_that_is_missing_elsewhere_than_its_error_is_found(tmp_path: Path, write_jsonl: Write) -> None:
    """As many errors as missing vectors, in the same shard, but of another row."""
    rows = fake_rows(60)
    rows[3]["text"] = ""
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    commit = run.ledger.commits.read()[0]
    if not commit.errors:
        pytest.fail("the fake task has no bad row")
    path = tmp_path / "run" / commit.part
    table = pq.read_table(path)
    order = pa.array([0, 3, 2, 1, *range(4, table.num_rows)])
    moved = table.column("embedding").take(order)
    pq.write_table(
        table.set_column(table.column_names.index("embedding"), table.schema.field("embedding"), moved), path
    )
    record = replace(commit, digest=digest(run.ledger.store, commit.part), part_bytes=path.stat().st_size)
    (tmp_path / "run" / run.ledger.commits.key(0)).write_text(json.dumps(asdict(record)))
    report = Run(run.ledger.url).verify(sample=0)
    assert failed(report).keys() == {"bindings", "vectors"}
    assert "1 of these rows have no error; 1 rows have an error and a vector" in failed(report)["vectors"]
    (named,) = (check.rows for check in report.checks if check.name == "vectors")
    assert named == ({"shard": 0, "row": 1, "id": {"id": "k1"}},)


def test_rows_without_an_id_are_not_unique(tmp_path: Path, write_jsonl: Write) -> None:
    rows: list[Any] = fake_rows(60)
    rows[7]["id"] = rows[31]["id"] = None
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    report = run.verify()
    assert failed(report).keys() == {"ids"}
    assert "2 rows have none and no error" in failed(report)["ids"]
    rows_named = next(check.rows for check in report.checks if check.name == "ids")
    assert len(rows_named) == 2


def test_a_row_that_failed_needs_no_id(tmp_path: Path, write_jsonl: Write) -> None:
    run = start(
        fake_spec(write_jsonl([*fake_rows(30), "{not json", *fake_rows(30, 30)])),
        tmp_path / "run",
        engine=InProcessEngine(),
    )
    assert failed(run.verify()) == {}
