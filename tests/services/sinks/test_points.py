"""Every vector database: rows delivered once, again, by a worker that was killed, by another run; what verify finds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import DatabaseError, StoreError, UsageError
from shardmill.core.passwords import withhold
from shardmill.results.delivered_points import compare_points
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Shipment
from shardmill.sinks.points.base import Point, PointDelivery
from shardmill.sinks.points.payload import DIGEST
from tests.support.libraries import needed
from tests.support.points import (
    DIMS,
    SERVERS,
    address_at,
    lot_of,
    make_rows,
    new_port,
    redis_server,
    shipment_for,
)

STORES = ("qdrant_local", "milvus_lite", "milvus_server", "chroma", "redis")

CLIENTS = {"chroma": "chromadb", "redis": "redis", "milvus_server": "pymilvus"}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A function that gives the address of a new collection."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    if name in SERVERS:
        port = new_port()
        with SERVERS[name](folder, port):
            yield lambda: address_at(name, port, f"c{uuid.uuid4().hex[:8]}")
        return
    needed("qdrant_client" if name == "qdrant_local" else "milvus_lite")
    place = f"qdrant:{folder}/all#" if name == "qdrant_local" else f"milvus:{folder}/all.db#"
    yield lambda: f"{place}c{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def opened(address: str, shipment: Shipment) -> Iterator[PointDelivery]:
    found = open_delivery(address, shipment)
    assert isinstance(found, PointDelivery)
    try:
        yield found
    finally:
        found.close()


def deliver(address: str, rows: pa.RecordBatch, **known: Any) -> dict[str, Any]:
    with opened(address, shipment_for(rows, **known)) as there:
        there.prepare()
        staged = there.stage(lot_of(rows))
        assert there.commit(0, [lot_of(rows)])
        assert there.count() == 1
        there.finish([])
        return staged


def points_at(address: str, rows: pa.RecordBatch) -> dict[str, Point]:
    with opened(address, shipment_for(rows)) as there:
        return {point.id: point for page in there.pages() for point in page}


def compare(address: str, rows: pa.RecordBatch) -> Any:
    with opened(address, shipment_for(rows)) as there:
        return compare_points(there, [rows])


def test_rows_are_there_once_however_often_they_are_delivered(
    store: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PointDelivery, "page_rows", 70)
    rows = make_rows([f"k{i}" for i in range(300)], stars=list(range(300)))
    address = store()
    for _ in range(2):
        assert deliver(address, rows)["rows"] == 300
    assert len(points_at(address, rows)) == 300
    found = compare(address, rows)
    assert not found.any
    assert found.others == 0


def test_a_worker_that_was_killed_in_a_lot(store: Callable[[], str]) -> None:
    rows = make_rows([f"k{i}" for i in range(250)])
    address = store()
    with opened(address, shipment_for(rows)) as there:
        there.prepare()
    code = f"""
        import os, signal
        from shardmill.sinks.address import open_delivery
        from shardmill.sinks.points import base
        from tests.support.points import DIMS, lot_of, make_rows, shipment_for
        rows = make_rows([f"k{{i}}" for i in range(250)])
        def read():
            yield rows.slice(0, 150)
            os.kill(os.getpid(), signal.SIGKILL)
        base._BATCH_BYTES = 1000
        open_delivery({address!r}, shipment_for(rows)).stage(lot_of(rows, read=read))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert 0 < len(points_at(address, rows)) < 250
    deliver(address, rows)
    assert len(points_at(address, rows)) == 250
    assert not compare(address, rows).any


def test_another_run_with_the_same_ids_replaces(store: Callable[[], str]) -> None:
    first = make_rows(["a", "b", "c"], lang=["en", "de", "fr"])
    later = make_rows(["b", "c", "d"], seed=1, lang=["pl", None, "it"])
    address = store()
    deliver(address, first)
    deliver(address, later, plan="two")
    points = points_at(address, later)
    assert sorted(str(p.payload["id"]) for p in points.values()) == ["a", "b", "c", "d"]
    assert {p.payload["id"]: p.payload.get("lang") for p in points.values()} == {
        "a": "en",
        "b": "pl",
        "c": None,
        "d": "it",
    }
    found = compare(address, later)
    assert not found.any
    assert found.others == 1
    assert len(compare(address, first).changed) == 2


