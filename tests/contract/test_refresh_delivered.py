"""A store that has an earlier edition of a run is brought up to the newest: only what differs, whoever dies on the way,
and nothing of others is touched."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SourceError, StepFailed, UsageError
from shardmill.ledger import Editions, Ledger
from shardmill.results import delivery
from shardmill.results.delivered import check_delivery
from shardmill.results.delivery import remember_delivery
from shardmill.run import Run
from shardmill.run.pruning import prune
from shardmill.sinks.address import find_delivery
from shardmill.sinks.base import Delivery
from tests.contract.sinks.test_deliveries import rows_of
from tests.contract.test_refresh import EDITS, Rows, again, begin, change, make_rows, spec_of, write, write_all
from tests.support.cli import Cli, Said, assert_told
from tests.support.libraries import needed

PLACES = {
    "sqlite": "sqlite:{}/rows.db",
    "duckdb": "duckdb:{}/rows.duckdb#vectors",
    "delta": "delta:{}/rows",
    "lance": "lance:{}/rows.lance",
    "iceberg": "iceberg:prod/shop.reviews",
}
KINDS = [*PLACES, pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "postgres":
        return f"{request.getfixturevalue('postgres').url()}#rows_{uuid.uuid4().hex[:8]}"
    if request.param == "iceberg":
        needed("pyiceberg.catalog")
        needed("sqlalchemy")
        monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/catalogue.db")
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", f"file://{tmp_path}/warehouse")
    return PLACES[request.param].format(tmp_path)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots of a shard, and steps of three keys."""
    monkeypatch.setattr(delivery, "_LOT_BYTES", 1)
    monkeypatch.setattr("shardmill.results.turning._KEYS_AT_ONCE", 3)
    monkeypatch.setattr("shardmill.sinks.earlier._FEWEST_BYTES", 0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "items.jsonl", make_rows(40))


def edit(source: Path) -> None:
    """Edits, deletes, a changed column and new rows, the first of which moves all others to other places."""
    rows = make_rows(40)
    for n in (4, 5, 6, 20):
        rows[n]["text"] = f"edited {n}"
    rows[30]["n"] = -1
    del rows[34:39]
    del rows[10:12]
    write(source, [{"id": "first", "text": "the first", "n": 0}, *rows, {"id": "last", "text": "the last", "n": 9}])


def refreshed(source: Path, out: Path) -> Run:
    edit(source)
    again(out)
    return Run(out)


MARKING = ["sqlite", "duckdb", pytest.param("postgres", marks=pytest.mark.services)]


def marked(run: Run, address: str) -> set[str]:
    """The ids of the rows that are marked as gone."""
    store: Any = find_delivery(address).part("delivery")(address, delivery.shipment_of(run.ledger, run.plan))
    try:
        return {id for (id,) in store.run(f"SELECT id FROM {store.table} WHERE {store.gone} IS NOT NULL")}
    finally:
        store.close()


def deliver(run: Run, address: str) -> int:
    """Without noting it: else a refresh would deliver, too."""
    rows: int = delivery.deliver_run(Ledger(run.ledger.url), run.plan, address, lease_s=0.2)["rows"]
    return rows


def is_there(run: Run, address: str) -> None:
    def sort(rows: Rows) -> Rows:
        return sorted(rows, key=lambda row: (row["id"], row.get("window", 0)))

    assert sort(rows_of(run, address)) == sort(run.table().drop_columns(["row"]).to_pylist())
    assert seen_by(run, address)[0]


def seen_by(run: Run, address: str) -> tuple[bool, str]:
    check = check_delivery(run.ledger, run.plan, address, run.ledger.commits.read())
    return check.ok, check.seen


def test_a_table_is_brought_up_to_the_newest_edition_and_back(source: Path, tmp_path: Path, address: str) -> None:
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    run = refreshed(source, tmp_path / "run")
    assert deliver(run, address) == 35
    is_there(run, address)
    assert deliver(run, address) == 35, "once"
    is_there(run, address)
    assert Editions(tmp_path / "run").switch(2, 1)
    first = Run(tmp_path / "run")
    assert deliver(first, address) == 40
    is_there(first, address)
    assert Editions(tmp_path / "run").switch(1, 2)
    deliver(run, address)
    is_there(run, address)


