"""Rows that a table lost, or that were changed or doubled there, are those of the run again; no others are touched."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from shardmill.core.errors import StoreError, UsageError
from shardmill.run import Run, start
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Lot, Shipment
from shardmill.testing.delivering import SCHEMA, make_rows
from tests.contract.sinks.test_deliveries import KINDS, PLACES, deltalake, duckdb, lance, rows_of, seen_by, spoil
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec

IDS = [row["id"] for row in fake_rows(60)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Two runs with other ids."""
    folder = tmp_path_factory.mktemp("runs")
    for name, prefix in (("run", ""), ("others", "other-")):
        rows = [{**row, "id": prefix + row["id"]} for row in fake_rows(60)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        start(fake_spec(folder / f"{name}.jsonl", workers=1), folder / name)
    return Run(folder / "run"), Run(folder / "others")


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return PLACES[request.param].format(tmp_path)


def add_own(address: str, id: str, like: str) -> None:
    """A row of a user, who copies another one."""
    scheme, _, place = address.partition(":")
    if scheme in ("duckdb", "sqlite"):
        path, _, table = place.partition("#")
        opened = duckdb.connect(path) if scheme == "duckdb" else sqlite3.connect(path, isolation_level=None)
        table = table or "result"
        columns = [row[1] for row in opened.execute(f"PRAGMA table_info('{table}')").fetchall()]
        taken = ", ".join("?" if name == "id" else name for name in columns)
        opened.execute(f"INSERT INTO {table} SELECT {taken} FROM {table} WHERE id = ?", [id, like])
        opened.close()
        return
    table = lance.dataset(place).to_table() if scheme == "lance" else deltalake.DeltaTable(place).to_pyarrow_table()
    row = next(row for row in table.to_pylist() if row["id"] == like)
    own = pa.Table.from_pylist([{**row, "id": id}], table.schema)
    if scheme == "lance":
        lance.write_dataset(own, place, mode="append")
    else:
        deltalake.write_deltalake(place, own, mode="append")


def test_wrong_rows_are_replaced_and_no_others(
    runs: tuple[Run, Run], address: str, shardmill: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, others = runs
    for each in runs:
        each.deliver(address)
    add_own(address, "mine", IDS[0])
    spoil(address, *IDS[5:8])
    assert not seen_by(run, address)[0]
    said = shardmill("load", "--from", run.ledger.url, "--to", address, "--repair")
    assert said.status == 0, said
    assert "3 rows repaired" in said.err
    assert seen_by(run, address) == (
        True,
        f"60 of 60 rows are in {address} as in the run; 61 rows there are not of this run",
    )
    assert seen_by(others, address)[0]
    assert sum(row["id"] == "mine" for row in rows_of(run, address)) == 1
    monkeypatch.setattr("shardmill.results.repair._KEYS_AT_ONCE", 2)
    spoil(address, *IDS[15:18])
    assert run.deliver(address, repair=True) == 60
    assert seen_by(run, address)[0]


def test_a_row_that_may_be_of_others_is_left_and_told(runs: tuple[Run, Run], address: str) -> None:
    run, _ = runs
    run.deliver(address)
    add_own(address, IDS[3], IDS[9])
    spoil(address, *IDS[5:8])
    with pytest.raises(StoreError, match=rf"another content, which may be of others: 1 doubled \({IDS[3]}\)"):
        run.deliver(address, repair=True)
    assert len(rows_of(run, address)) == 61
    assert f", 1 doubled ({IDS[3]})" in seen_by(run, address)[1]


_KILLED = {
    "lance": ("shardmill.sinks.lakes.lance:LanceDelivery", "_commit"),
    "delta": ("shardmill.sinks.lakes.delta:DeltaDelivery", "_keys_of"),
    "duckdb": ("shardmill.sinks.databases.duckdb:DuckDbDelivery", "insert"),
    "sqlite": ("shardmill.sinks.databases.sqlite:SqliteDelivery", "insert"),
}


def test_killed_in_the_middle_of_a_repair(runs: tuple[Run, Run], address: str) -> None:
    """The second key is deleted and not yet added, where that can be seen; the first is repaired."""
    run, _ = runs
    run.deliver(address)
    spoil(address, *IDS[5:8])
    place, name = _KILLED[address.partition(":")[0]]
    code = f"""
        import os, signal
        from shardmill.results import repair
        from shardmill.run import Run
        from {place.partition(":")[0]} import {place.partition(":")[2]} as kind
        repair._KEYS_AT_ONCE = 1
        kept, calls = kind.{name}, []
        def mortal(*given):
            calls.append(given)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return kept(*given)
        kind.{name} = mortal
        Run({run.ledger.url!r}).deliver({address!r}, repair=True)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = [row["id"] for row in rows_of(run, address)]
    assert 59 <= len(found) <= 61, "one key was repaired, the others are as they were"
    assert run.deliver(address, repair=True) == 60
    assert seen_by(run, address) == (True, f"60 of 60 rows are in {address} as in the run")


def test_two_at_once(runs: tuple[Run, Run], address: str) -> None:
    run, _ = runs
    run.deliver(address)
    spoil(address, *IDS[5:8])
    words = [sys.executable, "-m", "shardmill", "load", "--from", run.ledger.url, "--to", address, "--repair"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pair = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for each in pair:
        said = each.communicate()[1]
        assert each.returncode == 0, said
    assert seen_by(run, address) == (True, f"60 of 60 rows are in {address} as in the run")


def test_rows_are_replaced_by_several_columns(address: str) -> None:
    """Also where one has no value."""
    shipment = Shipment(plan="a" * 16, generation="0" * 8, schema=SCHEMA, key=("id", "number"), made_by="c" * 16)
    rows = make_rows(0, 6)
    store = open_delivery(address, shipment)
    store.prepare()
    lot = Lot(0, range(1), "digest", lambda: iter([rows]))
    store.commit(0, [Lot(0, range(1), "digest", lot.read, store.stage(lot))])
    changed = rows.slice(1, 3).set_column(2, "share", pa.array([9.0] * 3))
    assert store.replace(1, changed)
    found = sorted((row for batch in store.scan() for row in batch.to_pylist()), key=lambda row: str(row["id"]))
    store.close()
    assert [row["share"] for row in found] == [0.0, 9.0, 9.0, 9.0, 4 / 3, 5 / 3]
    assert [row["number"] for row in found][1] is None


def test_rows_that_nothing_identifies_are_not_repaired(tmp_path: Path, shardmill: Cli) -> None:
    source = tmp_path / "items.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(4)))
    spec = fake_spec(source, workers=1)
    start(spec.model_copy(update={"work": spec.work.model_copy(update={"id": ()})}), tmp_path / "run")
    told = shardmill("load", "--from", tmp_path / "run", "--to", f"sqlite:{tmp_path}/rows.db", "--repair")
    assert_told(told, 2, "cannot be repaired: nothing identifies the rows")
    told = shardmill("load", source, "--text", "text", "--to", "embedded:x", "--repair")
    assert_told(told, 2, "--repair without --from")
    with pytest.raises(UsageError, match="nothing identifies the rows"):
        Run(tmp_path / "run").deliver(f"lance:{tmp_path}/rows.lance", repair=True)


def test_an_id_that_several_rows_have(tmp_path: Path) -> None:
    """All of them are there again, each once."""
    source = tmp_path / "items.jsonl"
    rows = [{"id": "a" if n % 3 else "b", "text": f"text {n}"} for n in range(9)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    address = f"sqlite:{tmp_path}/rows.db"
    run = start(fake_spec(source, workers=1, into=[address]), tmp_path / "run")
    with sqlite3.connect(f"{tmp_path}/rows.db", isolation_level=None) as opened:
        opened.execute("DELETE FROM result WHERE rowid = 2")
        opened.execute("UPDATE result SET embedding = (SELECT embedding FROM result WHERE rowid = 4) WHERE rowid = 1")
    assert "1 missing (a, a, a, a, a), 1 changed (b, b, b)" in seen_by(run, address)[1]
    run.deliver(address, repair=True)
    assert seen_by(run, address)[0]
    assert len(rows_of(run, address)) == 9
