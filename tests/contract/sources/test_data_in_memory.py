"""Data in memory as a source: every type gives the same rows, is spilled once, and is found again by its values."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import shardmill
from shardmill.core.errors import ShardmillError, SourceError, StaleResume, UsageError
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.run.carrying import carry_out
from shardmill.run.spilling import keep_source
from shardmill.sources.held import ValueDigest, find_held
from shardmill.store.remote import _memory
from shardmill.testing import InProcessEngine, check_source
from tests.support import functions
from tests.support.corpora import fake_rows

ROWS: list[dict[str, Any]] = fake_rows(60)
TABLE = pa.Table.from_pylist(ROWS)
CHUNKED = pa.Table.from_batches(TABLE.to_batches(max_chunksize=7))


def categories() -> pd.DataFrame:
    return pd.DataFrame(ROWS).astype({"id": "category"})


TYPES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas, categories": categories,
    "Polars": lambda: pl.DataFrame(ROWS),
    "Polars, lazy": lambda: pl.LazyFrame(ROWS).filter(pl.col("id") != "none"),
    "Polars, categories": lambda: pl.DataFrame(ROWS).with_columns(pl.col("id").cast(pl.Categorical)),
    "Arrow table": lambda: TABLE,
    "Arrow table, chunked": lambda: CHUNKED,
    "Arrow reader": lambda: CHUNKED.to_reader(),
    "Arrow dataset": lambda: ds.dataset(CHUNKED),
    "dicts": lambda: ROWS,
    "iterator": lambda: iter(ROWS),
    "generator": lambda: (dict(row) for row in ROWS),
}


def begin(data: Any, out: str | Path, engine: Any = None, **more: Any) -> Run:
    work = {"source": find_held(data, "text"), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    return carry_out(work, {"shard_bytes": 500}, out, engine=engine or InProcessEngine(), **more)


def spilled(out: Path) -> list[str]:
    return sorted(path.name for path in out.rglob("*") if path.is_file() and path.parent.name == "spilled")


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_a_source_that_keeps_the_contract(tmp_path: Path, kind: str) -> None:
    kept = keep_source({"source": find_held(TYPES[kind](), "text")}, tmp_path / "run")
    assert check_source([kept["source"]], rows=ROWS, text="text", id="id") > 10
    again = keep_source({"source": find_held(TYPES[kind](), "text")}, tmp_path / "run")
    assert again == kept
    assert len(spilled(tmp_path)) == 1


def test_all_types_with_the_same_values_have_the_same_digest(tmp_path: Path) -> None:
    kept = {
        Path(keep_source({"source": find_held(make(), "text")}, tmp_path / str(i))["source"]).name
        for i, make in enumerate(TYPES.values())
    }
    assert len(kept) == 1


def test_the_digest_is_of_values_and_not_of_cuts() -> None:
    values: dict[str, list[Any]] = {
        "text": [None if i % 5 == 0 else f"word {i}" * (i % 7) for i in range(200)],
        "number": [None if i % 3 == 0 else i / 7 for i in range(200)],
        "list": [None if i % 11 == 0 else [i, None, i + 1][: i % 4] for i in range(200)],
        "struct": [{"a": i, "b": None if i % 2 else "x"} for i in range(200)],
    }
    table = pa.table(values)

    def digest(rows: pa.Table) -> str:
        found = ValueDigest(rows.schema)
        for batch in rows.to_batches():
            found.add(batch)
        return str(found)

    draw = random.Random(7)
    for _ in range(10):
        cuts = sorted(draw.sample(range(1, 200), 6))
        pieces = [table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, 200], strict=True)]
        assert digest(pa.concat_tables(pieces)) == digest(table)
        assert digest(pa.concat_tables([pieces[1], pieces[0], *pieces[2:]])) != digest(table)
    assert digest(table.rename_columns(["text", "number", "list", "other"])) != digest(table)
    assert digest(table.slice(0, 199)) != digest(table)


def test_the_same_call_resumes_and_other_values_are_refused(tmp_path: Path) -> None:
    first = begin(pd.DataFrame(ROWS), tmp_path / "run")
    assert first.verify().verified
    commits = sorted((tmp_path / "run" / "commits").iterdir())
    again = begin(iter(ROWS), tmp_path / "run")
    assert sorted((tmp_path / "run" / "commits").iterdir()) == commits
    assert again.plan.id == first.plan.id
    with pytest.raises(StaleResume, match="holds a different run: it read memory-"):
        begin(pd.DataFrame(ROWS[:-1]), tmp_path / "run")
    fresh = begin(pd.DataFrame(ROWS[:-1]), tmp_path / "run", fresh=True)
    assert fresh.table().num_rows == 59
    assert spilled(tmp_path) == [fresh.plan.stat.files[0].name]


def test_a_run_can_be_moved_with_its_data(tmp_path: Path) -> None:
    begin(TABLE, tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = Run(tmp_path / "moved")
    assert moved.verify().verified
    assert moved.plan.stat.files[0].place.startswith(str(tmp_path / "moved" / "spilled"))
    assert begin(TABLE, tmp_path / "moved").plan.id == moved.plan.id


def test_other_files_in_a_folder_of_that_name_are_never_touched(tmp_path: Path) -> None:
    own = tmp_path / "run" / "spilled" / "mine.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(ShardmillError, match="is not empty and holds no run"):
        begin(TABLE, tmp_path / "run")
    assert own.read_text() == "mine"


def test_data_of_a_process_that_died_before_its_plan_goes(tmp_path: Path) -> None:
    keep_source({"source": find_held(TABLE.slice(1), "text")}, tmp_path / "run")
    run = begin(TABLE, tmp_path / "run")
    assert spilled(tmp_path) == [run.plan.stat.files[0].name]


def raising() -> Iterator[dict[str, Any]]:
    yield from ROWS[:40]
    raise LookupError("the tap ran dry")


BAD: list[tuple[Callable[[], Any], str]] = [
    (raising, "The iterator raised LookupError at row 41: the tap ran dry."),
    (lambda: pd.DataFrame({"id": ["a", "b"], "text": ["x", 1]}), "column 'text' .* no one type fits .int, str."),
    (lambda: pd.DataFrame({"id": ["a"], "text": [object()]}), "column 'text' .* no one type fits .object."),
    (lambda: pd.DataFrame([["a", "b"]], columns=["text", "text"]), "two columns named 'text'"),
    (lambda: pd.DataFrame({"id": [], "text": []}), "The DataFrame has no rows"),
    (lambda: pd.DataFrame({"id": [1], "text": [2.5]}), "has type double, not text"),
    (lambda: pd.DataFrame({"id": [1], "body": ["b"]}), "no field 'text'"),
    (lambda: pl.DataFrame({"id": ["a"], "text": [object()]}), "column 'text' of the DataFrame holds objects"),
    (lambda: pl.LazyFrame({"id": ["a"], "text": [object()]}), "column 'text' of the LazyFrame holds objects"),
    (lambda: [*ROWS, {"id": "z", "text": 7}], "'text' in row 61 is a int, '7'"),
    (lambda: [*ROWS, "text"], "row 61 is of type str, not dict"),
    (lambda: iter([*ROWS, 5]), "row 61 is of type int, not dict"),
    (lambda: [{1: "text"}], "row 1 has the key 1"),
    (lambda: [{"id": "a", "text": "\ud800"}], "'text' in row 1"),
]


@pytest.mark.parametrize("make", [make for make, _ in BAD])
def test_bad_data_is_refused_in_a_line_and_begins_nothing(tmp_path: Path, make: Callable[[], Any]) -> None:
    said = next(words for each, words in BAD if each is make)
    with pytest.raises(SourceError, match=said) as told:
        begin(make(), tmp_path / "run")
    assert len(str(told.value).splitlines()) <= 2
    assert Ledger(tmp_path / "run").find_plan() is None


def test_a_broken_iterator_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        begin(raising(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert begin(iter(ROWS), tmp_path / "run").table().num_rows == 60


@pytest.mark.parametrize("source", [{"text": ["a"]}, 5, {"a"}, b"text", pd.Series(["a"]), np.array(["a b"]), object()])
def test_other_types_are_refused_with_those_that_work(source: Any) -> None:
    with pytest.raises(SourceError) as told:
        shardmill.embed(source, text="text")
    assert len(str(told.value).splitlines()) == 2
    if not hasattr(source, "dtype"):
        assert "a list of strings or of dicts" in str(told.value)


def test_strings_are_texts_unless_they_are_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.jsonl").write_text("{}")
    for places in (["a.jsonl", "b.jsonl"], ["s3://bucket/x"], ["data/*"], ["here.jsonl"], [Path("x")], ["yes/no"]):
        assert find_held(places) is None, places
    assert find_held(["some text", "other"], "body") is None
    for texts in (["cat", "dog"], ["a text.", "see b.jsonl"], ["", "x"], ["3.14", "is pi"], ("a b",)):
        held = find_held(texts)
        assert held is not None, texts
        assert held.text == "text"
        assert [value for batch in held.batches() for value in batch.column("text").to_pylist()] == list(texts)
    with pytest.raises(SourceError, match=r"some are places .'here.jsonl'., others not .'a text'."):
        find_held(["here.jsonl", "a text"])


def test_a_format_or_a_query_has_no_meaning(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"format=? has no meaning for data in memory"):
        shardmill.embed(TABLE, text="text", format="csv", out=tmp_path / "run")


def test_without_out_nothing_is_on_disk_and_memory_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("shardmill.run.in_memory._told", False)
    before = len(_memory)
    texts = [row["text"] for row in ROWS]
    made = shardmill.apply(texts, functions.measure)
    assert made.table(["letters"]).column("letters").to_pylist() == [len(text) for text in texts]
    assert made.verify().verified
    assert made.plan.work.source[0].endswith(".arrow")
    shardmill.apply(pd.DataFrame(ROWS), functions.measure, id="id")
    assert capfd.readouterr().err.count("not crash-safe") == 1
    assert list(tmp_path.rglob("*")) == []
    batches = made.batches()
    del made
    gc.collect()
    assert sum(batch.num_rows for batch in batches) == 60
    del batches
    gc.collect()
    assert len(_memory) == before


def test_without_out_other_processes_and_failures_are_told() -> None:
    before = len(_memory)
    with pytest.raises(UsageError, match=r"workers=? needs a run folder"):
        shardmill.apply(ROWS, functions.measure, workers=2)
    with pytest.raises(UsageError, match=r"engine=? needs a run folder"):
        shardmill.apply(ROWS, functions.measure, engine="slurm")
    with pytest.raises(ShardmillError, match="1 of 120 rows failed"):
        shardmill.apply(fake_rows(120), functions.fail_at_ninety, max_errors="0")
    gc.collect()
    assert len(_memory) == before


def test_duplicates_are_removed_in_memory() -> None:
    done = shardmill.dedup(pd.DataFrame([*ROWS, *ROWS[:7]]), text="text", id="id", exact=True)
    assert (done.items, done.dropped) == (67, 7)
    assert done.run.table(["id"]).column("id").to_pylist() == [row["id"] for row in ROWS]


def test_an_array_of_vectors_is_a_source(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float16)
    place = keep_source({"source": find_held(vectors)}, tmp_path / "map")["source"]
    with pa.ipc.open_file(place) as file:
        found = file.read_all().column("vector").combine_chunks()
    assert np.array_equal(found.flatten().to_numpy().reshape(50, 6), vectors.astype(np.float32))
    with pytest.raises(SourceError, match="is not one of vectors"):
        find_held(np.zeros(3))
