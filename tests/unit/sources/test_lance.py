"""Lance datasets, compared with what their own library reads."""

from __future__ import annotations

import datetime
import multiprocessing
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill import make_spec, start
from shardmill.core.errors import MissingExtra, SourceError, StaleResume
from shardmill.run import resume
from shardmill.sources import Fields, count_lines, discover, list_columns, open_source
from shardmill.sources.lance import open_fragments
from shardmill.store.clients import find_endpoint
from shardmill.testing import check_source
from tests.support.checked import ROWS
from tests.support.libraries import needed

lance = needed("lance")


def table(start: int, stop: int) -> pa.Table:
    texts = [None if i % 97 == 96 else f"réview {i} {'x' * (i * 37 % 200)}" for i in range(start, stop)]
    vectors = pa.array([[i, i + 1] for i in range(start, stop)], pa.list_(pa.float32(), 2))
    return pa.table({"id": range(start, stop), "text": texts, "vector": vectors})


def write(place: Path | str, rows: int, **options: Any) -> Any:
    return lance.write_dataset(table(0, rows), str(place), **{"max_rows_per_file": 300, **options})


def read(place: object, fields: Fields, target_bytes: int = 1 << 30) -> list[dict[str, Any]]:
    source = open_source(discover([str(place)], fields), fields)
    found: list[dict[str, Any]] = []
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            pairs = zip(batch.kept.to_pylist(), batch.texts.to_pylist(), strict=True)
            found += [{**kept, "text": text} for kept, text in pairs]
    return found


