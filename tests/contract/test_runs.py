"""A whole run of the fake task, with source and run folder in every store; and a proof that notices what is wrong."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import RunExists, SourceError, StaleResume, UsageError
from shardmill.ledger import Commit
from shardmill.plan.spec import Spec, make_spec
from shardmill.results.verify import Report, digest
from shardmill.run import Run, start
from shardmill.store import locate, open_store
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.corpora import fake_rows, fake_spec

ROWS = fake_rows(60)
BAD = 17


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=20)
    return out.getvalue()


WRITERS = {"jsonl": _jsonl, "parquet": _parquet}


@pytest.fixture(params=WRITERS)
def spec(request: pytest.FixtureRequest, place: str) -> Spec:
    """One row of the source has no text, and each row has a number to keep."""
    rows: list[dict[str, Any]] = [{**row, "n": i} for i, row in enumerate(ROWS)]
    rows[BAD]["text"] = None
    open_store(f"{place}/source").put(f"items.{request.param}", WRITERS[request.param](rows))
    work = fake_spec(f"{place}/source/items.{request.param}").work.model_dump()
    return make_spec({**work, "keep": "n"}, {"shard_bytes": 1_500, "max_errors": "5%", "lease_s": 30.0})


def _commit_key(run: Run, shard: int) -> str:
    (found,) = [e.key for e in run.ledger.store.list(f"commits/{shard:06d}.")]
    return found


def _go(spec: Spec, out: str | Path, **how: Any) -> Run:
    return start(spec, out, engine=InProcessEngine(), **how)


def test_a_run_from_source_to_proof_and_result(spec: Spec, place: str, tmp_path: Path) -> None:
    run = _go(spec, f"{place}/run")
    assert len(run.plan.shards) > 1
    report = run.verify()
    assert report.verified, report
    assert (report.rows, report.errors) == (60, 1)
    assert json.loads(run.ledger.store.get("report.json"))["verified"] is True
    _check_table(run.table(), None)
    _check_parquet(run, f"{place}/merged.parquet")
    _check_npy(run, tmp_path / "merged.npy")
    _check_search(run)


def _check_table(table: pa.Table, missing: list[float] | None) -> None:
    """Every row in its place; the one without a vector has `missing` instead."""
    assert table.column_names == ["row", "id", "n", "embedding"]
    assert table.column("row").to_pylist() == table.column("n").to_pylist() == list(range(60))
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    for i, vector in enumerate(table.column("embedding").to_pylist()):
        wanted = missing if i == BAD else fake_vector(ROWS[i]["text"]).tolist()
        assert vector == pytest.approx(wanted, nan_ok=True), i


def _check_parquet(run: Run, out: str) -> None:
    merged = run.merge(out)
    store, key = locate(out)
    assert (merged.files, merged.rows, merged.bytes) == ((out,), 60, len(store.get(key)))
    _check_table(pq.read_table(io.BytesIO(store.get(key))), [float("nan")] * 8)


def _check_npy(run: Run, out: Path) -> None:
    merged = run.merge(out)
    vectors, others = np.load(out), pq.read_table(out.with_suffix(".ids.parquet"))
    assert merged.files == (str(out), str(out.with_suffix(".ids.parquet")))
    assert vectors.shape == (60, 8)
    assert np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist() == [BAD]
    assert np.allclose(vectors[3], fake_vector(ROWS[3]["text"]))
    assert others.column_names == ["row", "id", "n"]
    assert others.column("id").to_pylist() == [row["id"] for row in ROWS]


def _check_search(run: Run) -> None:
    for i in (0, 41):
        hits = run.search(ROWS[i]["text"], k=3)
        assert len(hits) == 3
        assert (hits[0].row, hits[0].values) == (i, {"id": f"k{i}", "n": i})
        assert hits[0].score == pytest.approx(1.0)
        assert hits[0].score > hits[1].score >= hits[2].score


def test_the_same_call_again_does_nothing(spec: Spec, place: str) -> None:
    before = _go(spec, f"{place}/run").ledger.commits.read()

    class NoEngine:
        def start(self, run: str) -> Any:
            raise AssertionError("nothing is left to do")

    again = start(spec, f"{place}/run", engine=NoEngine())
    assert again.ledger.commits.read() == before


def test_what_was_deleted_is_done_again_and_nothing_else(spec: Spec, place: str) -> None:
    run = _go(spec, f"{place}/run")
    before = dict(run.ledger.commits.read())
    run.ledger.store.delete(_commit_key(run, 1))
    after = _go(spec, f"{place}/run", resume=True).ledger.commits.read()
    assert {i for i in after if after[i].attempt != before[i].attempt} == {1}
    assert Run(f"{place}/run").verify().verified


def test_the_status_is_plain_json(spec: Spec, place: str) -> None:
    run = _go(spec, f"{place}/run")
    status = json.loads(json.dumps(run.status().to_json()))
    assert (status["state"], status["rows"], status["errors"], status["share"]) == ("complete", 60, 1, 1.0)
    assert status["shards"] == status["shards_done"] == len(run.plan.shards)
    assert [w["live"] for w in status["workers"]] == [False]


# From here on a folder on the disk is enough.

Write = Callable[..., Path]


@pytest.fixture
def source(write_jsonl: Write) -> Path:
    return write_jsonl(ROWS)


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Run:
    return _go(fake_spec(source), tmp_path / "run")


def _verify(run: Run) -> Report:
    """As a stranger would: from the folder alone."""
    return Run(run.ledger.url).verify()


def _failed(report: Report) -> set[str]:
    assert not report.verified
    return {check.name for check in report.checks if not check.ok}


def _path(run: Run, key: str) -> Path:
    return Path(run.ledger.url) / key


def _rewrite_commit(run: Run, commit: Commit) -> None:
    _path(run, _commit_key(run, commit.shard)).write_text(json.dumps(asdict(commit)))


def _rewrite_part(run: Run, shard: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """A part that was made wrongly from the start: its commit is in order and names its digest."""
    commit = run.ledger.commits.read()[shard]
    path = _path(run, commit.part)
    pq.write_table(change(pq.read_table(path)), path)
    made = digest(run.ledger.store, commit.part)
    _rewrite_commit(run, replace(commit, digest=made, part_bytes=path.stat().st_size))


def test_an_honest_run_is_verified(run: Run) -> None:
    assert _verify(run).verified


def test_a_flipped_byte_in_a_part_is_found_wherever_it_is(run: Run) -> None:
    path = _path(run, run.ledger.commits.read()[0].part)
    sound = path.read_bytes()
    for at in range(0, len(sound), 97):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        assert {"digests", "rows"} <= _failed(_verify(run))


def test_a_missing_part_is_found(run: Run) -> None:
    _path(run, run.ledger.commits.read()[1].part).unlink()
    report = _verify(run)
    assert {"parts", "rows"} <= _failed(report)
    assert run.ledger.commits.read()[1].part in str(report)


def test_a_part_that_cannot_be_read_is_found(run: Run) -> None:
    commit = run.ledger.commits.read()[1]
    _path(run, commit.part).write_bytes(b"PAR1 and then nothing")
    _rewrite_commit(run, replace(commit, digest=digest(run.ledger.store, commit.part)))
    assert "parts" in _failed(_verify(run))


def test_a_deleted_commit_is_found(run: Run) -> None:
    _path(run, _commit_key(run, 1)).unlink()
    report = _verify(run)
    assert "commits" in _failed(report)
    assert "missing 1" in report.checks[0].seen


def test_a_commit_of_another_plan_is_found(run: Run) -> None:
    _rewrite_commit(run, replace(run.ledger.commits.read()[1], plan="0123456789abcdef"))
    report = _verify(run)
    assert "commits" in _failed(report)
    assert "from another plan 1" in report.checks[0].seen


def test_a_commit_beyond_the_plan_is_found(run: Run) -> None:
    beyond = _commit_key(run, 1).replace("000001", "000099")
    _path(run, beyond).write_text(json.dumps(asdict(replace(run.ledger.commits.read()[1], shard=99))))
    assert "commits" in _failed(_verify(run))


def test_swapped_vectors_are_found(run: Run) -> None:
    """Counts, ids, norms and the part's digest all hold; the rows are not those that were handed out."""

    def swap(table: pa.Table) -> pa.Table:
        vectors = table.column("embedding").take(pa.array([1, 0, *range(2, table.num_rows)]))
        return table.set_column(table.column_names.index("embedding"), table.schema.field("embedding"), vectors)

    _rewrite_part(run, 0, swap)
    assert _failed(_verify(run)) == {"bindings", "sample"}


