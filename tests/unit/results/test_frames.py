"""A result as frames, datasets, tensors and one matrix: the values of the table, and its memory where that can be."""

from __future__ import annotations

import pickle
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import MissingExtra, NotComplete, UsageError
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.sinks import parquet
from shardmill.store import locate
from shardmill.testing import InProcessEngine
from tests.support.corpora import SHOUTING, fake_rows, fake_spec
from tests.support.libraries import needed

datasets, faiss, pd, pl, torch = map(needed, ("datasets", "faiss", "pandas", "polars", "torch"))


BAD = 17
KINDS = {"number": pa.int64(), 'näme "x"': pa.string(), "nested": pa.struct({"a": pa.list_(pa.int32())})}


def go(tmp_path: Path, rows: list[dict[str, Any]], out: str = "", **work: Any) -> Run:
    """A run over rows of Parquet with all columns kept, in several parts."""
    path = tmp_path / "items.parquet"
    schema = pa.schema({"id": pa.string(), "text": pa.string(), **KINDS})
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=20)
    asked = {**fake_spec(path).work.model_dump(), "keep": [*KINDS], **work}
    spec = make_spec(asked, {"shard_bytes": 1_500, "max_errors": "100%"})
    return start(spec, out or tmp_path / "run", engine=InProcessEngine())


def hard_rows(count: int = 60) -> list[dict[str, Any]]:
    """Rows with a missing text, null ids and numbers, large numbers, odd texts and nested values."""
    rows = [
        {**row, "number": 2**60 + i, 'näme "x"': f"é {i} 😀", "nested": {"a": [i, None]}}
        for i, row in enumerate(fake_rows(count))
    ]
    if count > BAD:
        rows[BAD]["text"] = None
        rows[3].update({"id": None, "number": None, 'näme "x"': None, "nested": None})
    return rows


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = go(tmp_path, hard_rows())
    assert len(found.plan.shards) > 2
    return found


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """The tables that results were read as, so that the memory of what is made of them can be compared."""
    from shardmill.results import frames

    seen: list[pa.Table] = []
    read = frames.result_table

    def keep(*how: Any) -> pa.Table:
        seen.append(read(*how))
        return seen[-1]

    monkeypatch.setattr(frames, "result_table", keep)
    return seen


def addresses(column: pa.ChunkedArray) -> list[int]:
    """Where the values of each chunk are in memory."""
    held = [chunk.values if pa.types.is_fixed_size_list(chunk.type) else chunk for chunk in column.chunks]
    return [chunk.buffers()[-1].address for chunk in held]


def whole_chunks(column: pa.ChunkedArray) -> set[int]:
    """Where the chunks without a missing vector are."""
    found = {at for at, chunk in zip(addresses(column), column.chunks, strict=True) if not chunk.null_count}
    assert found
    return found


def vectors_of(table: pa.Table) -> list[np.ndarray | None]:
    return [None if v is None else np.array(v, np.float32) for v in table.column("embedding").to_pylist()]


def assert_same(seen: Any, wanted: list[np.ndarray | None]) -> None:
    for i, (one, other) in enumerate(zip(seen, wanted, strict=True)):
        assert (one is None) == (other is None), i
        assert other is None or np.array_equal(np.asarray(one, np.float32), other), i


# pandas


def test_pandas_has_every_value_and_copies_none(run: Run, tables: list[pa.Table]) -> None:
    frame = run.to_pandas()
    (table,) = tables
    assert list(frame.columns) == table.column_names
    plain = [name for name in table.column_names if name != "embedding"]
    assert pa.Table.from_pandas(frame[plain], table.schema.remove(len(plain))) == table.select(plain)
    assert frame["number"].dtype == pd.ArrowDtype(pa.int64())
    assert (frame["number"][4], frame["number"].isna().sum()) == (2**60 + 4, 1)
    assert_same(frame["embedding"], vectors_of(table))
    for name in plain:
        assert addresses(pa.chunked_array(frame[name].array.__arrow_array__())) == addresses(table.column(name)), name
    views = {frame["embedding"][i].__array_interface__["data"][0] for i in range(len(frame)) if i != BAD}
    assert views >= whole_chunks(table.column("embedding"))


def test_pandas_takes_the_columns_that_are_asked_for(run: Run) -> None:
    assert list(run.to_pandas(["id"]).columns) == ["row", "id"]
    assert np.stack(run.to_pandas(["embedding"])["embedding"].drop(BAD)).shape == (59, 8)


# Polars