def theirs(place: object, *names: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lance.dataset(str(place)).to_table([*names]).to_pylist()
    return found


@pytest.mark.parametrize("target_bytes", [1, 3000, 1 << 30])
def test_rows_are_those_of_its_own_library(tmp_path: Path, target_bytes: int) -> None:
    place = tmp_path / "a.lance"
    write(place, 1000)
    lance.dataset(str(place)).delete("id % 7 = 0 OR (id >= 300 AND id < 600)")
    lance.write_dataset(table(1000, 1100), str(place), mode="append")
    lance.dataset(str(place)).update({"text": "'another'"}, where="id % 50 = 1")
    lance.dataset(str(place)).add_columns({"twice": "id * 2"})
    fields = Fields("text", id=("id",), keep=("twice",))
    found = read(place, fields, target_bytes)
    assert found == theirs(place, "id", "twice", "text")
    assert len(found) == 700
    stat = discover([str(place)], fields)
    assert count_lines(stat, stat.files[0]) == len(found)
    assert (len(open_source(stat, fields).shards(target_bytes)) > 4) == (target_bytes < 1 << 30)


def test_the_contract(tmp_path: Path) -> None:
    lance.write_dataset(pa.Table.from_pylist(ROWS), str(tmp_path / "a.lance"), max_rows_per_file=17)
    for place in (f"{tmp_path}/a.lance", f"{tmp_path}/a.lance/", f"lance:{tmp_path}/a.lance"):
        assert check_source([place], rows=ROWS, text="body", id="id") >= 20
    assert {*list_columns([str(tmp_path / "a.lance")])} == {"id", "body"}


@pytest.mark.services
def test_the_contract_in_s3(s3_server: str) -> None:
    place = f"{s3_server}/{uuid.uuid4().hex}.lance"
    options = {"aws_endpoint": find_endpoint(place), "allow_http": "true"}
    lance.write_dataset(pa.Table.from_pylist(ROWS), place, max_rows_per_file=17, storage_options=options)
    assert check_source([place], rows=ROWS, text="body", id="id") >= 20
    with pytest.raises(SourceError, match="there is no Lance dataset"):
        read(f"{s3_server}/none.lance", Fields("body"))


@pytest.mark.parametrize("scheme", ["gs", "az", "memory", "https"])
def test_other_stores_are_refused_by_name(scheme: str) -> None:
    with pytest.raises(SourceError, match=f"read from a disk or s3://, not from {scheme}://"):
        read(f"{scheme}://bucket/a.lance", Fields("text"))


def test_kinds_of_columns(tmp_path: Path) -> None:
    given = pa.table(
        {
            "ünï code": ["a", "b"],
            "tags": [["x", "y"], None],
            "about": [{"a": 1, "b": None}, None],
            "day": pa.array([datetime.date(2026, 1, 1), None]),
            "large": pa.array(["large", ""], pa.large_string()),
            "word": pa.array(["one", "two"]).dictionary_encode(),
        }
    )
    lance.write_dataset(given, str(tmp_path / "a.lance"))
    fields = Fields("{ünï code} {tags:json}", keep=("about", "day", "large", "word"))
    first, second = read(tmp_path / "a.lance", fields)
    assert first == {
        "text": 'a ["x", "y"]',
        "about": {"a": 1, "b": None},
        "day": datetime.date(2026, 1, 1),
        "large": "large",
        "word": "one",
    }
    assert second == {"text": "b ", "about": None, "day": None, "large": "", "word": "two"}
    for name, why in (("tags", "has type list"), ("body", "no field 'body'")):
        with pytest.raises(SourceError, match=why):
            read(tmp_path / "a.lance", Fields(name))


def test_several_datasets_follow_one_another(tmp_path: Path) -> None:
    places = [tmp_path / "a.lance", tmp_path / "b.lance"]
    for place in places:
        write(place, 500)
    fields = Fields("text", id=("id",))
    source = open_source(discover([*map(str, places)], fields), fields)
    ids = [i for s in source.shards(9000) for batch in source.read(s) for i in batch.kept.column(0).to_pylist()]
    assert ids == [*range(500), *range(500)]


def test_a_run_stays_with_its_version(tmp_path: Path) -> None:
    place = tmp_path / "a.lance"
    write(place, 400)
    work = {"source": str(place), "text": "{id}", "id": "id", "task": "shardmill.testing:FakeTask"}
    spec = make_spec(work, {"shard_bytes": 3000})
    run = start(spec, tmp_path / "run")
    lance.dataset(str(place)).delete("id < 200")
    lance.write_dataset(table(400, 500), str(place), mode="append")
    assert len(run.plan.shards) > 3
    assert run.verify(sample=8).verified
    assert run.table(["id"]).column("id").to_pylist() == [*range(400)]
    with pytest.raises(StaleResume, match="holds a different run"):
        start(spec, tmp_path / "run")
    assert len(resume(tmp_path / "run").table(["id"])) == 400


def test_versions_that_are_gone_or_another(tmp_path: Path) -> None:
    place, fields = tmp_path / "a.lance", Fields("text")
    write(place, 400)
    source = open_source(stat := discover([str(place)], fields), fields)
    (shard,) = source.shards(1 << 30)
    lance.write_dataset(table(0, 10), str(place), mode="overwrite")
    assert sum(map(len, source.read(shard))) == 400
    lance.dataset(str(place)).cleanup_old_versions(datetime.timedelta(0), delete_unverified=True)
    with pytest.raises(SourceError, match=r"a\.lance is no longer there at version 1"):
        [*source.read(shard)]
    open_fragments.cache_clear()
    with pytest.raises(SourceError, match=r"a\.lance is no longer there at version 1") as caught:
        [*open_source(stat, fields).read(shard)]
    assert "--fresh" in caught.value.hint
    shutil.rmtree(place)
    write(place, 400)
    open_fragments.cache_clear()
    with pytest.raises(StaleResume, match=r"a\.lance changed during the run: version 1 is another one"):
        [*open_source(stat, fields).read(shard)]


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, fields = tmp_path / "a.lance", Fields("text")
    for what, why in ((tmp_path / "none.lance", "does not exist"), (tmp_path, r"has no _versions folder")):
        with pytest.raises(SourceError, match=rf"is no Lance dataset: it {why}"):
            read(f"lance:{what}", fields)
    write(place, 0)
    with pytest.raises(SourceError, match="no rows in"):
        read(place, fields)
    write(place, 400, mode="overwrite")
    with pytest.raises(SourceError, match="is or has a Lance dataset") as caught:
        read(tmp_path, fields)
    assert caught.value.hint == f"Name it as such: lance:{place}"
    with pytest.raises(SourceError, match="is no Lance dataset: it is a file"):
        read(next((place / "data").iterdir()), fields)
    with pytest.raises(SourceError, match="has no meaning for 'lance'"):
        discover([str(place)], fields, "parquet")
    for data in sorted((place / "data").iterdir()):
        data.write_bytes(data.read_bytes()[:-200])
    with pytest.raises(SourceError, match=r"a\.lance cannot be read at version 2"):
        read(place, fields)
    for manifest in (place / "_versions").iterdir():
        manifest.write_bytes(b"no manifest")
    with pytest.raises(SourceError, match=r"a\.lance cannot be read"):
        read(place, fields)
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtra, match="pylance is not installed"):
        read(place, fields)


def _count(place: str) -> int:
    return len(read(place, Fields("text"), 1000))


def test_in_a_process_that_was_spawned(tmp_path: Path) -> None:
    write(tmp_path / "a.lance", 400)
    assert _count(str(tmp_path / "a.lance")) == 400
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_count, (str(tmp_path / "a.lance"),)) == 400