def test_windows_that_are_no_longer_there_are_deleted(store: Callable[[], str]) -> None:
    address = store()
    first = make_rows(["a"] * 5 + ["b"] * 2 + ["c"] * 3, windows=[0, 1, 2, 3, 4, 0, 1, 0, 1, 2])
    deliver(address, first)
    later = make_rows(["a"] * 2 + ["b"] * 3 + ["c"], seed=1, windows=[0, 1, 0, 1, 2, 0], missing=[5])
    with opened(address, shipment_for(later)) as there:
        found = compare_points(there, [later])
        assert len(found.leftover) == 2
    staged = deliver(address, later, plan="two")
    assert staged["without_vector"] == 1
    assert sorted((p.payload["id"], p.payload["window"]) for p in points_at(address, later).values()) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    ]
    found = compare(address, later)
    assert not found.any
    assert found.without_vector == 1


def test_rows_without_a_vector_are_not_stored_and_counted(store: Callable[[], str]) -> None:
    rows = make_rows(["a", "b", "c"], missing=[1])
    address = store()
    with opened(address, shipment_for(rows)) as there:
        there.prepare()
        lot = lot_of(rows)
        lot.staged.update(there.stage(lot))
        assert "1 rows have no vector and are not stored" in there.finish([lot])
    assert len(points_at(address, rows)) == 2
    assert not compare(address, rows).any
    deliver(address, make_rows(["a", "b", "c"]), plan="two")
    deliver(address, rows)
    assert len(points_at(address, rows)) == 2


def test_a_collection_of_another_dimension_or_model_is_refused(store: Callable[[], str]) -> None:
    address = store()
    deliver(address, make_rows(["a", "b"]))
    with pytest.raises(UsageError, match="8 dimensions, and those of the result 16"):
        deliver(address, make_rows(["a"], dims=16))
    with pytest.raises(UsageError, match="another model"):
        deliver(address, make_rows(["a"]), made_by="model-2")
    assert len(points_at(address, make_rows(["a"]))) == 2


def test_a_collection_of_another_metric_is_refused(store: Callable[[], str]) -> None:
    rows = make_rows(["a"])
    address = store()
    with opened(address, shipment_for(rows)) as there:
        client, name = there.client, there.collection
        if address.startswith("qdrant"):
            models = needed("qdrant_client").models
            client.create_collection(name, vectors_config=models.VectorParams(size=DIMS, distance="Euclid"))
        elif address.startswith("milvus"):
            kinds, schema, index = needed("pymilvus").DataType, client.create_schema(), client.prepare_index_params()
            schema.add_field("shardmill_point", kinds.VARCHAR, is_primary=True, max_length=36)
            schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=DIMS)
            index.add_index("embedding", index_type="AUTOINDEX", metric_type="L2")
            client.create_collection(name, schema=schema, index_params=index)
        elif address.startswith("chroma"):
            client.create_collection(name, embedding_function=None)
        else:
            client.execute_command("VADD", name, "VALUES", DIMS, *range(DIMS), "x")
    with pytest.raises(UsageError, match=r"its metric is (euclid|l2), and|its vectors are quantised \(int8\)"):
        deliver(address, rows)


def test_a_vector_of_zeros(store: Callable[[], str]) -> None:
    rows = make_rows(["a", "b"])
    zeros = pa.array([[0.0] * DIMS, [1.0] * DIMS], rows.schema.field("embedding").type)
    rows = rows.set_column(1, "embedding", zeros)
    address = store()
    deliver(address, rows)
    assert not compare(address, rows).any


HARD_IDS = ["", "it's", 'a"b', "a\nb", "日本", "🦊", "a/b#c?d", "x" * 5000, "null", " "]


