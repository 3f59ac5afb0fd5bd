"""Items of several rows: an item is still what is committed, set aside, hunted down and resumed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, TaskError
from shardmill.ledger import Ledger
from shardmill.results.verify import digest
from shardmill.run import Run, start
from shardmill.run.planner import make_plan
from shardmill.tasks.base import Prepared
from shardmill.testing import STEPS, FakeTask, InProcessEngine, crash_at, fake_vector
from shardmill.worker import Worker
from tests.support.corpora import fake_rows, fake_spec
from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]
SIZE = 16
BOTH = pytest.mark.parametrize("mean", [False, True], ids=["each", "mean"])
processes = Forking()


def some_rows(count: int) -> list[dict[str, str]]:
    """Texts of one window and of many."""
    return [{**row, "text": row["text"] * (1 + i * 5 % 7)} for i, row in enumerate(fake_rows(count))]


def params(mean: bool, **more: Any) -> dict[str, Any]:
    return {"window": SIZE, "mean": mean, **more}


def pieces(text: str) -> list[tuple[int, int, str]]:
    return [(at, min(len(text), at + SIZE), text[at : at + SIZE]) for at in range(0, len(text), SIZE)]


def check(run: Run, rows: list[dict[str, str]], bad: dict[int, str], mean: bool) -> None:
    """Every window of every item, or the mean of them; one null row and a reason for an item that has none."""
    table = run.table()
    due: list[tuple[Any, ...]] = []
    for i, row in enumerate(rows):
        vectors = [fake_vector(piece) for _, _, piece in pieces(row["text"])]
        if i in bad:
            due.append((i, row["id"], 0, None, None, None))
        elif mean:
            due.append((i, row["id"], 0, None, None, np.mean(vectors, axis=0)))
        else:
            spans = pieces(row["text"])
            due += [(i, row["id"], n, a, b, v) for n, ((a, b, _), v) in enumerate(zip(spans, vectors, strict=True))]
    assert table.column("row").to_pylist() == [d[0] for d in due]
    assert table.column("id").to_pylist() == [d[1] for d in due]
    if not mean:
        for k, name in enumerate(("window", "start", "stop"), 2):
            assert table.column(name).to_pylist() == [d[k] for d in due]
    for seen, d in zip(table.column("embedding").to_pylist(), due, strict=True):
        assert (seen is None) == (d[5] is None)
        assert seen is None or np.allclose(seen, d[5], atol=1e-6)
    errors = {e["row"]: e["reason"] for e in run.errors()}
    assert errors.keys() == bad.keys()
    assert all(bad[row] in reason for row, reason in errors.items())
    status = run.status()
    assert (status.rows, status.errors) == (len(rows), len(bad))
    report = run.verify()
    assert report.verified, report


@BOTH
def test_items_of_many_windows_over_shards_and_batches(tmp_path: Path, write_jsonl: Write, mean: bool) -> None:
    rows = some_rows(120)
    rows[50]["text"] = "one huge text of very many windows " * 150
    spec = fake_spec(write_jsonl(rows), params=params(mean), batch_tokens=200)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert len(run.plan.shards) > 3
    check(run, rows, {}, mean)
    merged = run.merge(tmp_path / "all.parquet")
    assert merged.rows == run.table().num_rows
    assert pq.read_table(tmp_path / "all.parquet").column("row").to_pylist() == run.table().column("row").to_pylist()
    assert run.table(["row"]) == run.table().select(["row"])
    run.merge(tmp_path / "all.npy")
    assert len(np.load(tmp_path / "all.npy")) == merged.rows
    assert run.cost().rows == len(rows)


@BOTH
def test_one_bad_window_sets_its_item_aside(tmp_path: Path, write_jsonl: Write, mean: bool) -> None:
    rows = some_rows(60)
    filler = "f" * SIZE
    rows[7]["text"] = filler * 5 + "!nan" + "." * (SIZE - 4) + filler * 5
    rows[21]["text"] = filler * 8 + "!raise"
    rows[40]["text"] = "!raise.........." * 40
    rows[44]["text"] = "!unpreparable" + filler * 3
    spec = fake_spec(write_jsonl(rows), params=params(mean), shard_bytes=1_000_000)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    bad = {7: "NaN", 21: "ValueError: this text is poison", 40: "ValueError", 44: "LookupError: no tokens for this"}
    check(run, rows, bad, mean)


@BOTH
def test_memory_that_runs_out(tmp_path: Path, write_jsonl: Write, mean: bool) -> None:
    rows = some_rows(80)
    spec = fake_spec(write_jsonl(rows), params=params(mean, fits=70), batch_tokens=1000)
    check(start(spec, tmp_path / "run", engine=InProcessEngine()), rows, {}, mean)


def _work(run: str, step: str | None = None) -> None:
    hook = {} if step is None else {"on_step": crash_at(step, 1)}
    Worker(Ledger(run), device=Device("cpu", "cpu"), **hook).work()


def _finish(*args: Any) -> int:
    process = processes.Process(target=_work, args=args)
    process.start()
    process.join(PATIENCE_S)
    return int(process.exitcode or 0)


@BOTH
def test_a_worker_killed_at_each_step(tmp_path: Path, write_jsonl: Write, mean: bool) -> None:
    rows = some_rows(60)
    spec = fake_spec(write_jsonl(rows), params=params(mean), batch_tokens=150)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    for step in STEPS:
        assert _finish(ledger.url, step) in (-signal.SIGKILL, 0)
    assert _finish(ledger.url) == 0
    check(Run(ledger.url), rows, {}, mean)


def test_a_window_that_kills_its_worker_convicts_its_item(tmp_path: Path, write_jsonl: Write) -> None:
    """A short item and a long one of many batches; neighbours in their batches go free."""
    rows = some_rows(40)
    rows[3]["text"] = "w" * SIZE * 30 + "!kill" + "w" * SIZE * 30
    rows[30]["text"] = "short !kill"
    spec = fake_spec(write_jsonl(rows), params=params(False), shard_bytes=1_000_000, batch_tokens=160)
    run = start(spec, tmp_path / "run")
    check(run, rows, dict.fromkeys((3, 30), "crashed every worker that ran it"), False)


def rewrite(run: Run, change: Callable[[pa.Table], pa.Table], *, honest: bool) -> None:
    """Change the first part as a fault in a worker would: with a commit that says what is there."""
    store = run.ledger.store
    commit = run.ledger.commits.read()[0]
    path = Path(run.ledger.url) / commit.part
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    for entry in list(store.list("commits/000000")):
        record = json.loads(store.get(entry.key))
        record |= {"digest": digest(store, commit.part), "part_bytes": path.stat().st_size}
        record |= {"part_rows": table.num_rows} if honest else {}
        store.put(entry.key, json.dumps(record).encode())


def _without(row: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


@pytest.mark.parametrize(
    ("lost", "failing"),
    [(0, {"windows"}), (2, {"windows"}), (5, {"sample"}), (-1, {"windows", "ids"})],
    ids=["first", "middle", "last", "item"],
)
def test_verify_misses_a_window(tmp_path: Path, write_jsonl: Write, lost: int, failing: set[str]) -> None:
    """Even where the part's digest and count say what is there. One item has six windows, the other a single one."""
    rows = [{"id": "long", "text": "abcdefgh" * 12}, {"id": "short", "text": "x"}]
    run = start(fake_spec(write_jsonl(rows), params=params(False)), tmp_path / "run", engine=InProcessEngine())
    assert run.verify().verified
    rewrite(run, (lambda table: table.slice(0, 6)) if lost < 0 else _without(lost), honest=True)
    report = Run(run.ledger.url).verify()
    failed = {c.name for c in report.checks if not c.ok}
    assert failed & failing, report


