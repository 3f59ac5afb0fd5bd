"""A result as a FAISS index: the neighbours of an exact search, rows without vectors, its kinds and their recall."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import MissingExtra, StoreError, UsageError
from shardmill.models.retrieval.vectors import normalized
from shardmill.plan.execution import Following
from shardmill.results.files import faiss as indexing
from shardmill.results.files import npy
from shardmill.results.files.faiss import build_index, choose_kind
from shardmill.run import Run, start
from shardmill.store import locate
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.cli import Cli, assert_told
from tests.support.corpora import SHOUTING, fake_rows, fake_spec
from tests.support.libraries import needed

faiss = needed("faiss")

Write = Callable[..., Path]
BAD = (4, 17)
GB = 1 << 30


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of FAISS wait for one another in loops, for long where other tests have the cores."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Write) -> Run:
    return start(fake_spec(write_jsonl(fake_rows(60))), tmp_path / "run", engine=InProcessEngine())


@pytest.fixture
def gaps(tmp_path: Path, write_jsonl: Write) -> Run:
    """A run of which two rows have no vector."""
    rows: list[dict[str, Any]] = fake_rows(60)
    for i in BAD:
        rows[i]["text"] = None
    return start(fake_spec(write_jsonl(rows, "gaps.jsonl")), tmp_path / "gaps", engine=InProcessEngine())


def query(text: str) -> np.ndarray:
    return normalized(fake_vector(text)[None])


def blocks(matrix: np.ndarray, size: int = 1000) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: (matrix[at : at + size] for at in range(0, len(matrix), size))


def clustered(count: int, dims: int = 32) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, dims))
    found: np.ndarray = centres[rng.integers(0, 50, count)] + 0.5 * rng.normal(size=(count, dims))
    return found.astype(np.float32)


def test_the_neighbours_are_those_of_the_exact_search(run: Run, tmp_path: Path) -> None:
    merged = run.merge(tmp_path / "index.faiss")
    assert merged.files == (str(tmp_path / "index.faiss"), str(tmp_path / "index.ids.parquet"))
    assert merged.bytes == sum(Path(file).stat().st_size for file in merged.files)
    assert merged.index == {"kind": "Flat", "vectors": 60, "left_out": 0, "recall_at_10": 1.0}
    index, ids = faiss.read_index(merged.files[0]), pq.read_table(merged.files[1])
    assert (type(index), index.ntotal, index.metric_type) == (faiss.IndexFlatIP, 60, faiss.METRIC_INNER_PRODUCT)
    assert ids.column_names == ["row", "id"]
    for text in ("text 3", "something else", fake_rows(60)[41]["text"]):
        scores, found = index.search(query(text), 5)
        hits = run.search(text, 5)
        assert found[0].tolist() == [hit.row for hit in hits]
        assert scores[0] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert [ids.column("id")[int(row)].as_py() for row in found[0]] == [hit.values["id"] for hit in hits]


def test_a_row_without_a_vector_is_left_out_and_the_numbers_stay(gaps: Run, tmp_path: Path, shardmill: Cli) -> None:
    said = shardmill("merge", gaps.ledger.url, "--out", tmp_path / "index.faiss")
    assert said.status == 0
    assert "The index (Flat) takes about 1 MB of memory while it is built." in said.err
    assert "Flat of 58 vectors, 2 rows without a vector left out, recall@10 1.000." in said.err
    assert "60 rows, " in said.err
    index, ids = faiss.read_index(str(tmp_path / "index.faiss")), pq.read_table(tmp_path / "index.ids.parquet")
    assert (index.ntotal, ids.num_rows) == (58, 60)
    _, found = index.search(query("text 3"), 60)
    assert sorted(found[0].tolist()) == [-1, -1, *(i for i in range(60) if i not in BAD)]
    for i in (5, 59):
        text = fake_rows(60)[i]["text"]
        assert index.search(query(text), 1)[1].tolist() == [[i]]
        assert ids.column("id")[i].as_py() == f"k{i}"
        assert np.allclose(index.reconstruct(i), query(text)[0])


def test_the_figures_are_in_json(gaps: Run, tmp_path: Path, shardmill: Cli) -> None:
    said = shardmill("merge", gaps.ledger.url, "--out", tmp_path / "index.faiss", "--json")
    told = json.loads(said.out)
    assert told["index"] == {"kind": "Flat", "vectors": 58, "left_out": 2, "recall_at_10": 1.0}
    assert said.err == ""
    other = json.loads(shardmill("merge", gaps.ledger.url, "--out", tmp_path / "m.npy", "--json").out)
    assert [*other] == ["files", "rows", "bytes"]


def test_windows_have_a_row_each(tmp_path: Path, write_jsonl: Write) -> None:
    spec = fake_spec(write_jsonl(fake_rows(20)), params={"window": 10})
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    run.merge(tmp_path / "index.faiss")
    index, ids = faiss.read_index(str(tmp_path / "index.faiss")), pq.read_table(tmp_path / "index.ids.parquet")
    assert index.ntotal == ids.num_rows == len(run) > 20
    hit = run.search("text 3", 1)[0]
    at = int(index.search(query("text 3"), 1)[1][0, 0])
    assert (ids.column("row")[at].as_py(), ids.column("window")[at].as_py()) == (hit.row, hit.window)


def test_it_is_written_to_a_store(run: Run) -> None:
    out = f"memory://{uuid.uuid4().hex}/index.faiss"
    merged = run.merge(out)
    store, key = locate(out)
    index = faiss.deserialize_index(np.frombuffer(store.get(key), np.uint8))
    assert (index.ntotal, merged.rows) == (60, 60)
    assert store.head("index.ids.parquet") is not None


@pytest.mark.parametrize("free", [100 * GB, 40_000], ids=["HNSW", "IVF"])
def test_a_run_of_many_rows_has_an_approximate_index(
    free: int, gaps: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "EXACT_ROWS", 10)
    monkeypatch.setattr(indexing, "free_bytes", lambda: free)
    merged = gaps.merge(tmp_path / "index.faiss")
    assert merged.index is not None
    assert merged.index["kind"] == ("HNSW32" if free > GB else "IVF1_HNSW32,SQ8")
    assert merged.index["recall_at_10"] >= 0.95
    index = faiss.read_index(str(tmp_path / "index.faiss"))
    text = fake_rows(60)[41]["text"]
    assert index.search(query(text), 1)[1].tolist() == [[41]]


@pytest.mark.parametrize(("free", "kind"), [(100 * GB, "HNSW32"), (6_000_000, "IVF224_HNSW32,SQ8")])
def test_clustered_vectors_are_found(free: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "EXACT_ROWS", 100)
    monkeypatch.setattr(indexing, "free_bytes", lambda: free)
    both = clustered(9_200)
    matrix, queries = both[:9_000].copy(), normalized(both[9_000:])
    matrix[[7, 8_000]] = np.nan
    index, told = build_index(blocks(matrix), len(matrix), 32, quiet=True)
    assert (told["kind"], told["left_out"]) == (kind, 2)
    assert told["recall_at_10"] >= 0.95
    there = np.flatnonzero(np.isfinite(matrix).all(axis=1))
    units = normalized(matrix[there])
    due = there[np.argsort(-(queries @ units.T), axis=1)[:, :10]]
    found = index.search(queries, 10)[1]
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(due, found, strict=True)]) >= 9.5


def test_the_same_vectors_give_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "EXACT_ROWS", 100)
    monkeypatch.setattr(indexing, "free_bytes", lambda: 1_500_000)
    matrix = clustered(2_000)
    one, other = (build_index(blocks(matrix), len(matrix), 32, quiet=True)[0] for _ in range(2))
    assert "IVF" in type(one).__name__
    assert np.array_equal(faiss.serialize_index(one), faiss.serialize_index(other))


def test_equal_vectors_do_not_lower_the_recall() -> None:
    matrix = np.repeat(clustered(20), [1, 2, 15, 30, 150, *[1] * 15], axis=0)
    _, told = build_index(blocks(matrix), len(matrix), 32, quiet=True)
    assert told["recall_at_10"] == 1.0


@pytest.mark.parametrize("rows", [0, 3])
def test_without_any_vector_the_index_is_empty(rows: int) -> None:
    matrix = np.full((rows, 4), np.nan, np.float16)
    index, told = build_index(blocks(matrix), rows, 4, quiet=True)
    assert index.ntotal == 0
    assert told == {"kind": "Flat", "vectors": 0, "left_out": rows, "recall_at_10": None}


def test_few_vectors_among_many_rows_are_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "EXACT_ROWS", 100)
    monkeypatch.setattr(indexing, "free_bytes", lambda: 1_500_000)
    matrix = np.full((2_000, 32), np.nan, np.float32)
    matrix[[5, 1_999]] = clustered(2)
    index, told = build_index(blocks(matrix), len(matrix), 32, quiet=True)
    assert told == {"kind": "Flat", "vectors": 2, "left_out": 1_998, "recall_at_10": 1.0}
    assert index.search(normalized(matrix[[1_999]]), 1)[1].tolist() == [[1_999]]


def test_a_recall_that_was_not_measured_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(indexing, "EXACT_ROWS", 100)
    matrix = np.full((5_000, 4), np.nan, np.float32)
    matrix[:3] = clustered(3, 4)
    index, told = build_index(blocks(matrix), len(matrix), 4, quiet=False)
    assert told == {"kind": "HNSW32", "vectors": 3, "left_out": 4_997, "recall_at_10": None, "efSearch": 128}
    assert "HNSW32 of 3 vectors, 4,997 rows without a vector left out, recall not measured" in capsys.readouterr().err
    assert index.search(normalized(matrix[[1]]), 1)[1].tolist() == [[1]]


def test_a_zero_and_an_infinite_vector() -> None:
    matrix = clustered(10, 4)
    matrix[2], matrix[3, 1] = 0, np.inf
    index, told = build_index(blocks(matrix), 10, 4, quiet=True)
    assert told["left_out"] == 1
    assert index.reconstruct(2).tolist() == [0] * 4


def test_the_kind_follows_rows_and_memory() -> None:
    kinds = [choose_kind(rows, 384, 24 * GB).name for rows in (0, 100_000, 100_001, 5_000_000, 20_000_000)]
    assert kinds == ["Flat", "Flat", "HNSW32", "HNSW32", "IVF16384_HNSW32,SQ8"]
    with pytest.raises(UsageError, match=r"500,000,000 vectors of 384 numbers takes 294.0 GB of memory; 25.8 GB are"):
        choose_kind(500_000_000, 384, 24 * GB)


def test_a_run_without_vectors_is_refused(tmp_path: Path, write_jsonl: Write, shardmill: Cli) -> None:
    spec = fake_spec(write_jsonl(fake_rows(5)), task=SHOUTING)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert_told(shardmill("merge", run.ledger.url, "--out", tmp_path / "i.faiss"), 2, "no vector column")
    assert [path.name for path in tmp_path.glob("i.*")] == []


def test_a_missing_library_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shardmill: Cli) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"pip install 'shardmill\[faiss\]'"):
        run.merge(tmp_path / "index.faiss")
    assert_told(shardmill("merge", run.ledger.url, "--out", tmp_path / "i.faiss"), 2, "faiss-cpu is not installed")
    assert not (tmp_path / "index.faiss").exists()


def test_a_full_disk_leaves_the_earlier_files(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.merge(tmp_path / "index.faiss")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("index.*")}

    def full(*how: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npy, "open_parquet", full)
    with pytest.raises((OSError, StoreError)):
        run.merge(tmp_path / "index.faiss")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("index.*")} == before
    assert len([*tmp_path.glob("*index*")]) == 2


KILLED = """
import os, signal, sys
from shardmill.results.files import npy
from shardmill.run import Run

def die(*how):
    os.kill(os.getpid(), signal.SIGKILL)

npy.open_parquet = die
Run(sys.argv[1]).merge(sys.argv[2])
"""


def test_a_kill_leaves_no_half_file(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "new" / "index.faiss"
    out.parent.mkdir()
    ended = subprocess.run([sys.executable, "-c", KILLED, run.ledger.url, str(out)], check=False, env=dict(os.environ))
    assert ended.returncode == -signal.SIGKILL
    assert not [path for path in out.parent.iterdir() if path.suffix in (".faiss", ".parquet")]
    run.merge(out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["index.faiss", "index.ids.parquet"]


def test_it_may_follow_the_last_shard(tmp_path: Path) -> None:
    out = tmp_path / "index.faiss"
    assert Following(then=(f"merge:{out}",)).then == (f"merge:{out}",)