def test_a_kept_column_that_is_not_the_source_s_is_found(run: Run) -> None:
    def rename(table: pa.Table) -> pa.Table:
        ids = pa.array([f"x{i}" for i in range(table.num_rows)])
        return table.set_column(table.column_names.index("id"), "id", ids)

    _rewrite_part(run, 0, rename)
    report = _verify(run)
    assert _failed(report) == {"bindings", "contents", "sample"}
    (contents,) = [check for check in report.checks if check.name == "contents"]
    assert [row["id"]["id"] for row in contents.rows[:2]] == ["x0", "x1"]


def test_a_lost_row_is_found(run: Run) -> None:
    _rewrite_part(run, 0, lambda table: table.slice(1))
    assert "rows" in _failed(_verify(run))


def _scaled(table: pa.Table, factor: float) -> pa.Table:
    values = table.column("embedding").combine_chunks().values.to_numpy() * np.float32(factor)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), 8)
    return table.set_column(table.column_names.index("embedding"), table.schema.field("embedding"), vectors)


def test_a_norm_that_is_off_is_found(run: Run) -> None:
    _rewrite_part(run, 0, lambda table: _scaled(table, 1.1))
    assert _failed(_verify(run)) == {"bindings", "norms"}


def test_a_vector_that_is_not_finite_is_found(run: Run) -> None:
    _rewrite_part(run, 0, lambda table: _scaled(table, float("inf")))
    assert "finite" in _failed(_verify(run))


