"""A vector database that has an earlier edition of a run is brought up to the newest: what is gone is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Editions
from shardmill.results import delivery
from shardmill.results.delivered import check_delivery, read_all
from shardmill.run import Run
from shardmill.sinks.points.base import Point, PointDelivery
from tests.contract.sinks.test_deliveries import Dying, Killed
from tests.contract.test_refresh import again, begin, make_rows, spec_of, write
from tests.contract.test_refresh_delivered import edit
from tests.services.sinks.test_points import store

__all__ = ["store"]


def is_there(run: Run, address: str) -> None:
    check = check_delivery(run.ledger, run.plan, address, run.ledger.commits.read())
    assert check.ok, check.seen
    assert "not of this run" not in check.seen, check.seen


@pytest.mark.parametrize("shape", [{}, {"params": {"window": 8}}])
def test_a_refresh_brings_the_points_up(
    store: Any, shape: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_LOT_BYTES", 1)
    address, source = store(), write(tmp_path / "items.jsonl", make_rows(40))
    run = begin(spec_of(source, **shape), tmp_path / "run")
    run.deliver(address)
    sent: list[Point] = []
    send = PointDelivery._send
    monkeypatch.setattr(PointDelivery, "_send", lambda self, points: (sent.extend(points), send(self, points))[1])
    edit(source)
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    is_there(run, address)
    assert len({point.id for point in sent}) < 10 if not shape else len(sent) < 40, "only what differs was sent"
    assert Editions(tmp_path / "run").switch(2, 1)
    Run(tmp_path / "run").deliver(address)
    is_there(Run(tmp_path / "run"), address)


def test_killed_at_any_call(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_LOT_BYTES", 1)
    source = write(tmp_path / "items.jsonl", make_rows(40))
    run = begin(spec_of(source), tmp_path / "run")
    places = [store() for _ in range(3)]
    for place in places:
        delivery.deliver_run(run.ledger, run.plan, place)
    edit(source)
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    for last, place in zip((1, 2, 6), places, strict=True):
        calls = Dying(last)
        with monkeypatch.context() as patch:
            for name in ("stage", "remove_unchanged"):
                patch.setattr(PointDelivery, name, calls.wrap(getattr(PointDelivery, name)))
            with pytest.raises(Killed):
                delivery.deliver_run(run.ledger, run.plan, place, lease_s=0.2)
        delivery.deliver_run(run.ledger, run.plan, place, lease_s=0.2)
        is_there(run, place)


def test_points_of_others_and_changed_ones_stay(store: Any, tmp_path: Path) -> None:
    address, source = store(), write(tmp_path / "items.jsonl", make_rows(40))
    run = begin(spec_of(source), tmp_path / "run")
    delivery.deliver_run(run.ledger, run.plan, address)
    opened = delivery.open_delivery(address, delivery.shipment_of(run.ledger, run.plan))
    assert isinstance(opened, PointDelivery)
    rows = read_all(run.ledger, run.ledger.commits.read().values())
    points = {point.payload["id"]: point for batch in rows for point, _, _ in opened.points(batch)}
    ids = [row["id"] for row in make_rows(40)]
    mine = Point(opened.point_id(["mine"], 0), points[ids[0]].vector, {"id": "mine", "n": 1})
    changed = Point(points[ids[10]].id, points[ids[10]].vector, {**points[ids[10]].payload, "n": 99})
    opened.upsert([mine, changed])
    opened.close()
    edit(source)
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    done = delivery.deliver_run(run.ledger, run.plan, address)["done"]
    assert "changed there since, and left alone: 1" in done[0]
    check = check_delivery(run.ledger, run.plan, address, run.ledger.commits.read())
    assert check.ok
    assert "2 rows there are not of this run" in check.seen


def test_a_collection_that_was_dropped_gets_every_row(store: Any, tmp_path: Path) -> None:
    address, source = store(), write(tmp_path / "items.jsonl", make_rows(40))
    run = begin(spec_of(source), tmp_path / "run")
    delivery.deliver_run(run.ledger, run.plan, address)
    edit(source)
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    opened = delivery.open_delivery(address, delivery.shipment_of(run.ledger, run.plan))
    assert isinstance(opened, PointDelivery)
    drop = {"qdrant": "delete_collection", "milvus": "drop_collection", "chroma": "delete_collection"}
    getattr(opened.client, drop.get(address.partition(":")[0], "delete"))(opened.collection)
    opened.close()
    delivery.deliver_run(run.ledger, run.plan, address)
    is_there(run, address)