def test_ids_with_odd_characters_and_values_of_every_type(store: Callable[[], str]) -> None:
    import datetime
    import decimal

    count = len(HARD_IDS)
    rows = make_rows(
        HARD_IDS,
        **{
            'odd name, 日本 "x"': pa.array([f"v{i}" for i in range(count)]),
            "whole": pa.array([2**62, -(2**63), 0, None, 1, 2, 3, 4, 5, 6], pa.int64()),
            "huge": pa.array([2**64 - 1] + [1] * (count - 1), pa.uint64()),
            "part": pa.array([0.1, float("nan"), float("inf"), None, 0.0, 1e300, 1.0, 2.5, 3.0, 4.0]),
            "single": pa.array([0.1] * count, pa.float32()),
            "yes": pa.array([True, False, None] + [True] * (count - 3)),
            "day": pa.array([datetime.date(2024, 2, 29)] * count),
            "at": pa.array([datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC)] * count),
            "price": pa.array([decimal.Decimal("1.10")] * count),
            "tags": pa.array([["a", None, "b"], [], None] + [["x"]] * (count - 3)),
            "nested": pa.array([{"a": 1, "b": [1.5]}] * count),
            "kind": pa.array(["x", "y"] * (count // 2)).dictionary_encode(),
            "picture": pa.array([b"\xff\x00"] * count),
        },
    )
    address = store()
    deliver(address, rows)
    assert not compare(address, rows).any
    with opened(address, shipment_for(rows)) as there:
        assert any("picture (binary)" in line for line in there.finish([]))
        table = pa.Table.from_batches(list(there.scan()))
        expected = {row["id"]: row for row in rows.drop_columns(["embedding", "picture"]).to_pylist()}
        for row in table.drop_columns(["embedding", "picture", DIGEST, "shardmill_point"]).to_pylist():
            assert repr(row) == repr(expected.pop(row["id"]))
        assert not expected
        there.delete(rows.select(["id"]).slice(0, 4))
    assert len(points_at(address, rows)) == count - 4


def test_numbers_as_ids(store: Callable[[], str]) -> None:
    rows = make_rows([7, -1, 2**62])
    address = store()
    deliver(address, rows)
    assert {p.payload["id"] for p in points_at(address, rows).values()} == {7, -1, 2**62}
    assert not compare(address, rows).any
    found = compare(address, make_rows(["7", "-1", str(2**62)]))
    assert len(found.missing) == 3


def test_no_rows(store: Callable[[], str]) -> None:
    rows = make_rows(["a"])
    address = store()
    assert deliver(address, rows.slice(0, 0))["rows"] == 0
    found = compare(address, rows)
    assert len(found.missing) == 1
    assert points_at(address, rows) == {}


def test_verify_finds_what_was_deleted_changed_and_doubled(store: Callable[[], str]) -> None:
    rows = make_rows([f"k{i}" for i in range(50)], stars=list(range(50)))
    address = store()
    deliver(address, rows)
    with opened(address, shipment_for(rows)) as there:
        points = {point.payload["id"]: point for point, _, _ in there.points(rows)}
        there.remove([points["k1"].id])
        there.upsert([Point(points["k2"].id, points["k2"].vector, points["k2"].payload | {"stars": 99})])
        vector = points["k3"].vector.copy()
        vector[0] += 0.05
        there.upsert([Point(points["k3"].id, vector, points["k3"].payload)])
        there.upsert([Point(str(uuid.uuid4()), points["k4"].vector, points["k4"].payload)])
        stranger = make_rows(["other"], seed=9, stars=[1])
        there.upsert([point for point, _, _ in there.points(stranger)])
        found = compare_points(there, [rows])
    assert (len(found.missing), len(found.changed), len(found.doubled), found.others) == (1, 2, 1, 1)
    deliver(address, rows)
    found = compare(address, rows)
    assert (len(found.missing), len(found.changed), len(found.doubled), found.others) == (0, 0, 1, 1)


def test_rows_that_share_an_id_are_told(store: Callable[[], str]) -> None:
    rows = make_rows(["a", "b", "a"])
    address = store()
    deliver(address, rows)
    assert len(points_at(address, rows)) == 2
    found = compare(address, rows)
    assert (len(found.missing), len(found.changed)) == (1, 0)


def test_the_nearest_neighbour_of_a_stored_vector_is_itself(store: Callable[[], str]) -> None:
    rows = make_rows([f"k{i}" for i in range(100)])
    address = store()
    deliver(address, rows)
    vector = rows.column("embedding")[17].as_py()
    with opened(address, shipment_for(rows)) as there:
        client, name = there.client, there.collection
        there.describe()
        if address.startswith("qdrant"):
            nearest = client.query_points(name, query=vector, limit=1).points[0].payload["id"]
        elif address.startswith("milvus"):
            nearest = client.search(name, [vector], limit=1, output_fields=["id"])[0][0]["entity"]["id"]
        elif address.startswith("chroma"):
            rows_there = client.get_collection(name, embedding_function=None)
            nearest = rows_there.query(query_embeddings=[vector], n_results=1)["metadatas"][0][0]["id"]
        else:
            blob = np.asarray(vector, "<f4").tobytes()
            member = client.execute_command("VSIM", name, "FP32", blob, "COUNT", 1, "FILTER", '.id == "k17"')[0]
            assert member == client.execute_command("VSIM", name, "FP32", blob, "COUNT", 1)[0]
            nearest = "k17" if member else ""
    assert nearest == "k17"


def test_a_payload_over_the_limit_is_one_line(store: Callable[[], str]) -> None:
    rows = make_rows(["a", "long"], text=["x", "y" * (40 << 20)])
    with pytest.raises(UsageError, match="row long") as refused:
        deliver(store(), rows)
    assert "\n" not in refused.value.message


def test_names_that_it_cannot_take_and_a_collection_that_is_gone(store: Callable[[], str]) -> None:
    rows = make_rows(["a"])
    address = store()
    if not address.startswith("redis"):
        with pytest.raises(UsageError) as refused:
            deliver(f"{address} :", rows)
        assert "\n" not in refused.value.message
        with pytest.raises(DatabaseError) as gone:
            compare(address, rows)
        assert address in gone.value.message
    else:
        assert len(compare(address, rows).missing) == 1


def test_redis_asks_for_a_password(tmp_path: Path) -> None:
    needed("redis")
    port, rows = new_port(), make_rows(["a"])
    with redis_server(tmp_path, port, "--requirepass", "s3cret"):
        address = withhold(f"redis://:s3cret@127.0.0.1:{port}/0#rows")
        assert "s3cret" not in address
        deliver(address, rows)
        assert not compare(address, rows).any
        with pytest.raises(DatabaseError, match="authenticat") as refused:
            deliver(f"redis://127.0.0.1:{port}/0#rows", rows)
        assert "\n" not in refused.value.message


@pytest.mark.parametrize("name", [*SERVERS])
def test_a_server_that_is_away_at_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed(CLIENTS[name])
    monkeypatch.setattr(PointDelivery, "start_patience_s", 1.0)
    rows = make_rows(["a"])
    with pytest.raises(DatabaseError, match="cannot be reached") as refused:
        deliver(address_at(name, new_port(), "c"), rows)
    assert "\n" not in refused.value.message
    assert refused.value.resumes


@pytest.mark.parametrize("name", [*SERVERS])
def test_a_server_that_goes_away_in_the_middle(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(CLIENTS[name])
    folder, port = tmp_path_factory.mktemp(name), new_port()
    address, rows = address_at(name, port, "rows"), make_rows([f"k{i}" for i in range(300)])
    monkeypatch.setattr("shardmill.sinks.points.base._BATCH_BYTES", 1000)
    with contextlib.ExitStack() as servers, opened(address, shipment_for(rows)) as there:
        server = servers.enter_context(SERVERS[name](folder, port))
        there.prepare()

        def lose() -> Iterator[pa.RecordBatch]:
            yield rows.slice(0, 100)
            server.kill()
            server.wait()
            restart()
            yield rows.slice(100)

        restart: Callable[[], object] = lambda: None  # noqa: E731
        monkeypatch.setattr(PointDelivery, "patience_s", 1.0)
        with pytest.raises(StoreError, match="does not answer") as lost:
            there.stage(lot_of(rows, read=lose))
        assert lost.value.retryable
        assert "\n" not in lost.value.message

        monkeypatch.setattr(PointDelivery, "patience_s", 120.0)
        server = servers.enter_context(SERVERS[name](folder, port))
        later = threading.Timer(1.0, lambda: servers.enter_context(SERVERS[name](folder, port)))
        restart = later.start
        assert there.stage(lot_of(rows, read=lose))["rows"] == 300
        later.join()
        assert not compare_points(there, [rows]).any


def test_two_runs_of_the_command_line_and_verify(store: Callable[[], str], tmp_path: Any) -> None:
    import json

    from shardmill.run import start
    from tests.support.corpora import fake_rows, fake_spec

    source = tmp_path / "items.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [*fake_rows(60), {"id": "bad", "text": "!nan"}]))
    address = store()
    for name in ("one", "two"):
        run = start(fake_spec(source, into=[address], workers=1), tmp_path / name, quiet=True)
        report = run.verify()
        assert report.verified, report
        assert f"60 of 60 rows are in {address} as in the run; 1 rows have no vector" in str(report.checks)
    assert len(points_at(address, make_rows(["a"]))) == 60
