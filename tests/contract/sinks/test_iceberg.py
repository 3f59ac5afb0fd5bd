"""Iceberg as a sink, by pyiceberg's SQL catalogue: every row once, whoever is paused, killed or too late."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import MissingExtra, StoreError, UsageError
from shardmill.ledger import Ledger
from shardmill.results.delivered import check_delivery
from shardmill.results.delivery import deliver_run
from shardmill.run import Run, start
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.lakes.iceberg import IcebergDelivery
from shardmill.sources import Fields, discover, open_source
from shardmill.store import locate
from shardmill.testing import InProcessEngine, check_sink
from shardmill.testing.delivering import SCHEMA, make_lot, make_rows
from tests.support.corpora import fake_rows, fake_spec
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S

needed("pyiceberg")
needed("sqlalchemy")
# It remembers the environment that it is first imported in.
needed("pyiceberg.catalog")
expressions, transforms = needed("pyiceberg.expressions"), needed("pyiceberg.transforms")
exceptions, types = needed("pyiceberg.exceptions"), needed("pyiceberg.types")

ADDRESS = "iceberg:prod/shop.reviews"
SHIPMENT = Shipment(plan="a" * 16, generation="0" * 8, schema=SCHEMA, key=("id",), vector="vector", made_by="c" * 16)
Write = Callable[..., Path]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A catalogue by its environment variables, with a warehouse on a disk."""
    for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/catalogue.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", f"file://{tmp_path}/warehouse")
    return f"file://{tmp_path}/warehouse"


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.services)])
def warehouse(request: pytest.FixtureRequest, configured: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return configured
    place = f"{request.getfixturevalue('s3_server')}/{uuid.uuid4().hex}"
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", place)
    return place


@pytest.fixture
def opened() -> Iterator[Callable[..., IcebergDelivery]]:
    made = []

    def make(shipment: Shipment = SHIPMENT, address: str = ADDRESS) -> IcebergDelivery:
        made.append(IcebergDelivery(address, shipment))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def table(opened: Callable[..., IcebergDelivery]) -> Callable[[], Any]:
    """The table, as pyiceberg loads it."""
    return lambda: opened()._catalogue.load_table(("shop", "reviews"))


Opened = Callable[..., IcebergDelivery]
Table = Callable[[], Any]


def staged(store: Delivery, *lots: Lot) -> list[Lot]:
    return [replace(lot, staged=store.stage(lot)) for lot in lots]


def numbers(store: Delivery) -> Counter[int]:
    """Which rows of `make_rows` it has, and how often."""
    return Counter(round(3 * row["share"]) for batch in store.scan() for row in batch.to_pylist())


def once(*wanted: int) -> Counter[int]:
    return Counter(wanted)


def test_it_keeps_the_contract(warehouse: str) -> None:
    assert check_sink(lambda shipment: open_delivery(ADDRESS, shipment)) > 15


class Paused(IcebergDelivery):
    """Somebody else acts after it has looked at the table, and before it commits."""

    meanwhile: Callable[[], object] | None = None

    def _open(self) -> Any:
        found, act, self.meanwhile = super()._open(), self.meanwhile, None
        if act is not None:
            act()
        return found


@pytest.mark.parametrize(("mine", "others"), [(3, 3), (0, 3), (3, 0), (0, 0)])
def test_a_committer_that_was_paused_adds_nothing(warehouse: str, opened: Opened, mine: int, others: int) -> None:
    paused, other = Paused(ADDRESS, SHIPMENT), opened()
    paused.prepare()
    waiting = staged(paused, make_lot(0, 0, mine))
    taken = staged(other, make_lot(0, 0, others), make_lot(1, 10, 2))

    def take_over() -> None:
        assert other.commit(0, taken[:1])
        assert other.commit(1, taken[1:])

    paused.meanwhile = take_over
    assert not paused.commit(0, waiting)
    assert paused.count() == other.count() == 2
    assert not paused.commit(0, waiting)
    assert not paused.commit(1, waiting)
    assert numbers(other) == once(*range(others), 10, 11)
    paused.close()


def test_a_committer_with_a_table_from_long_ago_adds_nothing(configured: str, opened: Opened) -> None:
    stale, other = opened(), opened()
    stale.prepare()
    lots = staged(stale, make_lot(0, 0, 4), make_lot(1, 4, 4))
    assert stale.commit(0, lots[:1])
    old = stale._open()
    assert other.commit(1, staged(other, make_lot(1, 4, 4)))
    stale._open = lambda: old  # type: ignore[method-assign]
    assert not stale.commit(1, lots[1:])
    assert numbers(other) == once(*range(8))
    assert other.count() == 2


def test_rows_that_others_append_are_no_obstacle(configured: str, opened: Opened, table: Table) -> None:
    paused = Paused(ADDRESS, SHIPMENT)
    paused.prepare()
    lots = staged(paused, make_lot(0, 0, 3))
    rows = pa.Table.from_batches([make_rows(50, 1)])
    paused.meanwhile = lambda: table().append(rows.cast(table().schema().as_arrow()))
    assert not paused.commit(0, lots)
    assert paused.count() == 0
    assert paused.commit(0, lots)
    assert numbers(paused) == once(0, 1, 2, 50)
    assert "commit.retry.num-retries" not in table().properties
    paused.close()


def test_committers_that_race(warehouse: str, opened: Opened) -> None:
    first = opened()
    first.prepare()
    lots = staged(first, *(make_lot(n, 3 * n, n % 3) for n in range(12)))

    def commit_all(store: Delivery) -> int:
        made = 0
        while (there := store.count()) < len(lots):
            made += store.commit(there, lots[there : there + 1])
        return made

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(commit_all, [opened() for _ in range(4)]))
    assert sum(made) == len(lots)
    assert numbers(first) == once(*(3 * n + at for n in range(12) for at in range(n % 3)))


