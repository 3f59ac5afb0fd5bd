"""The suites hold for sources by scheme and for sinks that workers write to: ours, and those of a package."""

from __future__ import annotations

import inspect
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import MissingExtra, UsageError
from shardmill.core.passwords import withhold
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.outcome import next_commands
from shardmill.sinks.parquet import StagedPart
from shardmill.sources import Fields, discover
from shardmill.sources import range as range_module
from shardmill.sources.sql import source as sql_source
from shardmill.sources.sql.query import in_range
from shardmill.testing import InProcessEngine, check_source, check_writer
from tests.support.mariadb import MariaServer
from tests.support.packages import forget_installed, install_package
from tests.support.services import PostgresServer

ROWS = [{"id": f"i{n:02}", "body": f"The text of item {n}, {'long ' * (n % 40)}end."} for n in range(60)]
QUERY = "SELECT id, body FROM items"
NUMBERS = [{"sample_id": n} for n in range(7, 300)]

# A package with a copy of our source of ranges under another scheme.
DECLARED = """
from shardmill.plugins.base import SinkKind, SourceKind

NUMBERS = SourceKind(
    name="numbers", schemes=("numbers:",), reader="numbers_reader", unit="id", column="sample_id", reach="network"
)
SHELF = SourceKind(name="shelf", schemes=("shelf:",), finder="shelf_finder:find")
JOURNAL = SinkKind(
    name="journal", schemes=("journal:",), writer="journal_sink:open_sink", table="journal_sink", reach="machine"
)
"""
COPY = inspect.getsource(range_module).replace('FORMAT = "range"', 'FORMAT = "numbers"')
FINDER = """
from shardmill.sources.discovery import find_files

def find(places, format):
    return find_files([f"{place.removeprefix('shelf:')}/*.jsonl" for place in places], format)
"""
# A sink that workers write to: rows count under the attempt that the commit of their shard names.
JOURNAL = """
import sqlite3
from types import SimpleNamespace

def connect(plan):
    return sqlite3.connect(plan.work.to.url.removeprefix("journal:"))

def open_sink(context):
    return SimpleNamespace(
        salt=b"",
        begin=lambda claim: Attempt(context, claim),
        unchanged=lambda kept: frozenset(),
        close=lambda: None,
    )

class Attempt:
    done, done_digest, carried, complete = 0, "", None, False

    def __init__(self, context, claim):
        self.context, self.claim, self.rows = context, claim, []

    def write(self, rows, items):
        self.rows += rows.column("id").to_pylist()

    def finish(self, items):
        return []

    def seal(self, lines):
        with connect(self.context.plan) as database:
            rows = [(self.claim.shard, self.claim.attempt, row) for row in self.rows]
            database.executemany("INSERT INTO journal VALUES (?, ?, ?)", rows)

    def commit(self, record):
        return self.context.ledger.commits.add(record)

    def abandon(self):
        pass

def prepare(plan, schema, *, fresh=False):
    connect(plan).execute("CREATE TABLE IF NOT EXISTS journal (shard, attempt, id)")

def check_table(plan, schema, commits):
    sql = "SELECT count(DISTINCT id), count(*) FROM journal WHERE shard = ? AND attempt = ?"
    found = [connect(plan).execute(sql, (c.shard, c.attempt)).fetchone() for c in commits.values()]
    yield "rows", found == [(c.rows, c.rows) for c in commits.values()], f"{found}"

def count_without_result(plan, schema):
    return 0
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs the package, with its reader as given."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def install(reader: str = COPY) -> None:
        entries = {
            "sources": {"numbers": "numbers_kinds:NUMBERS", "shelf": "numbers_kinds:SHELF"},
            "sinks": {"journal": "numbers_kinds:JOURNAL"},
        }
        modules = {"numbers_kinds": DECLARED, "numbers_reader": reader, "shelf_finder": FINDER, "journal_sink": JOURNAL}
        install_package(folder, "shardmill-numbers", entries, **modules)

    yield install
    for name in ("numbers_kinds", "numbers_reader", "shelf_finder", "journal_sink"):
        sys.modules.pop(name, None)
    forget_installed()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SQLite file, and a module with a function that connects to it."""
    place = tmp_path / "items.db"
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE items (id text, body text)")
        connection.executemany("INSERT INTO items VALUES (:id, :body)", ROWS)
    (tmp_path / "connecting.py").write_text(
        f"import sqlite3\ndef connect():\n    return sqlite3.connect({str(place)!r})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return place


def test_a_range_keeps_the_contract() -> None:
    assert check_source(["range:7:300"], rows=NUMBERS, text="sample_id", id="sample_id") >= 25


@pytest.mark.parametrize("address", ["sqlite:///{}", "{}", "python:connecting:connect"])
def test_a_database_keeps_the_contract(address: str, database: Path) -> None:
    assert check_source([address.format(database)], rows=ROWS, text="body", id="id", query=QUERY) >= 30
    sys.modules.pop("connecting", None)


@pytest.mark.services
def test_postgresql_keeps_the_contract(postgres: PostgresServer) -> None:
    values = ", ".join(f"('{row['id']}', '{row['body']}')" for row in ROWS)
    postgres.execute("CREATE TABLE items (id text PRIMARY KEY, body text)", f"INSERT INTO items VALUES {values}")
    assert check_source([postgres.url()], rows=ROWS, text="body", id="id", query=QUERY) >= 30


@pytest.mark.services
def test_mysql_keeps_the_contract(mariadb: MariaServer) -> None:
    values = ", ".join(f"('{row['id']}', '{row['body']}')" for row in ROWS)
    mariadb.execute("CREATE TABLE items (id varchar(9) PRIMARY KEY, body text)", f"INSERT INTO items VALUES {values}")
    place = withhold(mariadb.url())
    assert check_source([place], rows=ROWS, text="body", id="id", query=QUERY) >= 30


def test_a_run_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    work = {"source": str(tmp_path / "items.jsonl"), "text": "body", "id": "id", "keep": "body"}
    spec = make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"shard_bytes": 2_000})
    start(spec, tmp_path / "run", engine=InProcessEngine())
    assert check_source([f"run:{tmp_path / 'run'}"], rows=ROWS, text="body", id="id") >= 30