@pytest.mark.parametrize("address", MARKING, indirect=True)
def test_rows_that_are_gone_get_a_mark(source: Path, tmp_path: Path, address: str, shardmill: Cli) -> None:
    address = f"{address}{'' if '#' in address else '#rows'}?gone=gone_at"
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    run = refreshed(source, tmp_path / "run")
    ids = [row["id"] for row in make_rows(40)]
    gone = {ids[n] for n in (10, 11, *range(34, 39))}
    assert deliver(run, address) == 35
    is_there(run, address)
    assert marked(run, address) == gone
    assert seen_by(run, address)[1].endswith("; 7 rows there are marked as gone")
    write(source, make_rows(36))
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    deliver(run, address)
    is_there(run, address)
    assert marked(run, address) == {"first", "last", *ids[36:]}, "rows that came back have none"
    assert Editions(tmp_path / "run").switch(3, 2)
    deliver(Run(tmp_path / "run"), address)
    assert marked(run, address) == gone, "as after the first turn"
    is_there(Run(tmp_path / "run"), address)
    said = shardmill("load", "--from", tmp_path / "run", "--to", address, "--as", "shown")
    assert said.status == 0, said
    store: Any = find_delivery(address).part("delivery")(address, delivery.shipment_of(run.ledger, run.plan))
    assert store.run("SELECT count(*) FROM shown") == [(35,)]
    store.run(f"UPDATE {store.table} SET gone_at = CURRENT_TIMESTAMP WHERE id = 'last'")
    store.close()
    assert not seen_by(Run(tmp_path / "run"), address)[0]
    assert shardmill("load", "--from", tmp_path / "run", "--to", address, "--repair").status == 0
    is_there(Run(tmp_path / "run"), address)
    assert marked(run, address) == gone


def test_marks_that_cannot_be_are_refused(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    begin(spec_of(source), tmp_path / "run")
    begin(spec_of(source, id=()), tmp_path / "bare")
    address = PLACES["sqlite"].format(tmp_path)

    def load(run: str, to: str) -> Said:
        return shardmill("load", "--from", tmp_path / run, "--to", to)

    assert_told(load("run", f"lance:{tmp_path}/rows?gone=at"), 2, "The sink 'lance' cannot mark rows")
    assert_told(load("run", f"{address}?gone=n"), 2, "the rows have a column n of their own")
    assert_told(load("bare", f"{address}?gone=at"), 2, "nothing identifies the rows")
    assert load("run", address).status == 0
    assert_told(load("run", f"{address}?gone=at"), 2, "it has no column at")
    assert load("run", f"{address}#two?gone=at").status == 0
    assert_told(load("run", f"{address}#two"), 2, "it has a column at, which the result has not")


def test_what_was_done_is_told(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    address = PLACES["sqlite"].format(tmp_path)
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    refreshed(source, tmp_path / "run")
    said = shardmill("load", "--from", tmp_path / "run", "--to", address)
    assert "edition 1 became edition 2: 7 rows new or changed, 7 gone" in said.err, said


@pytest.mark.parametrize("shape", [{"params": {"window": 8}}, {"where": "n < 30"}, {"id": ("id", "n")}])
def test_rows_of_every_shape(shape: dict[str, Any], source: Path, tmp_path: Path) -> None:
    address = PLACES["sqlite"].format(tmp_path)
    deliver(begin(spec_of(source, **shape), tmp_path / "run"), address)
    run = refreshed(source, tmp_path / "run")
    deliver(run, address)
    is_there(run, address)


def test_another_process_is_a_step_ahead(source: Path, tmp_path: Path, address: str) -> None:
    """A process that was paused before a step finds when it wakes that it was taken, and does nothing."""
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    run = refreshed(source, tmp_path / "run")
    kind = find_delivery(address).part("delivery")
    others: list[int] = []

    def paused(store: Delivery, step: Any) -> bool:
        others.append(1)
        if len(others) == 3:
            store.close()
            patch.setattr(delivery, "open_delivery", kind)
            deliver(run, address)
        done: bool = kind.turn(store, step)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "open_delivery", type("Late", (kind,), {"turn": paused}))
        deliver(run, address)
    assert len(others) == 3
    is_there(run, address)


def test_rows_of_others_and_rows_changed_by_hand_stay(
    source: Path, tmp_path: Path, postgres_or_sqlite: Callable[..., Any], shardmill: Cli
) -> None:
    address, execute = postgres_or_sqlite
    run = begin(spec_of(source), tmp_path / "run")
    deliver(run, address)
    table = address.partition("#")[2]
    ids = [row["id"] for row in make_rows(40)]
    execute(f"UPDATE {table} SET n = 99 WHERE id IN ('{ids[4]}', '{ids[10]}', '{ids[0]}')")
    execute(f"INSERT INTO {table} (id, n) VALUES ('mine', 1), ('first', 2)")
    execute(f"DELETE FROM {table} WHERE id = '{ids[5]}' OR id = '{ids[11]}'")
    run = refreshed(source, tmp_path / "run")
    said = shardmill("load", "--from", tmp_path / "run", "--to", address)
    assert said.status == 0, said
    assert f"changed there since, and left alone: 2 ({ids[4]}, {ids[10]})" in said.err
    found = {(row["id"], row["n"]) for row in rows_of(run, address)}
    assert {(ids[4], 99), (ids[10], 99), (ids[0], 99), ("mine", 1), ("first", 2), ("first", 0), (ids[5], 5)} <= found
    assert {ids[11], ids[35]}.isdisjoint(id for id, _ in found)
    ok, seen = seen_by(run, address)
    assert not ok
    assert "2 changed" in seen


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def postgres_or_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[str], object]]:
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        return f"{server.url()}#rows_{uuid.uuid4().hex[:8]}", server.execute

    def execute(sql: str) -> None:
        import sqlite3

        with sqlite3.connect(tmp_path / "rows.db") as opened:
            opened.execute(sql)

    return f"sqlite:{tmp_path}/rows.db#rows", execute