def test_verify_sees_spans_that_leave_a_gap(tmp_path: Path, write_jsonl: Write) -> None:
    run = start(fake_spec(write_jsonl(some_rows(5)), params=params(False)), tmp_path / "r", engine=InProcessEngine())

    def shift(table: pa.Table) -> pa.Table:
        starts = table.column("start").to_pylist()
        at = next(i for i, n in enumerate(table.column("window").to_pylist()) if n == 1)
        starts[at] += 3
        return table.set_column(table.schema.get_field_index("start"), "start", pa.array(starts))

    rewrite(run, shift, honest=True)
    checks = {c.name: c for c in Run(run.ledger.url).verify(sample=0).checks}
    assert not checks["windows"].ok
    assert "1 window missing or out of place" in checks["windows"].seen


def test_verify_counts_rows_and_computes_means_again(tmp_path: Path, write_jsonl: Write) -> None:
    rows = some_rows(10)
    each = start(fake_spec(write_jsonl(rows), params=params(False)), tmp_path / "each", engine=InProcessEngine())
    rewrite(each, _without(3), honest=False)
    assert not {c.name: c.ok for c in Run(each.ledger.url).verify(sample=0).checks}["rows"]
    mean = start(fake_spec(write_jsonl(rows), params=params(True)), tmp_path / "mean", engine=InProcessEngine())

    def spoil(table: pa.Table) -> pa.Table:
        vectors = np.stack(table.column("embedding").to_numpy(zero_copy_only=False)).copy()
        vectors[:] = vectors[:, ::-1]
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        return table.set_column(table.schema.get_field_index("embedding"), "embedding", column)

    rewrite(mean, spoil, honest=True)
    checks = {c.name: c for c in Run(mean.ledger.url).verify(sample=64).checks}
    assert not checks["sample"].ok


