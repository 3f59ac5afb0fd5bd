"""Maps: the same places for any number of workers, kills in mid-transform and while the map is fitted, bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, UsageError
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told
from tests.support.libraries import needed
from tests.support.vectors import clusters, write_vectors
from tests.support.waiting import PATIENCE_S

needed("numba")

from shardmill.verbs.map.making import make_map  # noqa: E402

# Fewer anchors than UMAP needs: the map is a plane, and no test waits for a library to compile itself.
FEW = 19
KILLED = """
import sys
from shardmill.verbs.map.making import make_map
from shardmill.testing import InProcessEngine, crash_at
make_map({"source": sys.argv[1], "text": "body", "id": "id", "sample": 19}, {"shard_bytes": 1}, sys.argv[2],
         engine=InProcessEngine(on_step=crash_at("committed", after=2)))
"""
KILLED_AT_THE_FIT = """
import os, signal, sys
from shardmill.verbs.map import making as mapping
mapping.fit_source = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
mapping.make_map({"source": sys.argv[1], "text": "body", "id": "id", "sample": 19}, {}, sys.argv[2])
"""


def _map(source: Path, out: Path, workers: int = 1, execution: dict[str, Any] | None = None, **work: Any) -> pa.Table:
    wanted = {"source": str(source), "text": "body", "id": "id", "sample": FEW, **work}
    make_map(wanted, {"shard_bytes": 1, **(execution or {})}, out, engine=InProcessEngine(workers))
    return pq.read_table(out / "coordinates.parquet")


def _die(script: str, source: Path, out: Path) -> None:
    done = subprocess.run([sys.executable, "-c", script, source, out], capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_the_same_seed_gives_the_same_places_whatever_happens(tmp_path: Path) -> None:
    source = write_vectors(tmp_path / "in.parquet", clusters(38))
    plain = _map(source, tmp_path / "plain")
    assert plain.column("id").to_pylist() == [f"i{i}" for i in range(38)]
    assert plain.column("x").null_count == 0
    assert _map(source, tmp_path / "two", workers=2).equals(plain)
    assert _map(source, tmp_path / "large", execution={"shard_bytes": 1 << 30}).equals(plain)
    _die(KILLED, source, tmp_path / "killed")
    commits = len(list((tmp_path / "killed" / "commits").iterdir()))
    assert 1 <= commits < 8
    assert _map(source, tmp_path / "killed", workers=2).equals(plain)
    other = _map(source, tmp_path / "other", seed=1)
    assert not other.column("x").equals(plain.column("x"))


def test_a_fit_whose_holder_is_killed_is_done_by_the_next(tmp_path: Path) -> None:
    source = write_vectors(tmp_path / "in.parquet", clusters(30))
    _die(KILLED_AT_THE_FIT, source, tmp_path / "map")
    assert not (tmp_path / "map" / "plan.json").exists()
    assert _map(source, tmp_path / "map").num_rows == 30


def test_fitted_points_keep_their_places_and_the_fit_is_used_again(tmp_path: Path) -> None:
    source = write_vectors(tmp_path / "in.parquet", clusters(30))
    table = _map(source, tmp_path / "map")
    (fit,) = (path for path in (tmp_path / "map" / "fit").iterdir() if path.is_dir())
    (places,) = fit.glob("places-*.npy")
    found = {tuple(place) for place in np.load(places).tolist()}
    rows = zip(table.column("x").to_pylist(), table.column("y").to_pylist(), strict=True)
    assert len(found & set(rows)) == FEW
    before = places.stat().st_mtime_ns
    _map(source, tmp_path / "map")
    assert places.stat().st_mtime_ns == before
    assert not list(fit.rglob("*.pkl"))


def _figures(out: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((out / "map.json").read_text())
    return figures


def test_few_rows_equal_vectors_and_missing_ones_make_a_map(tmp_path: Path) -> None:
    few = _map(write_vectors(tmp_path / "few.parquet", clusters(3)), tmp_path / "few")
    assert few.column("x").null_count == 0
    notes = _figures(tmp_path / "few")["notes"]
    assert "Fitted on fewer than 20 different vectors: it is the plane of PCA." in notes
    same = _map(write_vectors(tmp_path / "same.parquet", np.ones((60, 4), np.float32)), tmp_path / "same")
    assert len(set(same.column("x").to_pylist())) == 1
    assert (tmp_path / "same" / "map.html").stat().st_size > 1000
    figures = _figures(tmp_path / "same")
    said = ["PCA of 1 of 60 rows in 4 dimensions, seed 0.", "All vectors are equal: they are one point."]
    assert figures["notes"][:2] == said
    assert figures["quality"] is None, "a plane of PCA is as good as itself"
    rows: list[Any] = [*clusters(25)]
    rows[3], rows[7], rows[9] = None, np.full(16, np.nan), np.zeros(16)
    table = _map(write_vectors(tmp_path / "nan.parquet", rows), tmp_path / "nan")
    assert [i for i, x in enumerate(table.column("x").to_pylist()) if x is None] == [3, 7, 9]
    figures = _figures(tmp_path / "nan")
    assert (figures["points"], figures["lists"]["Without a place"]) == (22, 3)


def test_a_map_without_texts_says_how_to_show_them(tmp_path: Path) -> None:
    names = pa.nulls(25, pa.string())
    source = write_vectors(tmp_path / "in.parquet", clusters(25), n=list(range(25)), name=names)
    _map(source, tmp_path / "map", text=None, id=None)
    notes = _figures(tmp_path / "map")["notes"]
    assert any("--text COLUMN" in note for note in notes)
    assert "No colour: name (no values, more than 50,000, or as many as rows)." in notes


def test_duplicates_and_empty_texts_are_counted(tmp_path: Path) -> None:
    texts = [*(f"text {i}" for i in range(22)), "text 0", "", None]
    source = write_vectors(tmp_path / "in.parquet", clusters(25), id=[str(i) for i in range(25)], body=texts)
    _map(source, tmp_path / "map")
    lists = _figures(tmp_path / "map")["lists"]
    assert (lists["Duplicates"], lists["Empty texts"]) == (1, 2)


def test_what_cannot_be_mapped_is_told_in_one_line(tmp_path: Path) -> None:
    wide = pa.table({"id": ["a", "b"], "body": ["x", "y"], "vector": pa.array([[1.0, 2.0], [1.0]])})
    pq.write_table(wide, tmp_path / "wide.parquet")
    with pytest.raises(SourceError, match="different widths: 1, 2"):
        _map(tmp_path / "wide.parquet", tmp_path / "wide")
    none = write_vectors(tmp_path / "none.parquet", [None, np.full(3, np.nan)])
    with pytest.raises(SourceError, match="None of the 2 rows has a vector"):
        _map(none, tmp_path / "none")
    plain = pa.table({"id": ["a"], "body": ["x"]})
    pq.write_table(plain, tmp_path / "plain.parquet")
    with pytest.raises(UsageError, match="No column has vectors"):
        _map(tmp_path / "plain.parquet", tmp_path / "plain")
    two = pa.table(
        {"a": pa.array([[1.0]], pa.list_(pa.float32(), 1)), "b": pa.array([[1.0]], pa.list_(pa.float32(), 1))}
    )
    pq.write_table(two, tmp_path / "two.parquet")
    with pytest.raises(UsageError, match="Several columns have vectors: a, b"):
        _map(tmp_path / "two.parquet", tmp_path / "two", text=None, id=None)
    source = write_vectors(tmp_path / "in.parquet", clusters(25))
    with pytest.raises(UsageError, match="no column 'bodi'"):
        _map(source, tmp_path / "map", text="bodi")
    with pytest.raises(UsageError, match="needs the model of the vectors"):
        _map(source, tmp_path / "map", marks=["a question"])
    with pytest.raises(UsageError, match="neither umap nor pacmap"):
        _map(source, tmp_path / "map", method="tsne")


def test_the_command_line_says_where_the_page_is(tmp_path: Path, shardmill: Cli) -> None:
    source = write_vectors(tmp_path / "in.parquet", clusters(30))
    out = tmp_path / "map"
    said = shardmill("map", source, "--text", "body", "--id", "id", "--sample", FEW, "--out", out)
    assert said.status == 0, said.err
    assert "30 points" in said.err
    assert f"Open: {out}/map.html" in said.err
    again = shardmill("map", source, "--text", "body", "--id", "id", "--sample", FEW, "--out", out, "--json")
    assert json.loads(again.out)["points"] == 30
    assert_told(shardmill("map", source), 2, "No --out was given")
    assert_told(shardmill("map", source, "--mark", tmp_path / "none.txt", "--out", out), 2, "cannot be read", "--mark")
