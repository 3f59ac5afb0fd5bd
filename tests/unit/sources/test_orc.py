"""ORC files, written by Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from shardmill import make_spec, start
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source
from shardmill.store import open_store

ROWS = 200_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("orc") / "large.orc"
    table = pa.table(
        {"text": [f"text {i}" for i in range(ROWS)], "id": range(ROWS), "empty": pa.nulls(ROWS, pa.string())}
    )
    orc.write_table(table, path, stripe_size=1 << 16, compression="uncompressed")
    assert orc.ORCFile(path).nstripes > 2
    return path


def read(place: object, fields: Fields, target_bytes: int) -> tuple[int, list[dict[str, Any]]]:
    source = open_source(discover([str(place)], fields), fields)
    shards, found = source.shards(target_bytes), []
    for shard in shards:
        for batch in source.read(shard):
            pairs = zip(batch.kept.to_pylist(), batch.texts.to_pylist(), strict=True)
            found += [{**kept, "text": text} for kept, text in pairs]
    return len(shards), found


@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_rows_are_the_same_however_it_is_cut(large: Path, target_bytes: int) -> None:
    shards, found = read(large, Fields("text", id=("id",), keep=("line",)), target_bytes)
    assert (shards > 2) == (target_bytes == 1)
    assert [row["id"] for row in found] == [*range(ROWS)]
    assert [row["line"] for row in found] == [*range(1, ROWS + 1)]
    assert found[-1]["text"] == f"text {ROWS - 1}"


def test_in_a_store(large: Path) -> None:
    open_store("memory://orc").put("a.orc", large.read_bytes())
    _, found = read("memory://orc/a.orc", Fields("text", id=("id",)), 1)
    assert [row["id"] for row in found] == [*range(ROWS)]


def test_a_part_is_taken_and_verified(large: Path, tmp_path: Path) -> None:
    work = {"source": str(large), "text": "text", "id": "id", "where": "id < 500", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {"shard_bytes": 1}), tmp_path / "run")
    assert run.table(["id"]).num_rows == 500
    assert run.verify(sample=8).verified


def test_what_cannot_be_read(large: Path, tmp_path: Path) -> None:
    broken = tmp_path / "a.orc"
    broken.write_bytes(large.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"a\.orc is not readable ORC"):
        discover([str(broken)], Fields("text"))
    with pytest.raises(SourceError, match="no field 'body'"):
        discover([str(large)], Fields("body"))
    with pytest.raises(SourceError, match="has type int64, not text"):
        discover([str(large)], Fields("id"))
