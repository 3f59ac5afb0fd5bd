"""Finished rows in other stores: every lot once, whoever commits it, and a proof that finds one wrong row."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import ShardmillError, StepFailed, StoreError, UsageError
from shardmill.ledger import Ledger
from shardmill.ledger.step import TAKEN
from shardmill.results import delivery
from shardmill.results.delivery import Courier, deliver_run, prepare_delivery
from shardmill.run import Run, resume, start
from shardmill.sinks.address import find_delivery
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.lakes.delta import DeltaDelivery
from shardmill.testing import check_sink
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec
from tests.support.libraries import needed

lance = needed("lance")
deltalake = needed("deltalake")
duckdb = needed("duckdb")

PLACES = {
    "lance": "lance:{}/rows.lance",
    "delta": "delta:{}/rows",
    "duckdb": "duckdb:{}/rows.duckdb#vectors",
    "sqlite": "sqlite:{}/rows.db",
}
KINDS = list(PLACES)


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return PLACES[request.param].format(tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(60)))
    return path


@pytest.fixture
def small_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard each."""
    monkeypatch.setattr(delivery, "_LOT_BYTES", 1)


def opener(address: str) -> Callable[[Shipment], Delivery]:
    def open_it(shipment: Shipment) -> Delivery:
        found: Delivery = find_delivery(address).part("delivery")(address, shipment)
        return found

    return open_it


def rows_of(run: Run, address: str) -> list[dict[str, Any]]:
    store = opener(address)(delivery.shipment_of(run.ledger, run.plan))
    try:
        return [row for batch in store.scan() for row in batch.to_pylist()]
    finally:
        store.close()


def seen_by(run: Run, address: str) -> tuple[bool, str]:
    checks = [c for c in run.verify(sample=0, source=False, report=False).checks if address in c.seen]
    assert len(checks) == 1
    return checks[0].ok, checks[0].seen


def test_the_contract(address: str) -> None:
    assert check_sink(opener(address)) >= 20


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_the_contract_in_a_bucket(kind: str, s3_server: str) -> None:
    address = PLACES[kind].format(f"{s3_server}/deliveries-{kind}")
    assert check_sink(opener(address)) >= 20


@pytest.mark.usefixtures("small_lots")
def test_a_run_is_delivered_to_several_stores(source: Path, tmp_path: Path) -> None:
    into = [place.format(tmp_path) for place in PLACES.values()]
    run = start(fake_spec(source, into=into, workers=2), tmp_path / "run")
    wanted = run.table().drop_columns(["row"]).to_pylist()
    for address in into:
        assert rows_of(run, address) == wanted, "in the order of the source"
    report = run.verify()
    assert report.verified
    assert sum(c.name == "delivered" for c in report.checks) == 4


def test_a_finished_run_is_delivered_later(source: Path, tmp_path: Path, address: str) -> None:
    run = start(fake_spec(source, workers=1), tmp_path / "run")
    resume(tmp_path / "run", {"into": [address]})
    assert len(rows_of(run, address)) == 60
    resume(tmp_path / "run", {"into": [address]})
    assert len(rows_of(run, address)) == 60, "and once"


def test_load_from_a_run_delivers_it(source: Path, tmp_path: Path, address: str, shardmill: Cli) -> None:
    run = start(fake_spec(source, workers=1), tmp_path / "run")
    said = shardmill("load", "--from", tmp_path / "run", "--to", address)
    assert f"60 rows of {tmp_path / 'run'} are in {address}" in said.err, said
    assert len(rows_of(run, address)) == 60
    said = shardmill("verify", tmp_path / "run")
    assert f"60 of 60 rows are in {address} as in the run" in said.out, said
    elsewhere = address.replace("rows", "others")
    said = shardmill("verify", tmp_path / "run", "--to", elsewhere)
    assert said.status == 1
    assert_told(shardmill("load", source, "--from", tmp_path / "run", "--to", address), 2, "Both a source and --from")
    assert_told(shardmill("load", "--from", tmp_path / "run"), 2, "No --to was given")