def test_an_error_without_a_record_is_found(run: Run) -> None:
    def forget(table: pa.Table) -> pa.Table:
        vectors = pa.array([None, *table.column("embedding").to_pylist()[1:]], table.schema.field("embedding").type)
        return table.set_column(table.column_names.index("embedding"), "embedding", vectors)

    _rewrite_part(run, 0, forget)
    assert "vectors" in _failed(_verify(run))


def test_ids_that_occur_twice_are_named_and_all_rows_are_kept(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(60)
    rows[50]["id"] = rows[3]["id"]
    run = _go(fake_spec(write_jsonl(rows)), tmp_path / "run")
    report = run.verify()
    assert _failed(report) == {"ids"}
    assert "k3 in rows 3 and 50" in str(report)
    assert run.table().num_rows == 60


def test_a_source_that_changed_since_is_found(run: Run, source: Path) -> None:
    with source.open("a") as file:
        file.write('{"id": "late", "text": "late"}\n')
    assert "source" in _failed(_verify(run))


def test_a_source_that_is_gone_is_found(run: Run, source: Path) -> None:
    source.unlink()
    assert {"source", "sample"} <= _failed(_verify(run))


# Resume refuses to mix.


def test_a_changed_source_is_not_mixed_in(run: Run, source: Path) -> None:
    with source.open("a") as file:
        file.write('{"id": "late", "text": "late"}\n')
    with pytest.raises(StaleResume, match=r"items.jsonl had [\d,]+ bytes and has [\d,]+"):
        _go(fake_spec(source), run.ledger.url)


def test_another_model_is_not_mixed_in(run: Run, source: Path) -> None:
    with pytest.raises(StaleResume, match=r"the model's weights changed \(fake-1 -> fake-2\)"):
        _go(fake_spec(source, params={"version": "2"}), run.ledger.url)


def test_another_field_is_not_mixed_in(run: Run, source: Path) -> None:
    spec = make_spec({**fake_spec(source).work.model_dump(), "text": "id"})
    with pytest.raises(StaleResume, match="text was 'text' and is 'id'"):
        _go(spec, run.ledger.url)


def test_a_source_that_changes_under_way_stops_the_run(tmp_path: Path, source: Path) -> None:
    def grow(step: str, shard: int) -> None:
        if (step, shard) == ("committed", 0):
            os.utime(source)

    with pytest.raises(StaleResume, match="changed during the run"):
        start(fake_spec(source, shard_bytes=300), tmp_path / "run", engine=InProcessEngine(on_step=grow))


def test_what_refuses_leaves_the_run_as_it_was(run: Run, source: Path) -> None:
    with pytest.raises(StaleResume):
        _go(fake_spec(source, params={"version": "2"}), run.ledger.url)
    assert _verify(run).verified


def test_fresh_starts_over_with_the_new_work(run: Run, source: Path) -> None:
    note = Path(run.ledger.url) / "notes.txt"
    note.write_text("mine")
    again = _go(fake_spec(source, params={"version": "2", "dims": 4}), run.ledger.url, fresh=True)
    assert again.plan.id != run.plan.id
    assert again.verify().verified
    assert note.read_text() == "mine"


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path, source: Path) -> None:
    """With --fresh too: its `logs` are not ours."""
    log = tmp_path / "home" / "logs" / "precious.log"
    log.parent.mkdir(parents=True)
    log.write_text("mine")
    for fresh in (False, True):
        with pytest.raises(RunExists, match="is not empty and holds no run"):
            _go(fake_spec(source), tmp_path / "home", fresh=fresh)
    assert log.read_text() == "mine"


