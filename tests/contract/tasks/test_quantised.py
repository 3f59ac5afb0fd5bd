"""A run whose vectors are bytes or bits: killed, finished on another engine, proved, searched, merged, refreshed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, UsageError
from shardmill.core.quantised import QUANTISED
from shardmill.models.retrieval.vectors import normalized
from shardmill.plan.spec import make_spec
from shardmill.results.vectors import StoredVectors
from shardmill.run import Run, prepare, resume
from shardmill.testing import InProcessEngine, crash_at
from shardmill.verbs.embed.task import EmbedTask
from tests.support.forking import Forking
from tests.support.static_models import CORPUS, vectors_for, word_piece, write_model2vec
from tests.support.waiting import PATIENCE_S

# This process has threads, of which a child of its own would have none.
processes = Forking()

ROWS, DIMS = 200, 100


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    backend = word_piece()
    folder = tmp_path_factory.mktemp("model") / "model"
    return str(write_model2vec(folder, backend, {"embeddings": vectors_for(backend, DIMS)}))


@pytest.fixture
def items(tmp_path: Path) -> Path:
    words = " ".join(CORPUS).split()
    draw = np.random.default_rng(3)
    rows = [{"id": n, "text": " ".join(draw.choice(words, 12))} for n in range(ROWS - 1)]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": ROWS - 1, "text": "🙂🙂"}]))
    return path


def _embed(items: Path, model: str, dtype: str, out: Path, **more: object) -> Run:
    return shardmill.embed(
        str(items), text="text", id="id", model=model, dtype=dtype, out=str(out), max_errors=1, quiet=True, **more
    )


def _embed_and_die(run: str) -> None:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(run)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_killed_finished_elsewhere_and_proved(dtype: str, items: Path, model: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    params = {"model": model, "dtype": dtype}
    work = {"source": str(items), "text": "text", "id": "id", "task": "embed", "params": params}
    settings = {"device": "cpu", "shard_bytes": 2_000, "lease_s": 5.0, "max_errors": "1"}
    run = prepare(make_spec(work, settings), out)
    child = processes.Process(target=_embed_and_die, args=(out,))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)

    run = resume(out, {"engine": "local", "workers": 2})
    report = run.verify(sample="all")
    assert report.verified, report
    said = next(check.seen for check in report.checks if check.name == "sample")
    assert f"{dtype} has a mean cosine of 0." in said
    assert "of the ten nearest" in said

    plain = _embed(items, model, "float32", tmp_path / "plain")
    texts = [json.loads(line)["text"] for line in items.read_text().splitlines()]
    stored = StoredVectors.find(run.table().schema, ())
    assert stored is not None
    assert stored.quantiser is not None
    unit = normalized(stored.quantiser.decode(run.vectors())[: ROWS - 1])
    same = 0
    for text in texts[:20]:
        hits, exact = run.search(text, k=5), [hit.row for hit in plain.search(text, k=5)]
        cosines = unit @ plain.vectors()[texts.index(text)]
        assert [hit.score for hit in hits] == pytest.approx(np.sort(cosines)[:-6:-1], abs=1e-5)
        assert [cosines[hit.row] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert hits[0].row == exact[0]
        same += len({hit.row for hit in hits} & {*exact})
    if dtype != "binary":
        assert same / 100 > 0.95


@pytest.mark.parametrize("dtype", QUANTISED)
def test_what_leaves_the_run(dtype: str, items: Path, model: str, tmp_path: Path) -> None:
    run, plain = _embed(items, model, dtype, tmp_path / "run"), _embed(items, model, "float32", tmp_path / "plain")
    merged = tmp_path / "all.parquet"
    run.merge(str(merged))
    schema = pq.read_schema(merged)
    stored = StoredVectors.find(schema, ())
    assert stored is not None
    assert stored.type == dtype
    table = pq.read_table(merged)
    assert table.column("embedding").null_count == 1
    floats = plain.vectors()
    there = np.isfinite(floats[:, 0])
    vectors = stored.read_floats(table.column("embedding").combine_chunks())
    assert np.array_equal(np.isfinite(vectors[:, 0]), there)
    close = (vectors * floats)[there].sum(axis=1) / np.linalg.norm(vectors, axis=1)[there]
    assert close.min() > (0.6 if dtype == "binary" else 0.99)
    run.merge(str(tmp_path / "all.npy"))
    matrix = np.load(tmp_path / "all.npy")
    assert matrix.dtype == stored.dtype
    assert np.array_equal(matrix, run.vectors())
    assert (matrix[ROWS - 1] == stored.quantiser.missing).all()


def test_a_wrong_row_is_found(items: Path, model: str, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in items.read_text().splitlines()][:30]
    exact = EmbedTask(model=model)
    exact.open(Device("cpu", "cpu"))
    again = exact.run(exact.prepare(texts).inputs).rows.column("embedding")
    for dtype in QUANTISED:
        run = _embed(items, model, dtype, tmp_path / dtype)
        task, rows = EmbedTask(**run.plan.work.params), run.table().column("embedding")
        allowed = task.most_distant("float32")
        assert allowed is not None
        for i in range(30):
            assert task.distance("embedding", rows[i], again[i]) <= allowed
            assert task.distance("embedding", rows[i], again[(i + 1) % 30]) > allowed


def test_a_refresh_keeps_the_ranges_and_a_migration_measures_new_ones(items: Path, model: str, tmp_path: Path) -> None:
    run = _embed(items, model, "int8", tmp_path / "run")
    ranges = run.plan.work.params["ranges"]
    with items.open("a") as file:
        file.write(json.dumps({"id": ROWS, "text": "one more of these"}) + "\n")
    assert run.refresh().computed >= 1
    run = Run(str(tmp_path / "run"))
    assert run.plan.work.params["ranges"] == ranges
    assert run.verify(sample="all").verified
    run.migrate(dtype="uint8", dims=8)
    moved = Run(str(tmp_path / "run"))
    assert moved.plan.work.params["dtype"] == "uint8"
    assert len(moved.plan.work.params["ranges"][0]) == 8
    assert moved.verify(sample="all").verified
    moved.migrate(dtype="float32")
    assert "ranges" not in Run(str(tmp_path / "run")).plan.work.params


def test_what_cannot_be_is_refused(items: Path, model: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": 1, "text": ""}\n')
    with pytest.raises(SpecError, match="no texts to measure"):
        _embed(empty, model, "int8", tmp_path / "none")
    with pytest.raises(SpecError, match="belong to int8"):
        EmbedTask(model=model, dtype="float16", ranges=[[0.0], [1.0]])
    with pytest.raises(SpecError, match=f"two lists of {DIMS} numbers"):
        _ = EmbedTask(model=model, dtype="int8", ranges=[[0.0], [1.0]]).output
    with pytest.raises(SpecError, match="A table of vectors has no int8"):
        shardmill.load(str(items), text="text", id="id", model=model, dtype="int8", to="postgresql:///x", table="t")
    _embed(items, model, "binary", tmp_path / "run")
    with pytest.raises(UsageError, match="vector"):
        shardmill.map(f"run:{tmp_path / 'run'}", out=str(tmp_path / "map"))
