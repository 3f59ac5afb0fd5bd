"""Finished rows in PostgreSQL, delivered from the parts of a run."""

from __future__ import annotations

import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.core.errors import DatabaseError, ShardmillError
from shardmill.results import delivery
from shardmill.run import Run, start
from shardmill.sinks.base import Shipment
from shardmill.sinks.databases.postgres import PostgresDelivery
from shardmill.testing import check_sink
from shardmill.testing.delivering import SCHEMA
from tests.support.corpora import fake_rows, fake_spec
from tests.support.services import PostgresServer


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    return f"{postgres.url()}#rows_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    rows = [*fake_rows(60), {"id": "bad", "text": "!nan"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def seen_by(run: Run) -> tuple[bool, str]:
    (check,) = (c for c in run.verify(sample=0, source=False, report=False).checks if c.name == "delivered")
    return check.ok, check.seen


def test_the_contract(address: str) -> None:
    assert check_sink(lambda shipment: PostgresDelivery(address, shipment)) >= 20


def test_a_run_is_delivered_and_proved(
    source: Path, address: str, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LOT_BYTES", 1)
    run = start(fake_spec(source, workers=1, into=[address], shard_bytes=600), tmp_path / "run")
    assert seen_by(run) == (True, f"61 of 61 rows are in {address} as in the run")
    table = address.rpartition("#")[2]
    assert run.deliver(address) == 61
    assert postgres.execute(f"SELECT count(*) FROM {table}")[-1][0] == 61
    (nearest,) = postgres.execute(
        f"SELECT b.id FROM {table} a, {table} b WHERE a.id = 'k7' ORDER BY a.embedding <=> b.embedding LIMIT 1"
    )[-1:]
    assert nearest[0] == "k7"
    postgres.execute(
        f"DELETE FROM {table} WHERE id = 'k5'",
        f"UPDATE {table} a SET embedding = b.embedding FROM {table} b WHERE a.id = 'k6' AND b.id = 'k7'",
        f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 'k8'",
    )
    ok, seen = seen_by(run)
    assert not ok
    for what in ("1 missing (k5)", "1 changed (k6)", "1 doubled (k8)"):
        assert what in seen


def test_several_prepare_and_complete_a_table_at_once(address: str) -> None:
    shipment = Shipment(
        plan="a" * 16, generation="0" * 8, schema=SCHEMA, key=("id",), vector="vector", made_by="c" * 16
    )

    def deliver(place: str) -> list[str]:
        store = PostgresDelivery(place, shipment)
        try:
            store.prepare()
            return store.finish([])
        finally:
            store.close()

    for n in range(5):
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(deliver, [f"{address}_{n}"] * 6))
        assert made == [["an index on id", "an HNSW index on vector"]] * 6


def test_a_server_that_is_away_is_told_before_anything_is_computed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match="cannot be reached"):
        start(fake_spec(source, workers=1, into=["postgresql://nobody@127.0.0.1:9/none#rows"]), tmp_path / "run")
    assert not list((tmp_path / "run").glob("commits/*"))


def test_a_view_is_switched_while_it_is_read(source: Path, tmp_path: Path, postgres: PostgresServer) -> None:
    """Vectors of another width: readers see one table or the other, and never none."""
    name = f"docs_{uuid.uuid4().hex[:8]}"
    runs = [start(fake_spec(source, params={"dims": n}), tmp_path / f"run{n}") for n in (4, 8)]
    addresses = [f"{postgres.url()}#{name}_{n}" for n in (4, 8)]
    for run, address in zip(runs, addresses, strict=True):
        run.deliver(address, shown_as=name)
    seen, ended = set(), threading.Event()

    def read() -> None:
        while not ended.is_set():
            seen.update(row[0] for row in postgres.execute(f"SELECT DISTINCT vector_dims(embedding) FROM {name}"))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for n in range(10):
            runs[n % 2].deliver(addresses[n % 2], shown_as=name)
        ended.set()
        reading.result()
    assert seen >= {4, 8}
    with pytest.raises(DatabaseError, match="is not a view"):
        runs[0].deliver(addresses[0], shown_as=f"{name}_8")


def test_sparse_vectors(address: str, tmp_path: Path, postgres: PostgresServer) -> None:
    from shardmill.plan.spec import make_spec
    from tests.support.sparse_models import write_splade

    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fake_rows(12)))
    params = {"model": str(write_splade(tmp_path / "splade")), "max_active_dims": 30}
    work = {"source": str(tmp_path / "items.jsonl"), "text": "text", "id": "id", "task": "embed-sparse"}
    spec = make_spec({**work, "params": params}, {"device": "cpu", "workers": 1, "into": [address]})
    run = start(spec, tmp_path / "run")
    assert seen_by(run) == (True, f"12 of 12 rows are in {address} as in the run")
    table = address.rpartition("#")[2]
    stored = dict(postgres.execute(f"SELECT id, sparse::text FROM {table}")[-12:])
    for row in run.table().to_pylist():
        pairs, dims = stored[row["id"]][1:].split("}/")
        assert int(dims) == 30522
        assert [int(pair.split(":")[0]) - 1 for pair in pairs.split(",")] == [each["index"] for each in row["sparse"]]
    (nearest,) = postgres.execute(
        f"SELECT b.id FROM {table} a, {table} b WHERE a.id = 'k7' ORDER BY a.sparse <=> b.sparse LIMIT 1"
    )[-1:]
    assert nearest[0] == "k7"
    postgres.execute(f"UPDATE {table} SET sparse = '{{1:1}}/30522' WHERE id = 'k6'")
    ok, seen = seen_by(run)
    assert not ok
    assert "1 changed (k6)" in seen