def test_rows_without_a_vector_are_null(tmp_path: Path, address: str) -> None:
    source = tmp_path / "items.jsonl"
    rows = [{**row, "text": None if n == 3 else row["text"]} for n, row in enumerate(fake_rows(8))]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = start(fake_spec(source, into=[address], workers=1, max_errors="50%"), tmp_path / "run")
    found = {row["id"]: row["embedding"] for row in rows_of(run, address)}
    assert [id for id, vector in found.items() if vector is None] == [rows[3]["id"]]
    assert run.verify(sample=0).verified


@pytest.mark.usefixtures("small_lots")
def test_one_wrong_row_is_found(source: Path, tmp_path: Path, address: str) -> None:
    run = start(fake_spec(source, into=[address], workers=1), tmp_path / "run")
    assert seen_by(run, address) == (True, f"60 of 60 rows are in {address} as in the run")
    ids = [row["id"] for row in fake_rows(60)]
    spoil(address, ids[5], ids[6], ids[7])
    ok, seen = seen_by(run, address)
    assert not ok
    for what in (f"1 missing ({ids[5]})", f"1 changed ({ids[6]})", f"1 doubled ({ids[7]})"):
        assert what in seen


def spoil(address: str, gone: str, changed: str, doubled: str) -> None:
    """Delete a row, change another and write a third twice, as its users would."""
    scheme, _, place = address.partition(":")
    if scheme in ("duckdb", "sqlite"):
        path, _, table = place.partition("#")
        opened = duckdb.connect(path) if scheme == "duckdb" else sqlite3.connect(path, isolation_level=None)
        table = table or "result"
        opened.execute(f"DELETE FROM {table} WHERE id = ?", [gone])
        opened.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = ?", [doubled])
        columns = [row[1] for row in opened.execute(f"PRAGMA table_info('{table}')").fetchall()]
        others = ", ".join("a.id" if name == "id" else f"b.{name}" for name in columns)
        opened.execute(
            f"CREATE TABLE other AS SELECT {others} FROM {table} a, {table} b WHERE a.id = ? AND b.id = ?",
            [changed, doubled],
        )
        opened.execute(f"DELETE FROM {table} WHERE id = ?", [changed])
        opened.execute(f"INSERT INTO {table} SELECT * FROM other LIMIT 1")
        opened.execute("DROP TABLE other")
        opened.close()
        return
    table = lance.dataset(place).to_table() if scheme == "lance" else deltalake.DeltaTable(place).to_pyarrow_table()
    rows = table.to_pylist()
    twice = next(row for row in rows if row["id"] == doubled)
    kept = [{**twice, "id": changed} if row["id"] == changed else row for row in rows if row["id"] != gone]
    spoilt = pa.Table.from_pylist([*kept, twice], table.schema)
    if scheme == "lance":
        lance.write_dataset(spoilt, place, mode="overwrite")
    else:
        deltalake.write_deltalake(place, spoilt, mode="overwrite")


@pytest.mark.usefixtures("small_lots")
def test_a_paused_committer_adds_nothing_when_it_wakes(source: Path, tmp_path: Path, address: str) -> None:
    """It looked at the number of lots, slept for longer than its lease, and another delivered everything."""
    run = start(fake_spec(source, workers=1, shard_bytes=200), tmp_path / "run")
    paused = Courier(run.ledger, run.plan, address)
    lots = paused._lots()
    assert len(lots) > 5
    ready = paused._ready(lots[:3])
    assert paused._store.count() == 0
    deliver_run(Ledger(run.ledger.url), run.plan, address)
    assert not paused._store.commit(0, ready)
    paused.commit()
    paused.close()
    assert len(rows_of(run, address)) == 60


@pytest.mark.usefixtures("small_lots")
def test_killed_between_any_two_steps(source: Path, tmp_path: Path, address: str) -> None:
    """The process dies before or after the n-th call of the store; the next one delivers the rest."""
    run = start(fake_spec(source, workers=1, shard_bytes=600), tmp_path / "run")
    kind = find_delivery(address).part("delivery")
    for last in range(1, 40, 3):
        place = address.replace("rows", f"rows{last}")
        calls = Dying(last)

        class Mortal(kind):  # type: ignore[valid-type,misc]
            stage, commit, count, prepare = (calls.wrap(getattr(kind, name)) for name in _STEPS)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delivery, "open_delivery", lambda address, shipment: Mortal(address, shipment))
            try:
                deliver_run(run.ledger, run.plan, place, lease_s=0.2)
                ended = True
            except Killed:
                ended = False
        if not ended:
            deliver_run(Ledger(run.ledger.url), run.plan, place, lease_s=0.2)
        found = rows_of(run, place)
        assert len(found) == len({row["id"] for row in found}) == 60, last
    assert ended, "more than all steps"