def test_the_same_lot_staged_twice(warehouse: str, opened: Opened, table: Table) -> None:
    first, second = opened(), opened()
    first.prepare()
    lot = make_lot(0, 0, 5)
    files = [staged(first, lot), staged(second, lot)]
    assert second.commit(0, files[0])
    assert not first.commit(0, files[1])
    assert second.finish(files[0]) == ["1 data files of attempts that died were deleted"]
    assert second.finish(files[0]) == []
    assert numbers(first) == once(*range(5))
    store, key = locate(f"{table().location()}/data/{files[0][0].staged['path']}")
    assert store.head(key) is not None


def test_the_number_of_lots_outlives_its_snapshot(configured: str, opened: Opened, table: Table) -> None:
    store = opened()
    store.prepare()
    assert store.commit(0, staged(store, make_lot(0, 0, 2)))
    first = table().current_snapshot().snapshot_id
    assert store.commit(1, staged(store, make_lot(1, 2, 2)))
    table().maintenance.expire_snapshots().by_id(first).commit()
    assert opened().count() == 2
    assert numbers(store) == once(0, 1, 2, 3)


def finished(folder: Path, count: int = 60, **work: Any) -> Run:
    source = folder / "items.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(count)))
    return start(fake_spec(source, **work), folder / "run", engine=InProcessEngine(), quiet=True)


def read_ids(table: Any) -> Counter[str]:
    return Counter(table.scan().to_arrow().column("id").to_pylist())


