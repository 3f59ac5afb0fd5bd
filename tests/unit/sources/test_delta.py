"""Delta Lake tables, written by delta-rs: the rows of the latest version, whatever files lie beside it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill import make_spec, start
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source
from tests.support.libraries import needed

deltalake = needed("deltalake")
DeltaTable, write_deltalake = deltalake.DeltaTable, deltalake.write_deltalake


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": [*numbers],
            "text": [f"review {i}" for i in numbers],
            "lang": [("en", "de", None, "a b/c")[i % 4] for i in numbers],
        }
    )


def read(place: str | Path, keep: tuple[str, ...] = ("lang",)) -> Counter[tuple[Any, ...]]:
    fields = Fields("text", id=("id",), keep=keep)
    source = open_source(discover([str(place)], fields), fields)
    found: Counter[tuple[Any, ...]] = Counter()
    for shard in source.shards(1 << 20):
        for batch in source.read(shard):
            assert not batch.bad
            kept = batch.kept.to_pylist()
            found.update((text, *row.values()) for text, row in zip(batch.texts.to_pylist(), kept, strict=True))
    return found


def written(place: Path) -> Counter[tuple[Any, ...]]:
    table = DeltaTable(place).to_pyarrow_table()
    return Counter((row["text"], row["id"], row["lang"]) for row in table.to_pylist())


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_rows_are_those_that_delta_rs_reads(tmp_path: Path, partitioned: bool) -> None:
    place = tmp_path / "table"
    by = {"partition_by": ["lang"]} if partitioned else {}
    write_deltalake(place, rows(0, 50), **by)
    write_deltalake(place, rows(50, 30), mode="append", **by)
    assert read(place) == written(place)
    DeltaTable(place).delete("id % 3 = 0")
    assert read(place) == written(place)
    assert sum(read(place).values()) == 53
    DeltaTable(place).optimize.compact()
    DeltaTable(place).create_checkpoint()
    assert read(place) == written(place)
    write_deltalake(place, rows(200, 5), mode="append", **by)
    assert read(place) == written(place)
    write_deltalake(place, rows(300, 7), mode="overwrite", **by)
    assert read(place) == written(place)
    assert sum(read(place).values()) == 7


def test_the_log_before_a_checkpoint_may_be_gone(tmp_path: Path) -> None:
    place = tmp_path / "table"
    write_deltalake(place, rows(0, 9))
    DeltaTable(place).delete("id = 3")
    DeltaTable(place).create_checkpoint()
    (place / "_delta_log" / f"{0:020d}.json").unlink()
    assert read(place) == written(place)
    (place / "_delta_log" / f"{1:020d}.checkpoint.parquet").unlink()
    with pytest.raises(SourceError, match="lacks versions from 0 on"):
        read(place)


def test_a_run_stays_with_its_version(tmp_path: Path) -> None:
    place = tmp_path / "table"
    write_deltalake(place, rows(0, 20))
    work = {"source": str(place), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    first = start(make_spec(work, {}), tmp_path / "run")
    assert start(make_spec(work, {}), tmp_path / "run").plan.id == first.plan.id
    write_deltalake(place, rows(20, 5), mode="append")
    assert first.verify(sample=4).verified
    assert start(make_spec(work, {}), tmp_path / "later").table(["id"]).num_rows == 25


def append_to_log(place: Path, version: int, *actions: dict[str, Any]) -> None:
    (place / "_delta_log" / f"{version:020d}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))


def test_deletion_vectors_are_refused_in_any_order_of_actions(tmp_path: Path) -> None:
    place = tmp_path / "table"
    write_deltalake(place, rows(0, 9))
    (file,) = (each.name for each in place.glob("*.parquet"))
    vector = {
        "storageType": "i",
        "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 40,
    }
    both = [{"add": {"path": file, "deletionVector": vector}}, {"remove": {"path": file}}]
    for actions in (both, both[::-1]):
        append_to_log(place, 1, *actions)
        with pytest.raises(SourceError, match="1 files of this Delta table have deletion vectors"):
            read(place)


@pytest.mark.parametrize(
    ("action", "feature"),
    [
        ({"metaData": {"id": "1", "configuration": {"delta.columnMapping.mode": "name"}}}, "columnMapping"),
        ({"protocol": {"minReaderVersion": 3, "readerFeatures": ["variantType", "timestampNtz"]}}, "variantType"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, action: dict[str, Any], feature: str) -> None:
    write_deltalake(tmp_path, rows(0, 9))
    append_to_log(tmp_path, 1, action)
    with pytest.raises(SourceError, match=f"a Delta table with {feature}, which is not read"):
        read(tmp_path)


def test_damage(tmp_path: Path) -> None:
    place = tmp_path / "table"
    write_deltalake(place, rows(0, 9))
    append_to_log(place, 2, {"commitInfo": {}})
    with pytest.raises(SourceError, match="lacks versions from 0 on"):
        read(place)
    (place / "_delta_log" / f"{2:020d}.json").rename(place / "_delta_log" / f"{1:020d}.json")
    assert read(place) == written(place)
    for log in ("{oh", "7", "[" * 100_000, '{"add": 7}', '{"protocol": 7}'):
        (place / "_delta_log" / f"{1:020d}.json").write_text(log)
        with pytest.raises(SourceError, match="_delta_log cannot be read"):
            read(place)
    (place / "_delta_log" / f"{1:020d}.json").unlink()
    next(place.glob("*.parquet")).unlink()
    with pytest.raises(SourceError, match="1 files of this Delta table are not there"):
        read(place)


def test_a_table_in_a_folder_of_others(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "tables" / "a", rows(0, 9))
    with pytest.raises(SourceError, match="has a Delta table inside it: a") as caught:
        read(tmp_path / "tables")
    assert str(caught.value.hint).endswith("/tables/a")