@pytest.mark.usefixtures("small_lots")
@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_a_lot_that_fails_leaves_no_other_behind(source: Path, tmp_path: Path, kind: str) -> None:
    """Lots are staged side by side: when one fails, nobody holds the others."""
    run = start(fake_spec(source, workers=1, shard_bytes=200), tmp_path / "run")
    address = PLACES[kind].format(tmp_path)
    sound = find_delivery(address).part("delivery")

    class Failing(sound):  # type: ignore[valid-type,misc]
        def stage(self, lot: Lot) -> dict[str, Any]:
            if lot.number == 3:
                raise StoreError("There is no more space.")
            staged: dict[str, Any] = super().stage(lot)
            return staged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "open_delivery", Failing)
        with pytest.raises(StoreError, match="no more space"):
            deliver_run(run.ledger, run.plan, address)
    assert not [lot.step for lot in run.ledger.lots.read() if lot.state == TAKEN]
    deliver_run(run.ledger, run.plan, address)
    assert [row["id"] for row in rows_of(run, address)] == [row["id"] for row in fake_rows(60)]


_STEPS = ("stage", "commit", "count", "prepare")


class Killed(BaseException):
    """As a kill: nobody handles it."""


class Dying:
    """Counts what a store is asked for, and dies at the last call, after it if the number is even."""

    def __init__(self, last: int) -> None:
        self._left, self._after = last, last % 2 == 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            made = call(*given)
            if self._left == 0:
                raise Killed
            return made

        return called


def test_a_delta_table_that_others_prepare_meanwhile(source: Path, tmp_path: Path) -> None:
    """It looked at the table before another process noted there which run it gets."""
    run, address = start(fake_spec(source, workers=1), tmp_path / "run"), PLACES["delta"].format(tmp_path)
    shipment = delivery.shipment_of(run.ledger, run.plan)
    prepare_delivery(replace(run.plan, id="another"), shipment.schema, address)
    late = DeltaDelivery(address, shipment)
    seen = [late._find()]
    prepare_delivery(run.plan, shipment.schema, address)
    late._find = lambda: seen.pop() if seen else DeltaDelivery._find(late)  # type: ignore[method-assign]
    late.prepare()
    assert not seen
    assert run.deliver(address) == 60


@pytest.mark.parametrize("what", ["cut", "lot"])
def test_what_several_processes_died_at_is_told_and_tried_again(what: str, source: Path, tmp_path: Path) -> None:
    run, address = start(fake_spec(source, workers=1), tmp_path / "run"), PLACES["delta"].format(tmp_path)
    name = f"{what}:{address}" + ("#0" if what == "lot" else "")
    for n in range(3):
        assert run.ledger.lots.take(name, f"died-{n}", 0.0).worker == f"died-{n}"
    with pytest.raises(StepFailed, match="3 processes in a row died at it"):
        deliver_run(run.ledger, run.plan, address)
    deliver_run(run.ledger, run.plan, address)
    assert len(rows_of(run, address)) == 60


@pytest.mark.usefixtures("small_lots")
def test_a_table_that_was_dropped_is_delivered_anew(source: Path, tmp_path: Path, address: str) -> None:
    run = start(fake_spec(source, workers=1, into=[address], shard_bytes=600), tmp_path / "run")
    for place in tmp_path.glob("rows*"):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    assert not seen_by(run, address)[0]
    assert run.deliver(address) == 60
    assert seen_by(run, address)[0]


def test_rows_that_were_made_again_are_not_added(source: Path, tmp_path: Path, address: str) -> None:
    run = start(fake_spec(source, workers=1, into=[address]), tmp_path / "run")
    lot = Courier(run.ledger, run.plan, address)._lots()[0]
    name = f"lot:{address}#0"
    run.ledger.lots.forget(name)
    run.ledger.lots.take(name, "another", 60)
    run.ledger.lots.finish(name, "another", {"digest": "other", "staged": {}})
    assert lot.digest != "other"
    with pytest.raises(UsageError, match="were made again after they had been delivered"):
        deliver_run(run.ledger, run.plan, address)


