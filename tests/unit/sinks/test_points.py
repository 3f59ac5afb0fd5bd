"""What vector databases share, on one that lies in memory and whose server answers as told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shardmill.core.errors import DatabaseError, MissingExtra, SpecError, StoreError, UsageError
from shardmill.results.delivered_points import compare_points
from shardmill.results.pressure import Pressure, describe
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Shipment
from shardmill.sinks.points import base
from shardmill.sinks.points.base import Collection, Point, PointDelivery
from shardmill.sinks.points.patience import RequestPace, Trouble, judge_http
from tests.support.points import DIMS, lot_of, make_rows, shipment_for


class Answer(Exception):
    """An answer of an HTTP server."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"answer {status_code}")
        self.status_code = status_code


class Memory(PointDelivery):
    store = "Memory"
    usage = "memory:NAME"

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        self.found: Collection | None = None
        self.points_there: dict[str, Point] = {}
        self.answers: list[int] = []
        self.most_rows = 1 << 30
        self.sent: list[int] = []

    def find_collection(self) -> str:
        return self.address.partition(":")[2]

    def connect(self) -> Any:
        return None

    def judge(self, error: Exception) -> Trouble:
        return judge_http(error)

    def describe(self) -> Collection | None:
        self._answer()
        return self.found

    def create(self) -> None:
        self.found = Collection(self.dims, "cosine", self.shipment.made_by)

    def upsert(self, points: Sequence[Point]) -> None:
        self._answer()
        if len(points) > self.most_rows:
            raise Answer(413)
        self.sent.append(len(points))
        self.points_there |= {point.id: point for point in points}

    def find(self, ids: Sequence[str]) -> set[str]:
        return {id for id in ids if id in self.points_there}

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        return [self.points_there[id] for id in ids if id in self.points_there]

    def remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.points_there.pop(id, None)

    def pages(self) -> Iterator[list[Point]]:
        yield [*self.points_there.values()]

    def _answer(self) -> None:
        if self.answers:
            raise Answer(self.answers.pop())


ROWS = make_rows([f"k{i}" for i in range(1000)])


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.sinks.points.patience.time.sleep", lambda seconds: None)


@pytest.fixture
def memory() -> Memory:
    return Memory("memory:rows", shipment_for(ROWS))