def test_a_scheme_of_a_package_keeps_the_contract(package: Callable[..., None], tmp_path: Path) -> None:
    package()
    assert check_source(["numbers:7:300"], rows=NUMBERS, text="sample_id", id="sample_id") >= 25
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert check_source([f"shelf:{tmp_path}"], rows=ROWS, text="body", id="id") >= 30
    assert discover([f"shelf:{tmp_path}"], Fields("body")).format == "jsonl"


def test_a_run_remembers_the_package_of_its_scheme(
    package: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package()
    work = {"source": "numbers:7:300", "text": "sample_id", "id": "sample_id", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {"shard_bytes": 100}), tmp_path / "run", engine=InProcessEngine())
    assert run.plan.packages == {"sources/numbers": "shardmill-numbers 1.0"}
    assert run.table(["sample_id"]).column("sample_id").to_pylist() == list(range(7, 300))
    assert run.verify(sample=8).verified
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.endswith("site")])
    forget_installed()
    with pytest.raises(MissingExtra, match="needs the source 'numbers' of shardmill-numbers") as caught:
        Run(str(tmp_path / "run")).verify()
    assert "pip install shardmill-numbers==1.0" in caught.value.hint


@pytest.mark.parametrize(
    ("was", "becomes", "found"),
    [
        ("enumerate(split_evenly(start, stop, parts))", "enumerate(split_evenly(start, stop, parts)[1:])", "every row"),
        ("min(_BATCH_ROWS, shard.stop - start)", "min(_BATCH_ROWS, shard.stop - start + 1)", "every row once"),
        ("first = start - shard.start + 1", "first = 0", "rise from 1"),
        ("if name != COLUMN:", "if not name:", "a missing field is refused"),
        ("return {COLUMN: pa.int64()}", "return {}", "its columns are listed"),
    ],
)
def test_planted_faults_of_a_scheme_are_found(package: Callable[..., None], was: str, becomes: str, found: str) -> None:
    assert COPY.count(was) == 1
    package(COPY.replace(was, becomes))
    with pytest.raises(AssertionError, match=found):
        check_source(["numbers:7:300"], rows=NUMBERS, text="sample_id", id="sample_id")


def test_a_planted_fault_of_a_query_is_found(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def both_ends(key: str, low: Any, high: Any) -> Any:
        where, values = in_range(key, low, high)
        return where.replace(" > ", " >= "), values

    monkeypatch.setattr(sql_source, "in_range", both_ends)
    with pytest.raises(AssertionError, match="every row once"):
        check_source([database], rows=ROWS, text="body", id="id", query=QUERY)


def test_the_parts_of_a_run_keep_the_contract_of_a_sink(tmp_path: Path) -> None:
    assert check_writer(None, tmp_path) >= 20


@pytest.mark.services
def test_a_table_keeps_the_contract_of_a_sink(postgres: PostgresServer, tmp_path: Path) -> None:
    assert check_writer({"url": postgres.url(), "table": "conforming"}, tmp_path) >= 17


def test_workers_write_to_the_sink_of_a_package(package: Callable[..., None], tmp_path: Path) -> None:
    package()
    to = {"url": f"journal:{tmp_path / 'rows.db'}", "table": "journal"}
    assert check_writer(to, tmp_path) >= 15
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    work = {"source": str(tmp_path / "items.jsonl"), "text": "body", "id": "id", "to": to}
    spec = make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"shard_bytes": 2_000, "index": "none"})
    run = start(spec, tmp_path / "whole", engine=InProcessEngine())
    assert run.verify().verified
    assert run.plan.packages == {"sinks/journal": "shardmill-numbers 1.0"}
    assert next_commands(run) == [f"shardmill verify {run.ledger.url}"]
    assert run.status().state == "complete"
    away = make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"engine": "slurm"})
    with pytest.raises(UsageError, match="The sink 'journal' reaches one machine"):
        start(away, tmp_path / "away")


def test_planted_faults_of_a_written_sink_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, write = StagedPart.commit, StagedPart.write
    faults: list[tuple[str, Any, str]] = [
        ("commit", lambda self, record: commit(self, record) or True, "comes late"),
        ("write", lambda self, rows, items: write(self, rows.slice(1), items[1:]), "verify, rows"),
    ]
    for name, fault, found in faults:
        (tmp_path / name).mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(StagedPart, name, fault)
            with pytest.raises(AssertionError, match=found):
                check_writer(None, tmp_path / name)