def test_a_run_that_was_started_over_is_refused(source: Path, tmp_path: Path, address: str) -> None:
    start(fake_spec(source, workers=1, into=[address]), tmp_path / "run")
    with pytest.raises(ShardmillError, match="from before it was started over"):
        start(fake_spec(source, workers=1, into=[address]), tmp_path / "run", fresh=True)


def test_other_columns_are_refused(source: Path, tmp_path: Path, address: str) -> None:
    start(fake_spec(source, workers=1, into=[address]), tmp_path / "run")
    spec = fake_spec(source, workers=1, into=[address])
    more = spec.model_copy(update={"work": spec.work.model_copy(update={"keep": ("text",)})})
    with pytest.raises(ShardmillError, match="it has no column text"):
        start(more, tmp_path / "more")


def test_what_cannot_be_a_database(tmp_path: Path, source: Path) -> None:
    (tmp_path / "rows.db").write_text("no database, but a text that is long enough for a header of one")
    for scheme, said in (("sqlite", "cannot be used as an SQLite database"), ("duckdb", "cannot be opened by DuckDB")):
        with pytest.raises(ShardmillError, match=said):
            start(fake_spec(source, workers=1, into=[f"{scheme}:{tmp_path}/rows.db"]), tmp_path / scheme)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("a disk can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_loses_nothing(
    kind: str, source: Path, tmp_path: Path, small_disk: Path, shardmill: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start(fake_spec(source, workers=1, params={"dims": 2048}), tmp_path / "run")
    address = PLACES[kind].format(small_disk)
    said = shardmill("load", "--from", tmp_path / "run", "--to", address)
    assert_told(said, said.status, "Free some space and run the same command again")
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert shardmill("load", "--from", tmp_path / "run", "--to", address).status == 0
    assert seen_by(Run(tmp_path / "run"), address)[0]


def test_they_are_read_by_what_people_use(source: Path, tmp_path: Path) -> None:
    into = [place.format(tmp_path) for place in PLACES.values()]
    run = start(fake_spec(source, into=into, workers=1), tmp_path / "run")
    wanted = np.stack(run.table().column("embedding").to_pylist())
    ids = run.table().column("id").to_pylist()
    query = wanted[7]
    (found,) = (
        lance.dataset(f"{tmp_path}/rows.lance")
        .to_table(nearest={"column": "embedding", "q": query, "k": 1})
        .column("id")
        .to_pylist()
    )
    assert found == ids[7]
    there = lance.dataset(f"{tmp_path}/rows.lance")
    assert duckdb.sql("SELECT count(*), count(DISTINCT id) FROM there").fetchall() == [(60, 60)]
    polars = needed("polars")
    for frame in (polars.scan_delta(f"{tmp_path}/rows").collect(), polars.scan_pyarrow_dataset(there).collect()):
        assert frame["id"].to_list() == ids
        assert np.array_equal(np.stack(frame["embedding"].to_numpy()), wanted)
    with duckdb.connect(f"{tmp_path}/rows.duckdb") as opened:
        nearest = "SELECT id FROM vectors ORDER BY array_distance(embedding, ?::FLOAT[8]) LIMIT 1"
        assert opened.execute(nearest, [query.tolist()]).fetchall() == [(ids[7],)]
    blob = sqlite3.connect(f"{tmp_path}/rows.db").execute("SELECT embedding FROM result WHERE id = ?", [ids[7]])
    assert np.array_equal(np.frombuffer(blob.fetchone()[0], "<f4"), query.astype("<f4"))
    polars = needed("polars")
    assert polars.read_delta(f"{tmp_path}/rows")["id"].to_list() == ids


def test_lancedb_searches_it(source: Path, tmp_path: Path) -> None:
    run = start(fake_spec(source, into=[PLACES["lance"].format(tmp_path)], workers=1), tmp_path / "run")
    row = run.table().to_pylist()[7]
    rows = needed("lancedb").connect(tmp_path).open_table("rows")
    assert [found["id"] for found in rows.search(row["embedding"]).limit(1).to_list()] == [row["id"]]
    assert [found["id"] for found in rows.search().where(f"id = '{row['id']}'").to_list()] == [row["id"]]
