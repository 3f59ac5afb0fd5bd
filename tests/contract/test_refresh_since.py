"""A table whose rows tell when they changed: a refresh reads the ids and times of all, and the rest of few."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.errors import SourceError, SpecError, WorkerFailed
from shardmill.plan import Shard
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.sources.sql.items import ItemMaker
from shardmill.sources.sql.source import SqlSource
from tests.contract.test_refresh import again, begin, is_as_fresh, rows_stay, spec_of
from tests.support.corpora import SHOUTING

__all__ = ["rows_stay"]

ROWS = 40


class Table:
    """A table of SQLite or DuckDB, in which `changed` is a time that only grows."""

    def __init__(self, path: Path, connect: Callable[[str], Any]) -> None:
        self.path, self._connect = path, connect
        self.change("CREATE TABLE r (id INTEGER, text TEXT, n INTEGER, changed INTEGER)")
        self.change(*(f"INSERT INTO r VALUES ({n}, 'text {n}', {n}, {n})" for n in range(ROWS)))

    def change(self, *statements: str) -> None:
        with closing(self._connect(str(self.path))) as database:
            for each in statements:
                database.execute(each)
            database.commit()

    def spec(self, **work: Any) -> Spec:
        work = {"query": "SELECT * FROM r", "id": "id", "changed_since": "changed", **work}
        made = spec_of(self.path, **work).work.model_dump(exclude_unset=True)
        return make_spec(made, {"shard_bytes": 300, "max_errors": "100%"})


@pytest.fixture(params=["sqlite", "duckdb"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "sqlite":
        return Table(tmp_path / "rows.db", sqlite3.connect)
    duckdb = pytest.importorskip("duckdb")
    return Table(tmp_path / "rows.duckdb", duckdb.connect)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that were read with their texts, batch by batch."""
    counts: list[int] = []
    make = ItemMaker.make

    def counted(self: ItemMaker, rows: Any, *others: Any) -> Any:
        counts.append(len(rows))
        return make(self, rows, *others)

    monkeypatch.setattr(ItemMaker, "make", counted)
    return counts


def count(read: list[int], act: Callable[[], Any]) -> tuple[Any, int]:
    read.clear()
    done = act()
    return done, sum(read)


@pytest.fixture
def sqlite(tmp_path: Path) -> Table:
    return Table(tmp_path / "rows.db", sqlite3.connect)


def test_rows_that_did_not_change_are_not_read(table: Table, read: list[int], tmp_path: Path) -> None:
    run = begin(table.spec(), tmp_path / "run")
    assert len(run.plan.shards) > 3
    same, seen = count(read, lambda: again(tmp_path / "run"))
    assert (same.changed, seen) == (False, 1), "the newest row may have changed at the same time again"
    table.change(
        "UPDATE r SET text = 'edited', changed = 101 WHERE id = 30",
        "UPDATE r SET n = -1, changed = 102 WHERE id = 31",
        "INSERT INTO r VALUES (99, 'text 99', 99, 103)",
        "DELETE FROM r WHERE id = 5",
        "UPDATE r SET text = NULL, changed = 104 WHERE id = 7",
    )
    would, seen = count(read, lambda: again(tmp_path / "run", dry_run=True))
    assert (would.items, would.reused) == (ROWS, ROWS - 3)
    # The row that was the newest, and four that changed since.
    assert seen <= len(run.plan.shards) + 5
    done, seen = count(read, lambda: again(tmp_path / "run"))
    assert (done.items, done.reused, done.errors) == (ROWS, ROWS - 3, 1)
    assert seen < ROWS
    table.change("UPDATE r SET text = 'back', changed = 105 WHERE id = 7")
    assert again(tmp_path / "run").computed == 1
    is_as_fresh(tmp_path / "run", table.spec(), tmp_path / "fresh")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO r VALUES (99, 'committed late', 1, 3)",
        "UPDATE r SET text = 'at the same time', n = 5 WHERE id = 39",
        "UPDATE r SET text = 'by a clock that was set back', changed = 1 WHERE id = 20",
        "UPDATE r SET text = 'at no time', changed = NULL WHERE id = 20",
    ],
)
def test_what_a_time_does_not_tell_is_read(statement: str, sqlite: Table, tmp_path: Path) -> None:
    begin(sqlite.spec(), tmp_path / "run")
    sqlite.change(statement)
    assert again(tmp_path / "run").computed == 1
    is_as_fresh(tmp_path / "run", sqlite.spec(), tmp_path / "fresh")