@given(
    edits=st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 10**6)), min_size=1, max_size=8),
    marks=st.sampled_from(["", "?gone=at"]),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_edits_a_table_has_the_rows_of_the_run(
    edits: list[tuple[str, int]], marks: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("edits")
    files: dict[str, Rows] = {"a.jsonl": make_rows(40), "b.jsonl": [{**r, "id": f"b{r['id']}"} for r in make_rows(9)]}
    write_all(folder / "source", files)
    address = f"sqlite:{folder}/rows.db{marks}"
    deliver(begin(spec_of(folder / "source"), folder / "run"), address)
    for number, (what, at) in enumerate(edits):
        change(files, what, at, number)
        write_all(folder / "source", files)
        again(folder / "run", allow_shrink=True)
        if number % 3 != 1:
            deliver(Run(folder / "run"), address)
    run = Run(folder / "run")
    deliver(run, address)
    is_there(run, address)


def test_what_cannot_be_brought_up_is_refused(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shardmill: Cli,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = PLACES["sqlite"].format(tmp_path)
    deliver(begin(spec_of(source, id=()), tmp_path / "bare"), address)
    deliver(begin(spec_of(source), tmp_path / "run"), f"{address}#others")
    edit(source)
    remember_delivery(Ledger(tmp_path / "bare"), address)
    again(tmp_path / "bare")
    assert f"Not delivered to {address}" in capsys.readouterr().err
    told = shardmill("load", "--from", tmp_path / "bare", "--to", address)
    assert_told(told, 2, "has edition 1 of this run: nothing identifies its rows")
    again(tmp_path / "run")
    write(source, make_rows(39))
    again(tmp_path / "run")
    monkeypatch.setattr("shardmill.ledger.editions.GRACE_S", 0.0)
    assert 1 in prune(tmp_path / "run", 1, even_delivered=True).pruned
    with pytest.raises(UsageError, match="has edition 1 of this run: it was pruned"):
        deliver(Run(tmp_path / "run"), f"{address}#others")


def test_an_edition_that_a_store_has_is_not_pruned(
    source: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, shardmill: Cli
) -> None:
    monkeypatch.setattr("shardmill.ledger.editions.GRACE_S", 0.0)
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    for n in (39, 38):
        write(source, make_rows(n))
        again(tmp_path / "run")
    said = shardmill("prune", tmp_path / "run", "--keep-editions", 1)
    lines = said.err.splitlines()
    assert lines[0].startswith(f"Edition 1 stays: {address} has it"), said
    assert f"shardmill load --from {tmp_path / 'run'} --to {address} " in lines[0].replace("'", "")
    assert lines[1:] == ["Deleted: edition 2."]
    assert json.loads(shardmill("prune", tmp_path / "run", "--keep-editions", 1, "--json").out)["held"] == {
        "1": [address]
    }
    run = Run(tmp_path / "run")
    assert deliver(run, address) == 38
    is_there(run, address)
    assert 1 in prune(tmp_path / "run", 1).pruned, "the store has a later one now"
    write(source, make_rows(37))
    again(tmp_path / "run")
    found = prune(tmp_path / "run", 1)
    assert found.held == {3: [address]}
    deliver(Run(tmp_path / "run"), address)
    is_there(Run(tmp_path / "run"), address)


def test_a_refresh_that_keeps_few_editions_keeps_that_of_a_store_that_is_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shardmill: Cli
) -> None:
    monkeypatch.setattr("shardmill.ledger.editions.GRACE_S", 0.0)
    address = PLACES["sqlite"].format(tmp_path)
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    for n in (39, 38):
        write(source, make_rows(n))
        said = shardmill("refresh", tmp_path / "run", "--device", "cpu", "--keep-editions", 1)
        assert said.status == 0, said
        assert said.err.count(f"Edition 1 stays: {address} has it") == 1
    assert [edition.pruned for edition in Editions(tmp_path / "run").all()] == [False, True, False]
    deliver(Run(tmp_path / "run"), address)
    is_there(Run(tmp_path / "run"), address)


def test_a_refresh_delivers_to_where_the_run_was_delivered(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    into, later = PLACES["sqlite"].format(tmp_path), f"sqlite:{tmp_path}/later.db"
    spec = spec_of(source)
    spec = spec.model_copy(update={"execution": spec.execution.model_copy(update={"into": (into,)})})
    begin(spec, tmp_path / "run").deliver(later)
    run = refreshed(source, tmp_path / "run")
    for address in (into, later):
        is_there(run, address)
    assert sum(check.name == "delivered" for check in run.verify(report=False).checks) == 2
    write(source, make_rows(38))
    Path(f"{tmp_path}/later.db").rename(f"{tmp_path}/away.db")
    Path(f"{tmp_path}/later.db").mkdir()
    with pytest.raises(StepFailed, match="cannot be used as an SQLite database"):
        again(tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.plan.work.edition == 3, "the edition is read all the same"
    is_there(run, into)
    Path(f"{tmp_path}/later.db").rmdir()
    Path(f"{tmp_path}/away.db").rename(f"{tmp_path}/later.db")
    assert not again(tmp_path / "run").changed
    for address in (into, later):
        is_there(run, address)


def test_a_source_that_has_shrunk_changes_no_table(source: Path, tmp_path: Path) -> None:
    address = PLACES["sqlite"].format(tmp_path)
    run = begin(spec_of(source), tmp_path / "run")
    deliver(run, address)
    write(source, [{**row, "text": row["text"] * 9} for row in make_rows(15)])
    with pytest.raises(SourceError, match="less than half is left"):
        again(tmp_path / "run")
    is_there(run, address)


@pytest.mark.services
def test_a_load_that_cannot_be_refreshed_says_what_deletes(
    source: Path, tmp_path: Path, postgres: Any, shardmill: Cli
) -> None:
    table, task = f"docs_{uuid.uuid4().hex[:8]}", ("--task", "shardmill.testing:FakeTask", "--param", "dims=8")
    words = (*task, "--text", "text", "--id", "id", "--device", "cpu", "--out", tmp_path / "load")
    assert shardmill("run", source, *words, "--to", postgres.url(), "--table", table).status == 0
    told = shardmill("refresh", tmp_path / "load")
    assert_told(told, 2, "is a load: its rows are in a table", "It deletes none.")
    command = shlex.split(told.err.splitlines()[1].partition("delivered to: ")[2])
    assert command[:3] == ["shardmill", "run", str(source)]
    address = command[command.index("--into") + 1]
    assert address == f"{postgres.url()}#{table}_rows"
    command[command.index("RUN")] = str(tmp_path / "run")
    for n in (40, 37):
        write(source, make_rows(n))
        said = shardmill(*command[1:], "--param", "dims=8", "--device", "cpu")
        assert said.status == 0, said
        assert postgres.execute(f"SELECT count(*) FROM {table}_rows") == [(n,)]
    is_there(Run(tmp_path / "run"), address)
