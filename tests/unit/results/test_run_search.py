"""Searches of run folders with a condition, by words and by both, compared with plain NumPy and the library of BM25."""

from __future__ import annotations

import random
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.fusion import RRF
from shardmill.plan.spec import make_spec
from shardmill.results import filtering, passages
from shardmill.run import Run, start
from shardmill.tasks.kept import KEPT
from shardmill.testing import FakeTask, InProcessEngine, fake_vector
from tests.support.cli import Cli, assert_told
from tests.support.corpora import SHOUTING
from tests.support.libraries import needed

bm25s = needed("bm25s")

Row = dict[str, Any]
ROWS, ODD = 240, 'ödd "näme"'
VOCABULARY = ["battery", "screen", "dies", "fast", "bright", "phone", "case", "cheap", "cable", "Zürich"]
QUERY = "battery Zürich cheap"
KINDS = ["plain", "windows", "take", "where"]


def rows() -> list[Row]:
    choose = random.Random(7)
    found: list[Row] = []
    for i in range(ROWS):
        text = " ".join(choose.choices(VOCABULARY, k=choose.randint(2, 12))) + (" !nan" if i % 17 == 3 else "")
        overall = None if i % 11 == 5 else i % 5 + 1
        price = (None, float("nan"))[i % 2] if i % 13 == 1 else i / 10
        found.append({"id": f"k{i}", "text": text, "n": i, "overall": overall, "price": price, ODD: f"ß{i % 4}"})
    return found


def make_run(source: Path | str, out: Path | str, work: Row | None = None, params: Row | None = None) -> Run:
    asked = {"source": str(source), "text": "text", "id": "id", "keep": ["n", "overall", "price", ODD]}
    asked |= {"task": "shardmill.testing:FakeTask", "params": params or {}, **(work or {})}
    spec = make_spec(asked, {"shard_bytes": 2_000, "max_errors": "100%", "lease_s": 5.0})
    return start(spec, out, engine=InProcessEngine())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "items.parquet"
    pq.write_table(pa.Table.from_pylist(rows()), path, row_group_size=30)
    return path


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    work: dict[str, Row] = {"take": {"take": 0.4}, "where": {"where": "n >= 90 AND text LIKE '%battery%'"}}
    params = {"window": 17} if request.param == "windows" else {}
    return make_run(source, tmp_path_factory.mktemp("run") / "run", work.get(request.param), params)


WHERES: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    "overall <= 2": lambda row: row["overall"] is not None and row["overall"] <= 2,
    "NOT overall = 3": lambda row: row["overall"] is not None and row["overall"] != 3,
    "overall IS NULL": lambda row: row["overall"] is None,
    "overall > 0 OR overall IS NULL": lambda row: True,
    "n = 100": lambda row: row["n"] == 100,
    "n BETWEEN 100 AND 130": lambda row: 100 <= row["n"] <= 130,
    "price < 3.05": lambda row: row["price"] is not None and row["price"] < 3.05,
    "id IN ('k7', 'k140', 'nobody')": lambda row: row["id"] in ("k7", "k140"),
    '"ödd ""näme""" LIKE \'%3\'': lambda row: row[ODD].endswith("3"),
    "n > 1000": lambda row: False,
    "NULL": lambda row: False,
    "1 = 1": lambda row: True,
}


def best_windows(ranked: Iterable[tuple[int, float]], items: list[int]) -> list[tuple[int, float]]:
    """The first row of each item."""
    found: dict[int, tuple[int, float]] = {}
    for row, score in ranked:
        found.setdefault(items[row], (row, score))
    return [*found.values()]


def by_meaning(run: Run, holds: Callable[[Row], bool]) -> list[tuple[int, float]]:
    """Rows of the result and cosines, nearest first, by plain NumPy over the whole table."""
    table, every, query = run.table(), rows(), fake_vector(QUERY).astype(np.float64)
    items, scores = table.column("row").to_pylist(), {}
    for row, vector in enumerate(table.column("embedding").to_pylist()):
        if vector is not None and holds(every[items[row]]):
            scores[row] = float(np.array(vector) @ query / np.linalg.norm(vector) / np.linalg.norm(query))
    return best_windows(sorted(scores.items(), key=lambda each: (-round(each[1], 6), each[0])), items)


def texts_of(run: Run) -> list[str]:
    table, every = run.table(), rows()
    whole = [every[item]["text"] for item in table.column("row").to_pylist()]
    if "start" not in table.column_names:
        return whole
    spans = zip(whole, table.column("start").to_pylist(), table.column("stop").to_pylist(), strict=True)
    return [text[start:stop] if start is not None else "" for text, start, stop in spans]