def test_batches_have_about_so_many_bytes(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_pace", RequestPace(10_000))
    memory.stage(lot_of(ROWS))
    assert sum(memory.sent) == 1000
    assert 5 < len(memory.sent) < 50


def test_smaller_requests_after_one_that_was_too_large(memory: Memory) -> None:
    memory.most_rows = 300
    assert memory.stage(lot_of(ROWS))["rows"] == 1000
    assert memory.sent == [250] * 4
    assert memory._pace.bytes < base._BATCH_BYTES


def test_a_row_that_is_too_large_by_itself_is_named(memory: Memory) -> None:
    memory.most_rows = 0
    with pytest.raises(UsageError, match="row k0 is larger than the server takes"):
        memory.stage(lot_of(ROWS))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_waiting_for_a_server_that_is_busy(memory: Memory, status: int) -> None:
    memory.answers = [status] * 3
    memory.stage(lot_of(ROWS))
    assert len(memory.points_there) == 1000
    assert memory._pace.bytes < base._BATCH_BYTES


def test_a_server_that_stays_busy_ends_the_attempt_and_not_the_run(memory: Memory) -> None:
    memory.answers = [429] * 1000
    memory.patience_s = 1.0
    with pytest.raises(StoreError, match="does not answer: answer 429") as error:
        memory.stage(lot_of(ROWS))
    assert error.value.retryable


def test_a_server_that_refuses(memory: Memory) -> None:
    memory.answers = [403]
    with pytest.raises(DatabaseError, match="answer 403") as error:
        memory.stage(lot_of(ROWS))
    assert error.value.resumes
    memory.answers, memory.start_patience_s = [503] * 1000, 0.5
    with pytest.raises(DatabaseError, match="cannot be reached"):
        memory.prepare()


def test_rows_without_a_vector_are_told_at_the_end(memory: Memory) -> None:
    lot = lot_of(ROWS)
    lot.staged.update(rows=1, without_vector=2)
    assert memory.finish([lot]) == ["2 rows have no vector and are not stored"]


def test_the_time_in_the_store_is_told_with_the_times_that_it_was_busy(memory: Memory) -> None:
    memory.answers = [429, 503]
    spent = Pressure()
    with spent.working() as said:
        said.update(memory.stage(lot_of(ROWS)))
    assert spent.busy == 2
    told = describe({**spent.to_json(), "store_s": 8.0, "preparing_s": 2.0, "waited_s": 5.0})
    assert told.startswith("bounded by the sink; 0 % of 10 s reading, 20 % preparing, 80 % in the sink; ")
    assert told.endswith("; busy or away 2 times, waited 5 s")


def test_another_metric_is_refused(memory: Memory) -> None:
    memory.found = Collection(DIMS, "euclid", "")
    with pytest.raises(UsageError, match="its metric is euclid"):
        memory.prepare()


def test_an_id_and_a_vector_are_needed() -> None:
    whole = shipment_for(ROWS)
    fields = {"plan": "one", "generation": "0", "schema": whole.schema}
    with pytest.raises(UsageError, match="Nothing identifies the rows") as refused:
        Memory("memory:rows", Shipment(**fields, vector="embedding"))
    assert "--id" in refused.value.hint
    with pytest.raises(UsageError, match="no vector"):
        Memory("memory:rows", Shipment(**fields, key=("id",)))
    with pytest.raises(UsageError, match="names no collection"):
        Memory("memory:", whole)


def test_ids_depend_on_the_collection_the_id_and_the_window_alone() -> None:
    first, again = Memory("memory:a", shipment_for(ROWS)), Memory("memory:a", shipment_for(ROWS, plan="two"))
    assert first.point_id(("x",), 0) == again.point_id(("x",), 0) == "af59aee2-af76-592e-925b-abfe833c9f19"
    other = Memory("memory:b", shipment_for(ROWS))
    ids = [first.point_id(("x",), 1), first.point_id((1,), 0), first.point_id(("1",), 0), other.point_id(("x",), 0)]
    assert len({*ids, first.point_id(("x",), 0)}) == 5


def test_a_kill_while_windows_are_deleted_leaves_no_gap(memory: Memory) -> None:
    first = make_rows(["a"] * 6, windows=range(6))
    there = Memory("memory:rows", shipment_for(first))
    there.stage(lot_of(first))
    later = lot_of(first.slice(0, 2))
    removed: list[list[str]] = []
    remove = there.remove

    def killed(ids: Sequence[str]) -> None:
        removed.append(list(ids))
        if len(removed) == 3:
            raise KeyboardInterrupt
        remove(ids)

    there.remove = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        there.stage(later)
    assert sorted(p.payload["window"] for p in there.points_there.values()) == [0, 1, 2, 3]
    there.remove = remove  # type: ignore[method-assign]
    there.stage(later)
    assert sorted(p.payload["window"] for p in there.points_there.values()) == [0, 1]


def test_a_part_of_the_vector_that_is_not_a_number_is_no_vector(memory: Memory) -> None:
    import numpy as np
    import pyarrow as pa

    matrix = np.ones((3, DIMS), np.float32)
    matrix[1, 3] = np.nan
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=pa.list_(pa.float32(), DIMS))
    rows = pa.RecordBatch.from_pydict({"id": ["a", "b", "c"], "embedding": vectors})
    staged = memory.stage(lot_of(rows))
    assert (staged["rows"], staged["without_vector"], staged["busy"]) == (2, 1, 0)


def test_fields_that_others_add_are_no_change(memory: Memory) -> None:
    memory.stage(lot_of(ROWS))
    point = next(iter(memory.points_there.values()))
    point.payload["seen"] = True
    assert not compare_points(memory, [ROWS]).any
    point.payload["id"] = "k999999"
    assert len(compare_points(memory, [ROWS]).changed) == 1


@pytest.mark.parametrize(
    ("address", "library", "extra"),
    [
        ("qdrant://h/c", "qdrant_client", "qdrant"),
        ("milvus:/tmp/x.db#c", "milvus_lite", "milvus"),
        ("chroma://h/c", "chromadb", "chroma"),
        ("redis://h/0#k", "redis", "redis"),
    ],
)
def test_a_missing_library_is_one_line(address: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, library, None)
    if library == "milvus_lite":
        pytest.importorskip("pymilvus")
    with pytest.raises(MissingExtra) as missing:
        open_delivery(address, shipment_for(ROWS))
    assert f"shardmill[{extra}]" in missing.value.hint


@pytest.mark.parametrize(
    "address",
    [
        *("qdrant://h:99999/c", "qdrant:///c", "qdrant://h/c?x=1", "qdrant://h", "qdrant:/tmp/x"),
        *("milvus:/tmp/x#c", "chroma://h", "redis://h/a#k", "redis://h/0"),
    ],
)
def test_addresses_that_name_nothing(address: str) -> None:
    with pytest.raises((SpecError, UsageError)) as refused:
        open_delivery(address, shipment_for(ROWS))
    assert "Write: " in refused.value.hint