def test_polars_has_every_value_and_copies_no_numbers_and_vectors(run: Run, tables: list[pa.Table]) -> None:
    frame = run.to_polars()
    (table,) = tables
    plain = [name for name in table.column_names if name != "embedding"]
    assert frame.select(plain).to_dict(as_series=False) == table.select(plain).to_pydict()
    assert frame.schema["embedding"] == pl.Array(pl.Float32, 8)
    assert_same([None if v is None else v.to_numpy() for v in frame["embedding"]], vectors_of(table))
    back = frame.to_arrow()
    for name in ("row", "number", "embedding"):
        assert addresses(back.column(name)) == addresses(table.column(name)), name


# Hugging Face


def test_a_dataset_has_every_value_and_copies_no_numbers_and_vectors(run: Run, tables: list[pa.Table]) -> None:
    made = run.to_datasets()
    assert isinstance(made, datasets.Dataset)
    (table,) = tables
    plain = [name for name in table.column_names if name != "embedding"]
    assert made.select_columns(plain).to_dict() == table.select(plain).to_pydict()
    assert_same(made["embedding"], vectors_of(table))
    for name in ("row", "number", "embedding"):
        assert addresses(made.data.table.column(name)) == addresses(table.column(name)), name


def test_the_fingerprint_of_a_dataset_is_of_its_rows_and_columns(run: Run, tmp_path: Path) -> None:
    again = Run(run.ledger.url)
    assert run.to_datasets()._fingerprint == again.to_datasets()._fingerprint
    assert run.to_datasets(["id"])._fingerprint != run.to_datasets()._fingerprint
    (tmp_path / "other").mkdir()
    other = go(tmp_path / "other", hard_rows(40))
    assert other.to_datasets()._fingerprint != run.to_datasets()._fingerprint


def test_a_type_that_datasets_does_not_have_is_told(tmp_path: Path) -> None:
    path, kind = tmp_path / "maps.parquet", pa.map_(pa.string(), pa.int32())
    pq.write_table(pa.table({"id": ["a"], "text": ["b"], "m": pa.array([[("k", 1)]], kind)}), path)
    work = {**fake_spec(path).work.model_dump(), "keep": ["m"]}
    run = start(make_spec(work, {}), tmp_path / "run", engine=InProcessEngine())
    with pytest.raises(UsageError, match=r"datasets cannot hold this result: Arrow type map<"):
        run.to_datasets()
    assert run.to_datasets(["id"])["id"][0] == "a"
    assert run.to_pandas()["m"][0] == [("k", 1)]


# torch