def by_words(run: Run, holds: Callable[[Row], bool], groups: list[int]) -> list[tuple[int, float]]:
    """Rows of the result and scores, as the library gives them for each group of rows."""
    texts, every, items = texts_of(run), rows(), run.table().column("row").to_pylist()
    tokens = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    (asked,) = bm25s.tokenize([QUERY], stopwords="en", return_ids=False, show_progress=False)
    scores, first = {}, 0
    for size in groups:
        index = bm25s.BM25(method="lucene")
        index.index(tokens[first : first + size], show_progress=False)
        for row, score in enumerate(index.get_scores(asked), first):
            if score > 0 and holds(every[items[row]]):
                scores[row] = float(score)
        first += size
    return best_windows(sorted(scores.items(), key=lambda each: (-np.float32(each[1]), each[0])), items)


@pytest.fixture(params=[50, 100_000])
def groups(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The sizes of the groups that words are weighed in; no group is there before."""
    monkeypatch.setattr(passages, "GROUP_ROWS", request.param)
    home = passages.local_folder
    monkeypatch.setattr(passages, "local_folder", lambda store, digest: tmp_path / home(store, digest).name)
    run.close()
    sizes = passages._sizes(list(passages._groups(run.plan, run.ledger.commits.read_complete(run.plan))))
    assert (len(sizes) > 1) == (request.param == 50)
    return [*sizes]


def seen(run: Run, hits: list[Any]) -> list[tuple[int, str]]:
    return [(hit.row, hit.values["id"]) for hit in hits]


def named(run: Run, found: list[tuple[int, float]]) -> list[tuple[int, str]]:
    items = run.table(["id"]).column("row").to_pylist()
    return [(items[row], f"k{items[row]}") for row, _ in found]


@pytest.mark.parametrize("where", WHERES)
def test_the_nearest_of_the_rows_that_match_are_found(run: Run, where: str) -> None:
    due = by_meaning(run, WHERES[where])
    for k in (1, 7, ROWS):
        hits = run.search(QUERY, k, where=where)
        assert seen(run, hits) == named(run, due[:k])
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in due[:k]], abs=1e-5)
    spans = run.table().to_pylist()
    for hit, (row, _) in zip(hits, due, strict=True):
        assert (hit.window, hit.start) == (spans[row].get("window"), spans[row].get("start"))
        assert hit.values["overall"] == rows()[hit.row]["overall"]


@pytest.mark.parametrize("where", ["", "overall <= 2", "n BETWEEN 100 AND 130", "n > 1000"])
def test_words_are_found_with_the_scores_of_the_library(run: Run, groups: list[int], where: str) -> None:
    due = by_words(run, WHERES[where], groups)
    for k in (1, 7, ROWS):
        hits = run.search(QUERY, k, where=where, words=True)
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in due[:k]], rel=1e-5)
        assert seen(run, hits) == named(run, due[:k])


@pytest.mark.parametrize("where", ["", "overall <= 2", "n > 1000"])
@pytest.mark.parametrize("k", [3, 20])
def test_both_are_fused_by_rank_as_postgresql_does_it(run: Run, groups: list[int], where: str, k: int) -> None:
    items = run.table(["id"]).column("row").to_pylist()
    lists = [by_meaning(run, WHERES[where]), by_words(run, WHERES[where], groups)]
    scores: dict[int, float] = {}
    for ranked in lists:
        for rank, (row, _) in enumerate(ranked[: max(4 * k, 60)], start=1):
            scores[items[row]] = scores.get(items[row], 0.0) + 1 / (RRF + rank)
    hits = run.search(QUERY, k, where=where, hybrid=True)
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True)[:k])
    assert [hit.score for hit in hits] == pytest.approx([scores[hit.row] for hit in hits])
    assert len({hit.row for hit in hits}) == len(hits)


def test_several_searches_are_those_of_each_text(run: Run) -> None:
    texts = ["battery", "screen bright", "nothing of this"]
    for how in ({}, {"words": True}, {"hybrid": True}):
        together = run.search_many(texts, 4, where="overall <= 3", **how)
        for text, hits in zip(texts, together, strict=True):
            alone = run.search(text, 4, where="overall <= 3", **how)
            assert seen(run, hits) == seen(run, alone)
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone])
    assert run.search("nothing of this", words=True) == []


def test_a_condition_is_judged_once_for_several_searches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []
    monkeypatch.setattr(
        "shardmill.results.search.find_rows", lambda *args, **how: judged.append(args[2]) or filtering.find_rows(*args)
    )
    run.close()
    for where in ("overall = 1", "overall = 1", "overall = 2"):
        run.search_many(["battery", "case"], where=where, hybrid=True)
    assert judged == ["overall = 1", "overall = 2"]


def test_row_groups_that_cannot_match_are_not_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(source, tmp_path / "run")
    read: list[int] = []
    judge = filtering._judge
    monkeypatch.setattr(filtering, "_judge", lambda *args: read.append(1) or judge(*args))
    assert [hit.values["n"] for hit in run.search(QUERY, 500, where="n >= 235")]
    assert len(read) == 1 < len(run.plan.shards)


def test_no_model_is_opened_for_words_alone(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(source, tmp_path / "run")

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was opened")

    for place in (FakeTask, "open"), (FakeTask, "embed_query"), (KEPT, "use"):
        monkeypatch.setattr(*place, refuse)
    monkeypatch.setattr("shardmill.results.search.open_task", refuse)
    assert run.search("battery", words=True)
    assert not [*(tmp_path / "run/final").glob("vectors-*")]


def test_words_and_the_index_of_passages_share_their_files(source: Path, tmp_path: Path) -> None:
    run = make_run(source, tmp_path / "run", {"keep": ["n", "text"]})
    found = run.search(QUERY, 50, words=True)
    (words,) = (tmp_path / "run/final").glob("passages-*/*.words")
    before = {path: path.stat().st_mtime_ns for path in words.iterdir()}
    passages.write_run_words(run.ledger, run.plan)
    assert {path: path.stat().st_mtime_ns for path in words.iterdir()} == before
    (words / "of-before").touch()
    group = next(passages._groups(run.plan, run.ledger.commits.read_complete(run.plan)))
    passages._write_group(run.ledger, run.plan, group, words.parent, "000000", passages.WordRules())
    assert (words / "of-before").exists()
    (words / "of-before").unlink()
    assert Run(tmp_path / "run").search(QUERY, 50, words=True) == found


def test_what_a_killed_index_of_words_left_is_not_searched(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(source, tmp_path / "run")
    monkeypatch.setattr(passages, "GROUP_ROWS", 50)
    written = passages.write_words

    def killed(texts: list[str], folder: Path, *rules: Any) -> None:
        written(texts, folder, *rules)
        if folder.name.startswith("000002"):
            raise KeyboardInterrupt

    monkeypatch.setattr(passages, "write_words", killed)
    with pytest.raises(KeyboardInterrupt):
        run.search(QUERY, words=True)
    left = sorted(path.name for path in (tmp_path / "run/final").glob("passages-*/*"))
    assert left == ["000000.words", "000001.words"]
    monkeypatch.setattr(passages, "write_words", written)
    commits = run.ledger.commits.read_complete(run.plan)
    due = by_words(run, WHERES[""], [*passages._sizes(list(passages._groups(run.plan, commits)))])
    assert seen(run, run.search(QUERY, 9, words=True)) == named(run, due[:9])


def test_a_run_in_a_store_is_searched_the_same(source: Path, tmp_path: Path) -> None:
    here, there = make_run(source, tmp_path / "run"), make_run(source, f"memory://{uuid.uuid4().hex}/run")
    for how in ({}, {"words": True}, {"hybrid": True}):
        assert there.search(QUERY, 9, where="overall <= 2", **how) == here.search(QUERY, 9, where="overall <= 2", **how)


def test_a_csv_has_its_numbers_as_texts(tmp_path: Path) -> None:
    lines = ["id,text,overall", *(f"k{i},battery {i},{i % 5 + 1 if i % 7 else 'none'}" for i in range(40))]
    (tmp_path / "items.csv").write_text("\n".join(lines) + "\n")
    run = make_run(tmp_path / "items.csv", tmp_path / "run", {"keep": ["overall"]})
    hits = run.search(QUERY, 100, where="overall <= 2")
    assert sorted(hit.row for hit in hits) == [i for i in range(40) if i % 7 and i % 5 < 2]


def test_a_run_whose_shards_have_rows_or_none(source: Path, tmp_path: Path) -> None:
    """Of most shards no row is taken."""
    run = make_run(source, tmp_path / "run", {"where": "n IN (3, 100, 101)"})
    assert sorted(hit.row for hit in run.search("battery", where="n > 3")) == [100, 101]
    due = by_words(run, WHERES[""], [3])
    assert seen(run, run.search(QUERY, words=True)) == named(run, due)
    (group,) = passages._groups(run.plan, run.ledger.commits.read_complete(run.plan))
    table, matrix = passages._read_group(run.ledger, run.plan, group)
    assert table.column("id").to_pylist() == ["k3", "k100", "k101"]
    assert matrix.shape == (3, 8)


# Bad input.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--where", " "], ["--where is empty", "overall <= 2"]),
        (["--where", "overall <="], ["--where expected a column or a value at the end"]),
        (["--where", "prize < 3"], ["the run did not keep 'prize'", "Did you mean 'price'?", "--keep prize"]),
        (["--where", "text LIKE '%x%'"], ["the run did not keep 'text'", "--keep text"]),
        (["--where", "embedding IS NULL"], ["the run did not keep 'embedding'"]),
        (["--where", "id > 3"], ["'id' holds text; 3 is a number"]),
        (["--where", "overall LIKE '3'"], ["LIKE compares texts, and 'overall' holds a number"]),
        (["--sql"], ["--sql needs a table", "postgresql://HOST/DATABASE/TABLE"]),
        (["--words", "--hybrid"], ["--hybrid already includes --words"]),
        (["--words", "-k", "0"], ["-k 0: must be at least 1"]),
    ],
)
def test_a_search_that_cannot_be_made(
    shardmill: Cli, source: Path, tmp_path: Path, options: list[str], said: list[str]
) -> None:
    run = make_run(source, tmp_path / "run")
    assert_told(shardmill("search", run.ledger.url, QUERY, *options), 2, *said)


def test_texts_of_a_source_that_is_gone(shardmill: Cli, source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "items.parquet"
    mine.write_bytes(source.read_bytes())
    gone, indexed = make_run(mine, tmp_path / "gone"), make_run(mine, tmp_path / "indexed")
    kept = make_run(mine, tmp_path / "kept", {"keep": ["text"]})
    template = make_run(mine, tmp_path / "template", {"text": "{id}: {text}"})
    found = indexed.search(QUERY, words=True)
    mine.unlink()
    for how in ("--words", "--hybrid"):
        said = shardmill("search", gone.ledger.url, QUERY, how)
        assert_told(said, 2, "are in its source, which cannot be read", "items.parquet", "--keep text")
    said = shardmill("search", template.ledger.url, QUERY, "--words")
    assert_told(said, 2, "are in its source, which cannot be read", "Put the source back.")
    assert Run(tmp_path / "indexed").search(QUERY, words=True) == found
    assert [hit.row for hit in kept.search(QUERY, words=True)] == [hit.row for hit in found]


def test_texts_of_a_query_that_were_not_kept(shardmill: Cli, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "items.db")) as database, database:
        database.execute("CREATE TABLE items (id TEXT PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO items VALUES (?, ?)", [(f"k{i}", f"battery {i}") for i in range(9)])
    run = make_run(tmp_path / "items.db", tmp_path / "run", {"query": "SELECT id, text FROM items", "keep": []})
    assert_told(shardmill("search", run.ledger.url, QUERY, "--words"), 2, "did not keep the text", "--keep text")


def test_a_result_without_vectors(shardmill: Cli, source: Path, tmp_path: Path) -> None:
    run = make_run(source, tmp_path / "run", {"task": SHOUTING})
    assert_told(shardmill("search", run.ledger.url, QUERY, "--words"), 2, "This run has no vector column")


def test_a_missing_library_is_named(
    shardmill: Cli, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(source, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "bm25s", None)
    assert_told(shardmill("search", run.ledger.url, QUERY, "--words"), 2, "pip install 'shardmill[light]'")


# What is printed.


def test_the_command_prints_scores_ids_and_kept_columns(shardmill: Cli, source: Path, tmp_path: Path) -> None:
    run = make_run(source, tmp_path / "run", {"keep": ["overall"]})
    said = shardmill("search", run.ledger.url, QUERY, "--hybrid", "--where", "overall <= 2", "-k", 3).out.splitlines()
    first = run.search(QUERY, 3, hybrid=True, where="overall <= 2")[0]
    assert (said[0], len(said)) == (QUERY, 4)
    assert said[1] == f"  {first.score:.4f}  {first.values['id']}  {first.values['overall']}"
    words = shardmill("search", run.ledger.url, QUERY, "--words", "-k", 1).out.splitlines()
    assert words[1].startswith(f"  {run.search(QUERY, 1, words=True)[0].score:.3f}  k")
    assert shardmill("search", run.ledger.url, "xyzzy", "--words").out == "xyzzy\n"
