"""MDS datasets, one written by Mosaic's library, others by the description of the format."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardmill import make_spec, start
from shardmill.core.errors import SourceError, StaleResume
from shardmill.sources import Fields, count_lines, discover, list_columns, open_source
from shardmill.sources.formats import find_reader
from shardmill.store import open_store
from tests.support.mds import encode_shard, write_mds

THEIRS = Path(__file__).parents[2] / "data" / "mds"
COLUMNS = {"text": "str", "n": "int"}


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"text": f"réview {i}", "n": i} for i in range(start, stop)]


def read(place: object, fields: Fields, target_bytes: int = 1 << 30) -> tuple[list[dict[str, Any]], dict[int, str]]:
    source = open_source(discover([str(place)], fields), fields)
    found: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            bad |= {len(found) + row: why for row, why in batch.bad.items()}
            pairs = zip(batch.kept.to_pylist(), batch.texts.to_pylist(), strict=True)
            found += [{**kept, "text": text} for kept, text in pairs]
    return found, bad


@pytest.mark.parametrize("target_bytes", [1, 500, 1 << 30])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_are_those_of_its_own_library(split: str, target_bytes: int) -> None:
    theirs = json.loads((THEIRS / "rows.json").read_text())[split]
    kept = ("n", "small", "big", "half", "share", "about", "digits", "ratio", "price")
    found, bad = read(THEIRS, Fields("text", keep=kept, split=split), target_bytes)
    assert len(found) == len(theirs)
    for number, (ours, row) in enumerate(zip(found, theirs, strict=True)):
        if row["digits"] >= 2**63 or not row["text"]:
            assert bad.pop(number).startswith("'digits' is" if row["text"] else "the text is blank")
            continue
        assert {**ours, "about": json.loads(ours["about"])} == row
    assert not bad


def test_columns_and_what_is_left_out() -> None:
    found = {name: str(kind) for name, kind in list_columns([str(THEIRS / "train")]).items()}
    assert found == {
        "about": "string",
        "big": "uint64",
        "digits": "int64",
        "half": "float",
        "n": "int64",
        "price": "string",
        "ratio": "double",
        "raw": "binary",
        "share": "double",
        "small": "int8",
        "text": "string",
    }
    fields = Fields("text")
    source = open_source(discover([str(THEIRS / "train")], fields), fields)
    source.shards(1 << 30)
    assert source.notes == ["Columns that are no text or numbers are left out: array, picture, secret."]
    with pytest.raises(SourceError, match=r"'secret' in shard\.00000\.mds\.zstd is pkl, .* unpickling can run code"):
        read(THEIRS / "train", Fields("text", keep=("secret",)))
    with pytest.raises(SourceError, match=r"'array' in .* is ndarray:int32:3, which is not read"):
        read(THEIRS / "train", Fields("array"))
    with pytest.raises(SourceError, match=r"'big' in .* has type uint64, not text"):
        read(THEIRS / "train", Fields("big"))
    with pytest.raises(SourceError, match="no field 'body'"):
        read(THEIRS / "train", Fields("body"))


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    columns = {"text": "str", "evil": "pkl"}
    write_mds(tmp_path / "data", columns, [[{"text": "a", "evil": pickle.dumps(Evil())}]])
    assert read(tmp_path / "data", Fields("text"))[0] == [{"text": "a"}]
    stat = discover([str(tmp_path / "data")], Fields("text"))
    assert [row for row, _ in find_reader("mds").iter_rows(stat, stat.files[0])] == [{"text": "a"}]
    assert not (tmp_path / "ran").exists()


def test_splits_are_not_mixed() -> None:
    with pytest.raises(SourceError, match="several splits: train, validation"):
        read(THEIRS, Fields("text"))
    assert len(read(THEIRS, Fields("text", split="all"))[0]) == 40
    assert len(read(THEIRS / "val", Fields("text"))[0]) == 10


def test_shards_come_in_the_order_of_the_index(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "data", COLUMNS, [rows(0, 3), rows(3, 5), rows(5, 9)])
    index = json.loads((folder / "index.json").read_text())
    index["shards"].reverse()
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "shard.00009.mds").write_bytes(b"left by a writer that was killed")
    found, _ = read(folder, Fields("text", keep=("n", "line", "file")))
    assert [row["n"] for row in found] == [5, 6, 7, 8, 3, 4, 0, 1, 2]
    assert [row["line"] for row in found] == [1, 2, 3, 4, 1, 2, 1, 2, 3]
    assert found[0]["file"] == "shard.00002.mds"


def test_indexes_of_subfolders_that_were_merged(tmp_path: Path) -> None:
    for number in range(2):
        write_mds(tmp_path / str(number), COLUMNS, [rows(number * 4, number * 4 + 4)])
    assert [row["n"] for row in read(tmp_path, Fields("text", keep=("n",)))[0]] == [*range(8)]
    shards = []
    for number in range(2):
        (shard,) = json.loads((tmp_path / str(number) / "index.json").read_text())["shards"]
        shard["raw_data"]["basename"] = f"{number}/shard.00000.mds"
        shards.append(shard)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    assert [row["n"] for row in read(tmp_path, Fields("text", keep=("n",)))[0]] == [*range(8)]


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_compressed_shards(tmp_path: Path, suffix: str, pack: Any) -> None:
    folder = write_mds(tmp_path / "data", COLUMNS, [rows(0, 500), rows(500, 600)])
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        raw = folder / shard["raw_data"]["basename"]
        packed = pack(raw.read_bytes())
        raw.with_suffix(f".mds.{suffix}").write_bytes(packed)
        raw.unlink()
        shard["zip_data"] = {"basename": f"{raw.name}.{suffix}", "bytes": len(packed), "hashes": {}}
        shard["compression"] = f"{suffix}:9"
    (folder / "index.json").write_text(json.dumps(index))
    found, _ = read(folder, Fields("text", id=("n",)), 100)
    assert [row["n"] for row in found] == [*range(600)]
    whole = folder / f"shard.00000.mds.{suffix}"
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(SourceError, match=r"has [0-9,]+ bytes, not"):
        read(folder, Fields("text"))
    with pytest.raises(SourceError, match=r"shard\.00000\.mds"):
        read(whole, Fields("text"))
    index["shards"][0]["compression"] = "br:11"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match="compressed with br, which is not read"):
        read(folder, Fields("text"))


def test_values_of_every_size(tmp_path: Path) -> None:
    given = [{"text": text, "n": 0} for text in ("a", "x" * (9 << 20), "", "\N{SNOWMAN}", "y" * (33 << 20), "z")]
    given.append({"text": b"\xff\xfe", "n": 0})
    folder = write_mds(tmp_path / "data", COLUMNS, [given])
    for target_bytes in (1, 1 << 30):
        found, bad = read(folder, Fields("text"), target_bytes)
        assert [len(row["text"] or "") for row in found] == [1, 9 << 20, 0, 1, 0, 1, 0]
        assert [bad[2], bad[4], bad[6]] == [
            "the text is blank",
            "the text is 33.0 MB, over the limit of 32.0 MB",
            "'text' is not valid UTF-8",
        ]


def test_another_schema_in_the_second_shard(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "data", COLUMNS, [rows(0, 3), rows(3, 6)])
    data, _ = encode_shard({"body": "str"}, [{"body": "b"}])
    (folder / "shard.00001.mds").write_bytes(data)
    with pytest.raises(SourceError, match=r"shard\.00001\.mds has [0-9]+ bytes, not"):
        read(folder, Fields("text"))
    fields = Fields("text")
    source = open_source(discover([f"{folder}/*.mds"], fields), fields)
    with pytest.raises(SourceError, match=r"no field 'text' in shard\.00001\.mds"):
        source.shards(1 << 30)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "data", COLUMNS, [rows(0, 50)])
    path, whole = folder / "shard.00000.mds", (folder / "shard.00000.mds").read_bytes()
    damaged = {
        "it would have 4,294,967,295 samples": b"\xff" * 4 + whole[4:],
        "its samples end at byte": whole[:-1],
        "the places of its samples are damaged": whole[:20] + b"\0\0\0\1" + whole[24:],
        "its columns are not described": whole.replace(b"column_names", b"column_names"[::-1]),
        "it has version 3, not 2": whole.replace(b'"version": 2', b'"version": 3'),
        "'n' is int of 4 bytes": whole.replace(b'"column_sizes": [8', b'"column_sizes": [4'),
        "it ends too early": b"\1\0",
    }
    for why, data in damaged.items():
        path.write_bytes(data)
        with pytest.raises(SourceError, match=rf"shard\.00000\.mds is not a readable mds shard: {why}"):
            read(path, Fields("text"))
    path.write_bytes(whole[: -len("réview 49".encode()) - 12] + b"\xff" * 4 + whole[-len("réview 49".encode()) - 8 :])
    with pytest.raises(SourceError, match="sample 50 is damaged"):
        read(path, Fields("text"))
    for data in (b"[]", b"{", b'{"shards": [{"format": "mds", "version": 2}]}'):
        (folder / "index.json").write_bytes(data)
        with pytest.raises(SourceError, match=r"index\.json is not an index of mds shards"):
            read(folder, Fields("text"))
    (folder / "index.json").write_text('{"shards": [{"format": "csv", "version": 2}]}')
    with pytest.raises(SourceError, match="names shards of csv, version 2"):
        read(folder, Fields("text"))
    (folder / "index.json").unlink()
    with pytest.raises(SourceError, match=r"has no index\.json"):
        read(folder, Fields("text"))
    path.write_bytes(encode_shard(COLUMNS, [])[0])
    with pytest.raises(SourceError, match="no rows in"):
        read(path, Fields("text"))
    write_mds(folder, COLUMNS, [rows(0, 2), rows(2, 4)])
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(SourceError, match=r"names shard\.00001\.mds, which is not there"):
        read(folder, Fields("text"))


def test_a_shard_that_changes_is_refused(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "data", COLUMNS, [rows(0, 50)])
    fields = Fields("text")
    source = open_source(discover([str(folder)], fields), fields)
    shards = source.shards(1 << 30)
    write_mds(folder, COLUMNS, [rows(0, 51)])
    with pytest.raises(StaleResume, match=r"shard\.00000\.mds changed"):
        [*source.read(shards[0])]


def test_in_a_store() -> None:
    store = open_store("memory://mds")
    for path in (THEIRS / "val").iterdir():
        store.put(f"val/{path.name}", path.read_bytes())
    found, _ = read("memory://mds/val", Fields("text", id=("n",)), 300)
    assert [row["n"] for row in found] == [*range(27, 37)]
    stat = discover(["memory://mds/val"], Fields("text"))
    assert sum(count_lines(stat, file) or 0 for file in stat.files) == 10


def test_a_part_of_a_run_is_verified(tmp_path: Path) -> None:
    shutil.copytree(THEIRS, tmp_path / "data")
    work = {
        "source": str(tmp_path / "data"),
        "split": "train",
        "text": "text",
        "id": "n",
        "where": "small < -30 AND n <> 2",
    }
    run = start(make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"shard_bytes": 1000}), tmp_path / "run")
    assert len(run.plan.shards) > 2
    assert run.table(["n"]).num_rows == 19
    assert run.verify(sample=8).verified