def test_torch_gives_rows_with_tensors_that_share_memory(run: Run, tables: list[pa.Table], recwarn: Any) -> None:
    rows = run.to_torch()
    (table,) = tables
    assert isinstance(rows, torch.utils.data.Dataset)
    assert len(rows) == 60
    plain = [name for name in table.column_names if name != "embedding"]
    assert [{name: row[name] for name in plain} for row in rows] == table.select(plain).to_pylist()
    assert_same([None if v.isnan().all() else v.numpy() for v in (row["embedding"] for row in rows)], vectors_of(table))
    assert rows[BAD]["embedding"].isnan().all()
    assert torch.equal(rows[-1]["embedding"], rows[59]["embedding"])
    assert {row["embedding"].data_ptr() for row in rows} >= whole_chunks(table.column("embedding"))
    with pytest.raises(IndexError, match="row 60 of 60"):
        rows[60]
    assert not [w for w in recwarn if "writable" in str(w.message)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_takes_the_rows(run: Run, workers: int) -> None:
    loader = torch.utils.data.DataLoader(run.to_torch(["row", "embedding"]), batch_size=16, num_workers=workers)
    batches = [*loader]
    assert [tuple(batch["embedding"].shape) for batch in batches] == [(16, 8), (16, 8), (16, 8), (12, 8)]
    assert torch.cat([batch["row"] for batch in batches]).tolist() == list(range(60))
    assert torch.cat([batch["embedding"] for batch in batches]).isnan().any(dim=1).nonzero().tolist() == [[BAD]]


def test_the_rows_of_torch_are_sent_to_another_process(run: Run) -> None:
    rows = run.to_torch()
    again = pickle.loads(pickle.dumps(rows))
    assert torch.equal(again[5]["embedding"], rows[5]["embedding"])
    assert again[5]["id"] == "k5"


# vectors


def test_the_vectors_are_mapped_from_one_file(run: Run) -> None:
    matrix = run.vectors()
    assert isinstance(matrix, np.memmap)
    assert (matrix.shape, matrix.dtype) == ((60, 8), np.float32)
    assert_same([None if np.isnan(v).all() else v for v in matrix], vectors_of(run.table()))
    (path,) = (Path(run.ledger.url) / "final").glob("vectors-*.npy")
    written = path.stat().st_mtime_ns
    assert np.array_equal(Run(run.ledger.url).vectors(), matrix, equal_nan=True)
    assert path.stat().st_mtime_ns == written


def test_a_run_in_memory_has_its_vectors_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = go(tmp_path, hard_rows(), out=f"memory://{uuid.uuid4().hex}/run")
    assert len(run) == 60
    assert_same([None if np.isnan(v).all() else v for v in run.vectors()], vectors_of(run.table()))
    assert not (tmp_path / "cache").exists()


def test_a_run_in_any_store_is_read_the_same(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = go(tmp_path, hard_rows(), out=f"{place}/run")
    forms = (run, run.to_pandas(), run.to_polars(), run.to_datasets(), run.to_torch())
    assert [len(form) for form in forms] == [60] * 5
    for _ in range(2):
        assert_same([None if np.isnan(v).all() else v for v in run.vectors()], vectors_of(run.table()))
    assert isinstance(run.vectors(), np.memmap) == (not place.startswith("memory://"))
    assert run.merge(f"{place}/index.faiss").rows == 60
    store, key = locate(f"{place}/index.faiss")
    assert faiss.deserialize_index(np.frombuffer(store.get(key), np.uint8)).ntotal == 59


# What is hard


FORMS: dict[str, Callable[[Run], Any]] = {
    "pandas": Run.to_pandas,
    "Polars": Run.to_polars,
    "datasets": Run.to_datasets,
    "torch": Run.to_torch,
    "vectors": Run.vectors,
    "length": lambda run: range(len(run)),
}
LIBRARIES = ["pandas", "polars", "datasets", "torch"]


@pytest.mark.parametrize("form", FORMS)
def test_a_run_of_which_nothing_was_taken_is_empty(tmp_path: Path, form: str) -> None:
    run = go(tmp_path, hard_rows(), where="number < 0")
    assert len(FORMS[form](run)) == 0
    assert run


@pytest.mark.parametrize("form", FORMS)
def test_windows_are_rows(tmp_path: Path, form: str) -> None:
    run = go(tmp_path, hard_rows(), params={"window": 10})
    rows = run.table().num_rows
    assert rows > 60
    assert len(FORMS[form](run)) == rows
    if form == "pandas":
        assert run.to_pandas()["row"].tolist() == run.table().column("row").to_pylist()


@pytest.mark.parametrize("form", FORMS)
def test_a_part_of_the_source_keeps_its_numbers(tmp_path: Path, form: str) -> None:
    run = go(tmp_path, hard_rows(), where=f"number >= {2**60 + 50}")
    assert len(FORMS[form](run)) == 10
    if form == "Polars":
        assert run.to_polars()["row"].to_list() == list(range(50, 60))


def test_a_run_without_vectors_has_all_but_a_matrix(tmp_path: Path) -> None:
    run = go(tmp_path, hard_rows(), task=SHOUTING)
    letters = [row["letters"] for row in run.table().to_pylist()]
    assert run.to_polars()["letters"].to_list() == list(run.to_datasets()["letters"]) == letters
    assert run.to_pandas()["letters"].sum() == sum(each or 0 for each in letters)
    assert run.to_torch()[0]["shout"] == "TEXT 0 !"
    with pytest.raises(UsageError, match="no vector column"):
        run.vectors()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_vectors_of_other_types_stay_as_they_are(dtype: str) -> None:
    from shardmill.results.torch_rows import TorchRows

    kind = pa.list_(pa.type_for_alias(dtype), 4)
    matrix = np.arange(12, dtype=dtype).reshape(3, 4)
    column = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=kind)
    table = pa.table({"row": pa.array([0, 1, 2]), "v": column})
    rows = TorchRows(table.slice(1))
    assert len(rows) == 2
    assert rows[1]["v"].dtype == getattr(torch, dtype)
    assert np.array_equal(rows[1]["v"].numpy(), matrix[2])


@pytest.mark.parametrize("method", ["to_pandas", "to_polars", "to_datasets", "to_torch"])
def test_a_column_that_is_not_there_is_told_with_the_nearest(run: Run, method: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)no column 'nombre'.*Did you mean 'number'"):
        getattr(run, method)(["nombre"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_told_before_anything_is_read(
    run: Run, library: str, monkeypatch: pytest.MonkeyPatch, tables: list[pa.Table]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    pip = "'shardmill\\[embed\\]'" if library == "torch" else library
    with pytest.raises(MissingExtra, match=f"{library} is not installed.\nInstall it with: pip install {pip}"):
        getattr(run, f"to_{library}")()
    assert not tables


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_is_not_complete_is_refused(run: Run, form: str) -> None:
    for path in (Path(run.ledger.url) / "commits").iterdir():
        path.unlink()
        break
    again = Run(run.ledger.url)
    assert again
    with pytest.raises(NotComplete, match="1 of"):
        FORMS[form](again)


def test_the_length_is_known_without_the_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*how: Any) -> Iterator[Any]:
        raise AssertionError("a part is read")

    monkeypatch.setattr(parquet, "open_part", refuse)
    assert len(run) == 60