def test_fresh_is_refused_while_a_worker_is_alive(run: Run, source: Path) -> None:
    alive = {"host": socket.gethostname(), "pid": os.getpid(), "state": "working", "open": {}, "at": time.time()}
    rates = dict.fromkeys(("rows_per_s", "bytes_per_s", "tokens_per_s"), 0.0)
    run.ledger.workers.beat("busy", {**alive, **rates})
    with pytest.raises(RunExists, match=r"1 workers are working on it \(busy\)"):
        _go(fake_spec(source), run.ledger.url, fresh=True)
    run.ledger.workers.beat("busy", {**alive, **rates, "state": "done"})
    _go(fake_spec(source), run.ledger.url, fresh=True)


def test_resume_alone_does_not_start_a_run(tmp_path: Path, source: Path) -> None:
    with pytest.raises(UsageError, match="there is no run to resume"):
        _go(fake_spec(source), tmp_path / "run", resume=True)


def test_a_column_that_would_hide_the_result_is_refused(tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl([{"row": 1, "text": "a"}])
    spec = make_spec({**fake_spec(source).work.model_dump(), "id": "row"})
    with pytest.raises(UsageError, match="'row' has the name of one of the result's own columns"):
        _go(spec, tmp_path / "run")


def test_a_missing_source_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        _go(fake_spec(tmp_path / "none.jsonl"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_ids_and_kept_columns_has_row_numbers(tmp_path: Path, source: Path) -> None:
    work = {**fake_spec(source).work.model_dump(), "id": None}
    run = _go(make_spec(work, {"shard_bytes": 2_000}), tmp_path / "run")
    assert run.verify().verified
    assert run.table().column_names == ["row", "embedding"]
    run.merge(tmp_path / "m.npy")
    assert pq.read_table(tmp_path / "m.ids.parquet").column("row").to_pylist() == list(range(60))
    assert run.search(ROWS[5]["text"], k=1)[0].row == 5


@pytest.mark.parametrize("columns", [["row"], ["row", "id"], ["id", "row"], ["id"], []])
def test_every_column_of_the_result_can_be_asked_for(run: Run, columns: list[str]) -> None:
    asked = run.table(columns)
    assert asked == run.table().select(["row", *(name for name in columns if name != "row")])
    assert asked.column("row").to_pylist() == list(range(60))


def test_a_column_that_the_result_lacks_is_told_with_the_nearest_that_it_has(run: Run) -> None:
    with pytest.raises(UsageError, match=r"(?s)has no column 'rows'.*row"):
        run.table(["rows"])