KILLED = """
import os, signal, sys
from shardmill.ledger import Ledger
from shardmill.results import delivery
from shardmill.sinks.lakes.iceberg import IcebergDelivery

folder, address, when = sys.argv[1:]
commit = IcebergDelivery.commit

def killed(self, first, lots):
    if when == "after":
        commit(self, first, lots[:3])
    os.kill(os.getpid(), signal.SIGKILL)

delivery._LOT_BYTES = 1
IcebergDelivery.commit = killed
ledger = Ledger(folder)
delivery.deliver_run(ledger, ledger.plan(), address, lease_s=0.5)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_a_commit(warehouse: str, tmp_path: Path, table: Table, when: str) -> None:
    run = finished(tmp_path, shard_bytes=400)
    ledger = Ledger(tmp_path / "run")
    assert len(ledger.plan().shards) > 5
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), ADDRESS, when]
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    assert sum(read_ids(table()).values()) == 0 if when == "before" else 0 < sum(read_ids(table()).values()) < 60
    deliver_run(ledger, ledger.plan(), ADDRESS, lease_s=0.5)
    assert read_ids(table()) == Counter(row["id"] for row in fake_rows(60))
    assert check_delivery(ledger, ledger.plan(), ADDRESS, ledger.commits.read()).ok
    assert run.verify().verified


def test_a_run_delivers_and_resumes(warehouse: str, tmp_path: Path, table: Table) -> None:
    run = finished(tmp_path, into=ADDRESS)
    assert [check.ok for check in run.verify().checks if check.name == "delivered"] == [True]
    assert read_ids(table()) == Counter(row["id"] for row in fake_rows(60))
    before = table().metadata_location
    finished(tmp_path, into=ADDRESS)
    assert table().metadata_location == before


def test_verify_finds_what_differs(configured: str, tmp_path: Path, opened: Opened, table: Table) -> None:
    finished(tmp_path, into=ADDRESS)
    ledger = Ledger(tmp_path / "run")
    plan, commits = ledger.plan(), ledger.commits.read()
    there = table()
    row = there.scan(row_filter="id = 'k7'").to_arrow()
    changed = there.scan(row_filter="id = 'k9'").to_arrow()
    at = changed.schema.get_field_index("embedding")
    vector = pa.array([[v + 1 for v in changed.column(at)[0].as_py()]], changed.schema.field(at).type)
    there.append(row)
    there.delete("id in ('k8', 'k9')")
    there.append(changed.set_column(at, changed.schema.field(at), vector))
    found = check_delivery(ledger, plan, ADDRESS, commits)
    assert not found.ok
    assert "58 of 60 rows" in found.seen
    for wrong in ("1 missing (k8)", "1 changed (k9)", "1 doubled (k7)"):
        assert wrong in found.seen


def test_other_tools_read_it(warehouse: str, opened: Opened, table: Table) -> None:
    store = opened()
    store.prepare()
    assert store.commit(0, staged(store, make_lot(0, 0, 5), make_lot(1, 5, 4)))
    wanted = make_rows(0, 9).to_pylist()

    def same(found: list[dict[str, Any]]) -> bool:
        return bool(sorted(found, key=lambda row: row["share"]) == wanted)

    assert same(table().scan().to_arrow().to_pylist())
    assert same(needed("polars").scan_iceberg(table()).collect().to_arrow().to_pylist())
    fields = Fields("id", id=("id",), keep=("number", "vector"))
    source = open_source(discover([table().location().removeprefix("file://")], fields), fields)
    kept = [row for shard in source.shards(1 << 20) for batch in source.read(shard) for row in batch.kept.to_pylist()]
    assert sorted(kept, key=lambda row: row["vector"]) == [
        {name: row[name] for name in ("id", "number", "vector")} for row in wanted
    ]
    with table().update_schema() as change:
        change.rename_column("share", "part")
    assert [row["part"] for row in table().scan().to_arrow().sort_by("part").to_pylist()] == [
        row["share"] for row in wanted
    ]


ODD = "a b/ü'\""
HARD = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field(ODD, pa.string()),
        pa.field("a.b", pa.string()),
        pa.field("Tiny", pa.uint8()),
        pa.field("short", pa.int16()),
        pa.field("half", pa.float16()),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("when", pa.timestamp("ms", "Europe/Berlin")),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("large", pa.decimal128(30, 2)),
        pa.field("raw", pa.large_binary()),
        pa.field("nothing", pa.null()),
        pa.field("info", pa.struct([("tags", pa.list_(pa.large_string())), ("n", pa.int8())])),
        pa.field("vector", pa.list_(pa.float16(), 2)),
    ]
)
HARD_ROWS = [
    {
        "id": n,
        ODD: None if n == 1 else f"ü{n}",
        "a.b": f"{n}",
        "Tiny": 250 + n,
        "short": -n,
        "half": np.float16(n / 2),
        "kind": ("x", None, "y")[n],
        "when": datetime.datetime(2020, 1, 1 + n, tzinfo=datetime.UTC),
        "day": datetime.date(1969, 12, 30 + n % 2),
        "price": decimal.Decimal("-1.25") * n,
        "large": decimal.Decimal("12345678901234567890.25"),
        "raw": b"\x00\xff",
        "nothing": None,
        "info": None if n == 2 else {"tags": ["a", None], "n": n},
        "vector": None if n == 1 else [np.float16(n), np.float16("nan") if n == 2 else np.float16(0.5)],
    }
    for n in range(3)
]


def test_hard_types_and_names(configured: str, opened: Opened, table: Table) -> None:
    shipment = replace(SHIPMENT, schema=HARD, key=("id", ODD))
    rows = pa.RecordBatch.from_pylist(HARD_ROWS, HARD)
    store = opened(shipment)
    store.prepare()
    store.prepare()
    assert store.commit(0, staged(store, Lot(0, range(1), "d", lambda: iter([rows]))))
    found = pa.Table.from_batches(store.scan())
    assert found.schema == HARD
    assert repr(found.sort_by("id").to_pylist()) == repr(rows.to_pylist())
    assert len(table().scan(row_filter=expressions.EqualTo(ODD, "ü2")).to_arrow()) == 1
    store.delete(rows.slice(1).select(["id", ODD]))
    assert [row["id"] for batch in store.scan() for row in batch.to_pylist()] == [0]
    with pytest.raises(UsageError, match=r"the column a\.b, whose name has a dot"):
        store.delete(rows.select(["a.b"]))


@pytest.mark.parametrize("key", [("id",), ("id", "number")])
def test_many_keys_are_deleted(configured: str, opened: Opened, key: tuple[str, ...]) -> None:
    store = opened()
    store.prepare()
    assert store.commit(0, staged(store, make_lot(0, 0, 1300)))
    store.delete(make_rows(1, 1298).select(list(key)))
    assert numbers(store) == once(0, 1299)


def test_an_unknown_catalogue_says_how_to_describe_it(configured: str, opened: Opened) -> None:
    with pytest.raises(UsageError, match="pyiceberg knows no catalogue my-shop") as refused:
        opened(address="iceberg:my-shop/a.b").prepare()
    assert "PYICEBERG_CATALOG__MY_SHOP__URI" in refused.value.hint


@pytest.mark.parametrize(
    "address", ["iceberg:prod", "iceberg:prod/reviews", "iceberg:prod/shop.", "iceberg:prod/a/b.c", "iceberg:/a.b"]
)
def test_an_address_that_names_no_table(address: str) -> None:
    with pytest.raises(UsageError, match="names no Iceberg table") as refused:
        IcebergDelivery(address, SHIPMENT)
    assert "iceberg:CATALOGUE/NAMESPACE.TABLE" in refused.value.hint


def test_a_catalogue_that_is_away(configured: str, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri in ("sqlite:////nowhere/at/all.db", "http://127.0.0.1:9"):
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", uri)
        with pytest.raises(StoreError) as lost:
            opened().prepare()
        assert lost.value.message.startswith(f"{ADDRESS}: ")
        assert "\n" not in lost.value.message
        assert lost.value.hint


@pytest.mark.parametrize("text", ["catalog: [", "catalog: nonsense", "catalog:\n  mine:\n    uri: gopher://shop"])
def test_a_configuration_that_makes_no_sense(
    configured: str, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for name in ("URI", "WAREHOUSE"):
        monkeypatch.delenv(f"PYICEBERG_CATALOG__PROD__{name}")
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    with pytest.raises(UsageError) as refused:
        opened(address="iceberg:mine/shop.reviews").prepare()
    assert "\n" not in refused.value.message
    assert "PYICEBERG_CATALOG__MINE__URI" in refused.value.hint


def test_a_catalogue_without_a_warehouse(configured: str, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYICEBERG_CATALOG__PROD__WAREHOUSE")
    with pytest.raises(UsageError, match="cannot be created") as refused:
        opened().prepare()
    assert "warehouse" in refused.value.hint


def test_a_warehouse_that_cannot_be_written(configured: str, opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "warehouse").touch()
    with pytest.raises(StoreError) as lost:
        opened().prepare()
    assert "\n" not in lost.value.message


@pytest.mark.parametrize("error", [PermissionError("Access denied"), exceptions.ForbiddenError("Read only")])
def test_no_right_to_write(configured: str, opened: Opened, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    store = opened()
    store.prepare()
    lots = staged(store, make_lot(0, 0, 2))

    def refuse(*given: object) -> None:
        raise error

    monkeypatch.setattr(store._catalogue, "commit_table", refuse)
    with pytest.raises(UsageError, match=str(error)) as refused:
        store.commit(0, lots)
    assert "right to write" in refused.value.hint
    assert numbers(store) == once()


def test_a_namespace_of_several_levels_is_created(configured: str, opened: Opened) -> None:
    store = opened(address="iceberg:prod/eu.shop.reviews")
    store.prepare()
    assert store.commit(0, staged(store, make_lot(0, 0, 2)))
    assert numbers(store) == once(0, 1)


def test_a_table_that_does_not_fit(configured: str, opened: Opened, table: Table) -> None:
    opened().prepare()

    def refused(**other: Any) -> str:
        with pytest.raises(UsageError) as error:
            opened(replace(SHIPMENT, plan="e" * 16, **other)).prepare()
        assert error.value.hint
        return error.value.message

    more = pa.schema([*SCHEMA, pa.field("more", pa.string())])
    assert "it has no column more" in refused(schema=more)
    texts = SCHEMA.set(1, pa.field("number", pa.string()))
    assert "its column number is int64, and that of the result string" in refused(schema=texts)
    assert "another model" in refused(made_by="x" * 16)
    with table().update_schema() as change:
        change.add_column("more", types.StringType())
    with pytest.raises(UsageError, match="it has a column more"):
        opened().stage(make_lot(0, 0, 1))
    with table().update_spec() as change:
        change.add_field("id", transforms.IdentityTransform(), "id")
    assert "is partitioned by id" in refused()


def test_a_table_that_others_made(configured: str, opened: Opened) -> None:
    """Its columns are in another order, and its key must have a value."""
    store = opened()
    store._catalogue.create_namespace("shop")
    fields = [SCHEMA.field(name) for name in ("vector", "share", "id", "good", "number")]
    own = pa.schema([field.with_nullable(field.name != "id") for field in fields])
    store._catalogue.create_table(("shop", "reviews"), own)
    store.prepare()
    assert store.commit(0, staged(store, make_lot(0, 0, 3)))
    assert numbers(store) == once(0, 1, 2)
    other = opened(replace(SHIPMENT, plan="e" * 16, key=()))
    with pytest.raises(UsageError, match="takes no rows without id"):
        other.prepare()


def test_another_model_that_came_between(configured: str, opened: Opened, table: Table) -> None:
    first, second = opened(), opened(replace(SHIPMENT, plan="e" * 16, made_by="x" * 16))
    first.prepare()
    with table().transaction() as change:
        change.remove_properties("shardmill.made_by")
    second.prepare()
    lots = staged(second, make_lot(0, 0, 2))
    assert first.commit(0, staged(first, make_lot(0, 0, 2)))
    with pytest.raises(UsageError, match="another model"):
        second.commit(0, lots)
    assert numbers(first) == once(0, 1)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.duration("s"), pa.decimal256(50, 2)])
def test_types_it_cannot_hold(configured: str, opened: Opened, kind: pa.DataType) -> None:
    shipment = replace(SHIPMENT, schema=SCHEMA.append(pa.field("odd", kind)))
    with pytest.raises(UsageError, match=r"the column odd is .* cannot hold"):
        opened(shipment).prepare()


def test_a_table_that_is_gone(configured: str, opened: Opened) -> None:
    store = opened()
    assert store.count() == 0
    with pytest.raises(StoreError, match="is gone"):
        store.commit(0, [])


def test_a_data_file_that_is_gone(configured: str, opened: Opened, table: Table) -> None:
    store = opened()
    store.prepare()
    lots = staged(store, make_lot(0, 0, 2))
    place, key = locate(f"{table().location()}/data/{lots[0].staged['path']}")
    place.delete(key)
    with pytest.raises(StoreError):
        store.commit(0, lots)
    assert store.count() == 0


def test_the_address_stays_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = fake_spec("items.jsonl", into=[ADDRESS, "delta:rows"])
    assert spec.execution.into == (ADDRESS, f"delta:{tmp_path}/rows")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(MissingExtra) as missing:
        IcebergDelivery(ADDRESS, SHIPMENT)
    assert "shardmill[iceberg]" in missing.value.hint
