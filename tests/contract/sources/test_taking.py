"""A part of a source: by a condition, by a share, up to a limit. The same items in every format, however it is cut."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, SpecError, StaleResume
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from shardmill.sources import Fields, discover, open_source
from shardmill.testing import InProcessEngine

ROWS = [
    {"id": i, "text": f"text {i} " + "x" * (i * 7 % 40), "stars": None if i % 10 == 9 else i % 5 + 1}
    for i in range(300)
]
FEW = [row["id"] for row in ROWS if row["stars"] is not None and row["stars"] <= 2]  # type: ignore[operator]


def _jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def _csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)


def _parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=40)


def _arrow(path: Path) -> None:
    with pa.ipc.new_file(path, pa.Table.from_pylist(ROWS).schema) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS), max_chunksize=40)


def _array(path: Path) -> None:
    path.write_text(json.dumps(ROWS))


def _sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE docs (id integer, text text, stars integer)")
        connection.executemany("INSERT INTO docs VALUES (:id, :text, :stars)", ROWS)


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.jsonl": _jsonl,
    "a.csv": _csv,
    "a.parquet": _parquet,
    "a.arrow": _arrow,
    "a.json": _array,
    "a.db": _sqlite,
}


@pytest.fixture(params=WRITERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return path


def _spec(source: Path, *, shard_bytes: int = 2_000, id: str = "id", **part: Any) -> Spec:
    work = {"source": str(source), "text": "text", "id": id, "task": "shardmill.testing:FakeTask", **part}
    work |= {"query": "SELECT * FROM docs"} if source.suffix == ".db" else {}
    return make_spec(work, {"shard_bytes": shard_bytes, "lease_s": 5.0})


def _ids(run: Run) -> list[int]:
    return [int(each) for each in run.table().column("id").to_pylist()]


def _rows(run: Run) -> list[int]:
    return run.table().column("row").to_pylist()  # type: ignore[no-any-return]


def _check(run: Run) -> dict[str, str]:
    report = run.verify()
    assert report.verified, report
    return {check.name: check.seen for check in report.checks}


def test_a_condition_takes_the_same_items_of_every_source(source: Path, tmp_path: Path) -> None:
    run = start(_spec(source, where="stars <= 2"), tmp_path / "run", engine=InProcessEngine())
    assert len(run.plan.shards) > 2
    assert _ids(run) == _rows(run) == FEW
    assert run.status().dropped == 300 - len(FEW)
    assert "and the other 180 are not taken" in _check(run)["contents"]
    assert "stars" not in run.table().column_names


def test_a_share_is_the_same_by_id_in_every_source(source: Path, tmp_path: Path) -> None:
    ids = _ids(start(_spec(source, take="20%", shard_bytes=700), tmp_path / "run", engine=InProcessEngine()))
    assert 40 <= len(ids) <= 80
    if source.suffix != ".csv":
        assert ids[:6] == [0, 2, 17, 31, 32, 45]
    finer = start(_spec(source, take=0.1, where="stars >= 1"), tmp_path / "less", engine=InProcessEngine())
    assert {*_ids(finer)} < {*ids}
    _check(finer)


def test_a_share_without_ids_does_not_depend_on_the_cut(source: Path) -> None:
    places, query = [str(source)], "SELECT * FROM docs" if source.suffix == ".db" else ""
    fields = Fields("text", query=query, take=0.3)
    stat = discover(places, fields)
    found = []
    for target in (500, 3_000, 1 << 40):
        opened, texts = open_source(stat, fields), []
        for shard in opened.shards(target):
            for batch in opened.read(shard):
                assert batch.taken is not None
                texts += batch.texts.filter(pa.array(batch.taken)).to_pylist()
        found.append(texts)
    assert found[0] == found[1] == found[2]
    assert 60 <= len(found[0]) <= 120


@pytest.mark.parametrize("limit", [1, 37, 108, 5_000])
def test_a_limit_takes_the_first_of_what_is_left(source: Path, tmp_path: Path, limit: int) -> None:
    run = start(_spec(source, where="stars <= 2", limit=limit), tmp_path / "run", engine=InProcessEngine())
    assert _ids(run) == FEW[:limit]
    assert limit != 1 or len(run.plan.shards) == 1
    _check(run)
    again = start(_spec(source, where="stars <= 2", limit=limit), tmp_path / "run", engine=InProcessEngine())
    assert again.plan.id == run.plan.id
    with pytest.raises(StaleResume, match="limit was"):
        start(_spec(source, where="stars <= 2", limit=limit + 1), tmp_path / "run", engine=InProcessEngine())


def test_a_limit_alone_leaves_no_holes(source: Path, tmp_path: Path) -> None:
    run = start(_spec(source, limit=50), tmp_path / "run", engine=InProcessEngine())
    assert _ids(run) == list(range(50))
    assert run.status().dropped == 0
    _check(run)


@pytest.mark.parametrize(("where", "wrong"), [("stars <= 3", "are taken and have no row"), ("stars = 1", "not taken")])
def test_the_proof_fails_if_other_items_had_to_be_taken(tmp_path: Path, where: str, wrong: str) -> None:
    path = tmp_path / "a.jsonl"
    _jsonl(path)
    start(_spec(path, where="stars <= 2"), tmp_path / "run", engine=InProcessEngine())
    plan = tmp_path / "run" / "plan.json"
    plan.write_text(plan.read_text().replace("stars <= 2", where))
    report = Run(tmp_path / "run").verify()
    assert not report.verified
    (contents,) = [check for check in report.checks if check.name == "contents"]
    assert wrong in contents.seen


def test_rows_that_a_condition_cannot_judge_are_errors_and_those_it_refuses_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(row) for row in ROWS[:20]]
    lines[3] = "{broken"
    lines[4] = '{"id": 4, "text": "x", "stars": "many"}'
    lines[5] = '{"id": 5, "text": null, "stars": 5}'
    lines[6] = '{"id": 6, "text": null, "stars": 1}'
    path.write_text("\n".join([*lines, *(json.dumps({**ROWS[0], "id": i}) for i in range(20, 1500))]))
    spec = _spec(path, where="stars <= 2 AND text IS NOT NULL", keep="stars:int64", limit=12)
    spec = spec.model_copy(update={"execution": spec.execution.model_copy(update={"max_errors": "100%"})})
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert _rows(run)[:6] == [0, 1, 3, 4, 10, 11]
    assert [error["row"] for error in run.errors()] == [3, 4]
    assert {error["line"] for error in run.errors()} == {4, 5}
    _check(run)


@pytest.mark.parametrize("mean", [False, True])
def test_the_windows_of_taken_items_are_whole(tmp_path: Path, mean: bool) -> None:
    path = tmp_path / "a.jsonl"
    _jsonl(path)
    params = {"window": 10, "mean": mean}
    run = start(_spec(path, where="stars = 2", params=params), tmp_path / "run", engine=InProcessEngine())
    assert sorted({*_ids(run)}) == [row["id"] for row in ROWS if row["stars"] == 2]
    assert _rows(run) == _ids(run)
    assert (len(_ids(run)) > 60) is not mean
    _check(run)
    text = str(ROWS[51]["text"])
    assert run.search(text[:10] if not mean else text, k=1)[0].row in _ids(run)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ({"where": "star <= 2"}, "no field 'star' in a.jsonl"),
        ({"where": "stars <= 'x'"}, "'stars' holds a number; 'x' is text"),
        ({"where": "stars <="}, "where: expected a column or a value at the end"),
        ({"take": "2"}, "take: '2' is not a share like 1% or 0.01"),
        ({"take": 0}, "take: 0 is not a share"),
        ({"limit": 0}, "limit: must be at least 1"),
        ({"where": "id = 1", "group_by": "stars"}, "cannot be used with group_by"),
    ],
)
def test_a_part_that_cannot_be_told_is_refused(tmp_path: Path, part: dict[str, Any], wrong: str) -> None:
    path = tmp_path / "a.jsonl"
    _jsonl(path)
    with pytest.raises((SourceError, SpecError), match=wrong):
        start(_spec(path, **part), tmp_path / "run", engine=InProcessEngine())