def test_two_rows_with_the_same_id_and_time(sqlite: Table, tmp_path: Path) -> None:
    begin(sqlite.spec(), tmp_path / "run")
    sqlite.change("INSERT INTO r VALUES (10, 'another text', 1, 10)")
    assert again(tmp_path / "run").computed == 1
    assert Run(tmp_path / "run").table().equals(begin(sqlite.spec(), tmp_path / "both").table())
    sqlite.change("DELETE FROM r WHERE id = 10 AND n = 10")
    assert again(tmp_path / "run").computed == 0
    is_as_fresh(tmp_path / "run", sqlite.spec(), tmp_path / "fresh")


def test_rows_that_change_between_two_statements(
    sqlite: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is tried again; nothing of it was committed."""
    begin(sqlite.spec(), tmp_path / "run")
    sqlite.change("UPDATE r SET text = 'edited', changed = 100 WHERE id = 30")
    see, changed = SqlSource.see, []

    def late(self: SqlSource, shard: Shard, newest: str) -> Iterator[pa.Array]:
        yield from see(self, shard, newest)
        if not changed:
            changed.append(shard)
            sqlite.change("UPDATE r SET text = 'late', changed = 1 WHERE id = 3")

    monkeypatch.setattr(SqlSource, "see", late)
    with pytest.raises(WorkerFailed, match="1 rows of the query changed while their shard was read"):
        again(tmp_path / "run")
    assert again(tmp_path / "run").computed == 2
    is_as_fresh(tmp_path / "run", sqlite.spec(), tmp_path / "fresh")


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows": {"params": {"window": 8}},
    "texts": {"task": SHOUTING},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("copied", [False, True])
def test_after_any_changes_it_is_as_a_fresh_run(
    shape: str, copied: bool, sqlite: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that stay where they are, or all of them copied with the columns that nobody read."""
    if copied:
        monkeypatch.setattr("shardmill.sinks.earlier._FEWEST_BYTES", 1 << 30)
    choose, spec = random.Random(shape), sqlite.spec(**SHAPES[shape])
    begin(spec, tmp_path / "run")
    for number in range(8):
        id, now = choose.randrange(ROWS), ROWS + number // 2
        sqlite.change(
            choose.choice(
                (
                    f"UPDATE r SET text = 'edited {number}', changed = {now} WHERE id = {id}",
                    f"UPDATE r SET n = -{number}, changed = {now} WHERE id = {id}",
                    f"UPDATE r SET id = {200 + number}, changed = {now} WHERE id = {id}",
                    f"UPDATE r SET text = ' ', changed = {now} WHERE id = {id}",
                    f"INSERT INTO r VALUES ({100 + number}, 'text {id}', {id}, {now})",
                    f"DELETE FROM r WHERE id = {id}",
                )
            )
        )
        if number % 4 == 3:
            again(tmp_path / "run")
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")


def test_a_run_of_before_is_read_once_more(
    sqlite: Table, read: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(sqlite.spec(changed_since=""), tmp_path / "run")
    for number in (1, 2):
        sqlite.change(f"UPDATE r SET text = 'edited {number}', changed = 10{number} WHERE id = {number}")
        done, seen = count(read, lambda: again(tmp_path / "run", telling={"changed_since": "changed"}, quiet=False))
        assert done.computed == 1
        said = capsys.readouterr().err
        assert ("does not know 'changed' of its rows: all are read, this once" in said) == (number == 1)
        assert (seen < ROWS) == (number == 2)
    assert Run(tmp_path / "run").plan.work.changed_since == "changed"


def test_a_row_that_changed_at_no_other_time_is_found_by_verify(sqlite: Table, tmp_path: Path) -> None:
    begin(sqlite.spec(), tmp_path / "run")
    sqlite.change("UPDATE r SET text = 'in silence' WHERE id = 20")
    assert not again(tmp_path / "run").changed
    said = [check.seen for check in Run(tmp_path / "run").verify(report=False).checks]
    assert any("rows of the query have changed since" in each for each in said), said


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ({"query": "", "id": "id"}, "no meaning without --query"),
        ({"id": ""}, "no meaning without --id"),
        ({"where": "n < 5"}, "cannot be used with --where"),
        ({"limit": 5}, "cannot be used with --limit"),
    ],
)
def test_where_it_has_no_meaning(work: dict[str, Any], said: str, sqlite: Table) -> None:
    with pytest.raises(SpecError, match=said):
        sqlite.spec(**work)


def test_a_column_that_is_not_there(sqlite: Table, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no column 'chnged' in the query"):
        begin(sqlite.spec(changed_since="chnged"), tmp_path / "run")
