"""Maps of embed runs, with marks and further points, and of queries."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import UsageError
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.libraries import needed
from tests.support.vectors import clusters

needed("numba")
needed("torch")

from shardmill.verbs.map.making import make_map  # noqa: E402
from tests.support.answers import passages, write_embedder  # noqa: E402


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("embedded")
    source = _write(folder / "towns.jsonl", passages()[:28])
    work = {
        "source": str(source),
        "text": "text",
        "id": "id",
        "params": {"model": str(write_embedder(folder / "model"))},
    }
    return start(make_spec(work, {"device": "cpu"}), folder / "run", engine=InProcessEngine())


def _map(source: str, out: Path, **work: Any) -> Run:
    return make_map({"source": source, "sample": 19, **work}, {}, out, engine=InProcessEngine())


def _figures(run: Run) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(run.ledger.store.get("map.json"))
    return figures


def test_a_run_that_kept_no_texts_is_shown_with_those_of_its_source(embedded: Run, tmp_path: Path) -> None:
    before = sorted(str(path) for path in Path(embedded.ledger.url).rglob("*"))
    run = _map(embedded.ledger.url, tmp_path / "map")
    assert sorted(str(path) for path in Path(embedded.ledger.url).rglob("*")) == before
    assert _figures(run)["lists"]["Empty texts"] == 0
    assert not any("text" in note for note in _figures(run)["notes"])
    assert run.verify().verified
    assert pq.read_table(tmp_path / "map" / "coordinates.parquet").column("id").to_pylist()[0] == "Arden-harbour"


def test_a_source_that_is_gone_leaves_a_map_without_texts(embedded: Run, tmp_path: Path) -> None:
    source = Path(embedded.plan.work.source[0])
    hidden = source.rename(source.with_suffix(".away"))
    try:
        run = _map(embedded.ledger.url, tmp_path / "map")
    finally:
        hidden.rename(source)
    assert any("cannot be read" in note for note in _figures(run)["notes"])
    assert _figures(run)["points"] == 28


def test_marks_are_embedded_with_the_model_of_the_run(embedded: Run, tmp_path: Path) -> None:
    _map(embedded.ledger.url, tmp_path / "map", marks=["Where is the harbour?", " ", "A castle"])
    (kept,) = (tmp_path / "map" / "fit").glob("*/marks.json")
    marks = json.loads(kept.read_text())
    assert [mark["name"] for mark in marks] == ["Where is the harbour?", "A castle"]
    page = (tmp_path / "map" / "map.html").stat().st_mtime_ns
    _map(embedded.ledger.url, tmp_path / "map", marks=["Where is the harbour?", "A castle"])
    assert (tmp_path / "map" / "map.html").stat().st_mtime_ns == page
    _map(embedded.ledger.url, tmp_path / "map", marks=["A windmill"])
    assert (tmp_path / "map" / "map.html").stat().st_mtime_ns > page


def test_other_items_are_laid_onto_the_same_map(embedded: Run, tmp_path: Path) -> None:
    base = _map(embedded.ledger.url, tmp_path / "map").table(["id", "x", "y"])
    more = _write(tmp_path / "more.jsonl", passages()[28:38])
    both = _map(embedded.ledger.url, tmp_path / "map", points=str(more))
    assert both.ledger.url == str(tmp_path / "map" / "points" / "more")
    found = both.table(["id", "x", "y"])
    assert found.num_rows == 38
    # What was there keeps its place.
    assert found.slice(0, 28).drop_columns("row").equals(base.drop_columns("row"))
    assert found.column("x").null_count == 0
    vectors = f"run:{tmp_path / 'map' / 'vectors' / 'more'}"
    again = _map(embedded.ledger.url, tmp_path / "map", points=vectors)
    assert again.table(["id", "x", "y"]).equals(found)


def test_a_query_is_mapped(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "items.db") as database:
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, body TEXT, v TEXT)")
        rows = [(i, f"text {i}", json.dumps(v.tolist())) for i, v in enumerate(clusters(30, dims=6))]
        database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    database.close()
    query = "SELECT id, body, v FROM items"
    run = _map(f"sqlite:///{tmp_path}/items.db", tmp_path / "map", query=query, id="id", vector="v", text="body")
    assert run.table(["id", "x"]).column("x").null_count == 0
    with pytest.raises(UsageError, match="No column has vectors"):
        _map(f"sqlite:///{tmp_path}/items.db", tmp_path / "none", query=query, id="id")
