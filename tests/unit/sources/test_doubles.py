"""Ids that occur twice are told before a run is begun."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import make_spec
from shardmill.core.devices import Device
from shardmill.run.planner import make_plan
from shardmill.sources import Fields, discover, doubles, open_source


def told(place: Path, fields: Fields) -> str | None:
    stat = discover([str(place)], fields)
    return doubles.tell_doubles(stat, fields, open_source(stat, fields).shards(200))


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.jsonl"
    rows = [{"id": f"r{i % 90}", "page": i // 90, "text": f"text {i}"} for i in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "no id"}, {"text": "none either"}]))
    return path


def test_doubles_are_counted_and_one_is_shown(reviews: Path) -> None:
    said = told(reviews, Fields("text", id=("id",)))
    assert said is not None
    assert said.startswith("The ids are not unique: of 102 rows, 10 repeat the id of another, for example 'r0'.")


@pytest.mark.parametrize(
    "fields",
    [
        Fields("text"),
        Fields("text", id=("id", "page")),
        Fields("text", id=("file", "line")),
        Fields("text", id=("hash",)),
        Fields("text", id=("id",), where="page = 0", wanted=("page",)),
        Fields("text", group_by="id", id=("id",)),
    ],
)
def test_ids_that_are_unique_are_no_news(reviews: Path, fields: Fields) -> None:
    if fields.group_by:
        assert doubles.tell_doubles(discover([str(reviews)], fields), fields, ()) is None
    else:
        assert told(reviews, fields) is None


def test_no_more_than_a_million_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubles, "_MOST_ROWS", 1000)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [*range(5000), 0], "text": ["a"] * 5001}), path, row_group_size=500)
    assert told(path, Fields("text", id=("id",))) is None
    pq.write_table(pa.table({"id": [7, *range(5000)], "text": ["a"] * 5001}), path, row_group_size=500)
    assert "of the first 1,000 rows, 1 repeats the id of another, for example 7" in str(
        told(path, Fields("text", id=("id",)))
    )


def test_a_new_run_tells_it_and_a_resumed_one_does_not(reviews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = make_spec({"source": str(reviews), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}, {})
    plan = make_plan(spec, [Device("cpu", "cpu", 1)], quiet=False)
    assert "The ids are not unique" in capsys.readouterr().err
    assert make_plan(spec, [Device("cpu", "cpu", 1)], quiet=False, like=plan).id == plan.id
    assert "not unique" not in capsys.readouterr().err