def test_search_gives_each_item_once_with_its_nearest_window(tmp_path: Path, write_jsonl: Write) -> None:
    rows = some_rows(40)
    rows[11]["text"] = "0123456789abcdef" * 3 + "what we look for" + "0123456789abcdef" * 2
    run = start(fake_spec(write_jsonl(rows), params=params(False)), tmp_path / "run", engine=InProcessEngine())
    hits = run.search("what we look for", k=10)
    assert len({h.row for h in hits}) == 10
    first = hits[0]
    assert (first.row, first.values, first.window, first.start, first.stop) == (11, {"id": "k11"}, 3, 48, 64)
    assert first.score == pytest.approx(1.0)
    everything = run.search("what we look for", k=100)
    assert [h.row for h in everything[:10]] == [h.row for h in hits]
    assert sorted(h.row for h in everything) == list(range(40))
    plain = start(fake_spec(write_jsonl(rows)), tmp_path / "plain", engine=InProcessEngine())
    assert set(plain.search("x", k=1)[0].to_json()) == {"row", "score", "values"}


def test_wide_columns_are_repeated_a_few_rows_at_a_time(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.worker.block._WRITTEN_BYTES", 40_000)
    rows = some_rows(30)
    spec = fake_spec(write_jsonl(rows), params=params(False), shard_bytes=1_000_000)
    spec = spec.model_copy(update={"work": spec.work.model_copy(update={"keep": ("text",)})})
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    table = run.table()
    assert table.column("text").to_pylist() == [rows[r]["text"] for r in table.column("row").to_pylist()]
    check(run, rows, {}, False)


def test_columns_called_window(tmp_path: Path, write_jsonl: Write) -> None:
    """Of the source they are like any other, and may not hide the result's own."""
    rows = [{**row, "window": i % 3} for i, row in enumerate(fake_rows(20))]
    source = write_jsonl(rows)
    for window in (None, SIZE):
        spec = fake_spec(source, params={"window": window} if window else {})
        spec = spec.model_copy(update={"work": spec.work.model_copy(update={"keep": ("window",)})})
        if window:
            with pytest.raises(SpecError, match="'window' has the name of one of the result's own columns"):
                start(spec, tmp_path / "two", engine=InProcessEngine())
            continue
        run = start(spec, tmp_path / "one", engine=InProcessEngine())
        assert run.table().column("row").to_pylist() == list(range(20))
        assert run.verify().verified


class Undeclared(FakeTask):
    """Breaks the contract: several inputs a text, and no word of what becomes of them."""

    def prepare(self, texts: Any) -> Prepared:
        return self._cut(texts, 4)


class Unordered(FakeTask):
    """Breaks the contract: an input of no text."""

    def prepare(self, texts: Any) -> Prepared:
        found = self._cut(texts, 4)
        return Prepared(found.inputs, found.costs, owners=found.owners + 1)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("task", "said"),
    [("Undeclared", "does not say how they become rows"), ("Unordered", "`owners` do not match its inputs")],
)
def test_a_task_that_breaks_the_contract(tmp_path: Path, write_jsonl: Write, task: str, said: str) -> None:
    spec = fake_spec(write_jsonl(fake_rows(5)))
    spec = spec.model_copy(update={"work": spec.work.model_copy(update={"task": f"{__name__}:{task}"})})
    with pytest.raises(TaskError, match=said):
        start(spec, tmp_path / "run", engine=InProcessEngine())
