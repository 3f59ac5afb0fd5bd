"""A table whose rows tell when they changed: a refresh reads the ids and times of all, and the rest of few."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SourceError, SpecError
from shardmill.ledger import Editions
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.sources.sql.items import ItemMaker
from tests.contract.test_refresh import again, begin, is_as_fresh, rows_stay, spec_of
from tests.support.cli import Cli, assert_told
from tests.support.corpora import SHOUTING

__all__ = ["rows_stay"]

ROWS = 60
Change = Callable[..., None]


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
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of rows that were read with their texts, batch by batch."""
    counts: list[int] = []
    make = ItemMaker.make

    def counted(self: ItemMaker, rows: Any, *others: Any) -> Any:
        counts.append(len(rows))
        return make(self, rows, *others)

    monkeypatch.setattr(ItemMaker, "make", counted)
    yield counts


def count(read: list[int], act: Callable[[], Any]) -> tuple[Any, int]:
    read.clear()
    done = act()
    return done, sum(read)


def test_rows_that_did_not_change_are_not_read(table: Table, read: list[int], tmp_path: Path) -> None:
    begin(table.spec(), tmp_path / "run")
    (same, seen) = count(read, lambda: again(tmp_path / "run"))
    assert (same.changed, seen) == (False, 1), "the newest row may have changed at the same time again"
    for at, (statement, computed, rows) in enumerate(
        (
            ("UPDATE r SET text = 'edited', changed = {} WHERE id = 30", 1, 2),
            ("UPDATE r SET n = -1, changed = {} WHERE id = 31", 0, 2),
            ("INSERT INTO r VALUES (99, 'text 99', 99, {})", 1, 2),
            ("DELETE FROM r WHERE id = 5", 0, 1),
            ("UPDATE r SET text = NULL, changed = {} WHERE id = 7", 0, 2),
            ("UPDATE r SET text = 'back', changed = {} WHERE id = 7", 1, 2),
        ),
        1000,
    ):
        table.change(statement.format(at))
        would, seen = count(read, lambda: again(tmp_path / "run", dry_run=True))
        assert would.changed, statement
        done, seen = count(read, lambda: again(tmp_path / "run"))
        assert done.changed, statement
        assert (done.computed, would.computed) == (computed, computed) or "NULL" in statement, statement
        assert seen <= 4 * rows + 12, (statement, seen)
        is_as_fresh(tmp_path / "run", table.spec(), tmp_path / f"fresh-{at}")
        assert not again(tmp_path / "run").changed
    assert Editions(tmp_path / "run").current() == 7
