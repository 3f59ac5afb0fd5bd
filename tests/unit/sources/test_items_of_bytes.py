"""Items that are bytes: where they come from, which file is never read, and how many wait in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, SpecError
from shardmill.core.template import NO_TEXT
from shardmill.plan.spec import make_spec
from shardmill.sources import Fields, ItemBatch, discover, open_source
from shardmill.sources.batches import BATCH_BYTES
from shardmill.tasks.base import BYTES, add_bytes

ONE, TWO = b"\x89PNG one", b"\xff\xd8 two"


def read(path: Path, column: str = "image", root: str = "", limit: int = 1 << 20, **more: Any) -> list[ItemBatch]:
    fields = Fields(NO_TEXT, wanted=(column,), picture=column, root=root, **more)
    source = open_source(discover([str(path)], fields), fields, limit)
    return [batch for shard in source.shards(1 << 40) for batch in source.read(shard)]


def only(path: Path, column: str = "image", **how: Any) -> ItemBatch:
    (batch,) = read(path, column, **how)
    return batch


def parquet(folder: Path, columns: Mapping[str, Any]) -> Path:
    pq.write_table(pa.table(dict(columns)), folder / "items.parquet")
    return folder / "items.parquet"


def lines(folder: Path, values: list[Any]) -> Path:
    (folder / "items.jsonl").write_text("".join(json.dumps({"image": value}) + "\n" for value in values))
    return folder / "items.jsonl"


def contents(batch: ItemBatch) -> list[bytes | None]:
    assert batch.contents is not None
    found: list[bytes | None] = batch.contents.to_pylist()
    return found


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_the_text_of_bytes_is_their_digest(tmp_path: Path) -> None:
    batch = only(parquet(tmp_path, {"image": [ONE, None, TWO, b""]}))
    assert contents(batch) == [ONE, None, TWO, None]
    assert batch.texts.to_pylist() == [digest(ONE), None, digest(TWO), None]
    assert batch.bad == {1: "'image': it is null, not bytes", 3: "'image': it has no bytes"}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_every_type_of_bytes(tmp_path: Path, kind: pa.DataType) -> None:
    assert contents(only(parquet(tmp_path, {"image": pa.array([ONE, TWO], kind)}))) == [ONE, TWO]


def test_records_of_datasets_have_bytes_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "two.jpg").write_bytes(TWO)
    rows = [{"bytes": ONE, "path": "one.png"}, {"bytes": None, "path": "two.jpg"}, {"bytes": None, "path": None}, None]
    path = parquet(tmp_path, {"image": rows})
    batch = only(path, root=str(tmp_path))
    assert contents(batch) == [ONE, TWO, None, None]
    assert list(batch.addresses) == ["one.png", "two.jpg", "", ""]
    assert only(path).bad[1] == "'image': 'two.jpg' is a path, and --root FOLDER is not given"


def test_base64_with_and_without_its_head(tmp_path: Path) -> None:
    text = base64.b64encode(ONE).decode()
    batch = only(lines(tmp_path, [text, f"data:image/png;base64,{text}", "no base64!", "data:image/svg+xml,<svg>"]))
    assert contents(batch) == [ONE, ONE, None, None]
    assert "'no base64!' is not base64; --root FOLDER says that it is a path" in batch.bad[2]
    assert "without base64" in batch.bad[3]


def test_no_name_leads_out_of_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "secret.png"
    (root / "in").mkdir(parents=True)
    outside.write_bytes(TWO)
    (root / "in" / "one.png").write_bytes(ONE)
    (root / "link.png").symlink_to(outside)
    (root / "up").symlink_to(tmp_path)
    (root / "inside.png").symlink_to(root / "in" / "one.png")
    os.mkfifo(root / "pipe")
    good = ["in/one.png", "./in/one.png", str(root / "in" / "one.png"), "inside.png"]
    refused = {
        "../secret.png": "has '..'",
        "in/../../secret.png": "has '..'",
        "in/../in/one.png": "has '..'",
        str(outside): "leads out of",
        "link.png": "leads out of",
        "up/secret.png": "leads out of",
        "/etc/passwd": "leads out of",
        "pipe": "is not a file",
        "in": "Is a directory",
        ".": "leads out of",
        "none.png": "No such file",
        "a\0b": "is no path",
        "in/one.png/x": "cannot be read",
        "http://10.0.0.1/x.png": "is an address",
        "file:///etc/passwd": "is an address",
        "n" * 300: "cannot be read",
    }
    batch = only(lines(tmp_path, [*good, *refused]), root=str(root))
    assert contents(batch) == [ONE] * len(good) + [None] * len(refused)
    for row, (name, why) in enumerate(refused.items(), len(good)):
        assert why in batch.bad[row], name


def test_a_limit_counts_the_bytes_and_not_the_path(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(5000))
    (tmp_path / "small.png").write_bytes(ONE)
    batch = only(lines(tmp_path, ["large.png", "small.png"]), root=str(tmp_path), limit=4096)
    assert contents(batch) == [None, ONE]
    assert "over the limit" in batch.bad[0]
    assert "over the limit" in only(parquet(tmp_path, {"image": [bytes(5000)]}), limit=4096).bad[0]


def test_few_bytes_wait_in_a_batch(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(bytes(BATCH_BYTES // 3))
    batches = read(lines(tmp_path, ["one.png"] * 10), root=str(tmp_path), limit=BATCH_BYTES)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [line for batch in batches for line in batch.lines] == list(range(1, 11))
    assert sum(batch.line_count for batch in batches) == 10
    assert sum(map(len, batches)) == 10


def test_what_is_not_taken_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(ONE)
    path = parquet(tmp_path, {"n": [1, 2], "image": ["gone.png", "one.png"]})
    fields = Fields(NO_TEXT, wanted=("image", "n"), picture="image", root=str(tmp_path), where="n > 1")
    source = open_source(discover([str(path)], fields), fields)
    (batch,) = [batch for shard in source.shards(1 << 40) for batch in source.read(shard)]
    assert (contents(batch), batch.bad) == ([None, ONE], {})


def test_what_cannot_have_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'image' has type int64: neither bytes, nor base64, nor paths"):
        read(parquet(tmp_path, {"image": [1]}))
    with pytest.raises(SourceError, match="no such folder here"):
        read(parquet(tmp_path, {"image": ["a.png"]}), root=str(tmp_path / "none"))
    with pytest.raises(SourceError, match="--id hash"):
        read(parquet(tmp_path, {"image": [ONE]}), id=("hash",))


def test_a_folder_that_goes_away_is_no_fault_of_its_items(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = lines(tmp_path, ["a.png"])
    fields = Fields(NO_TEXT, wanted=("image",), picture="image", root=str(root))
    source = open_source(discover([str(path)], fields), fields)
    root.rmdir()
    with pytest.raises(SourceError, match="no such folder here"):
        [*source.read(source.shards(1 << 40)[0])]


def test_parts_of_a_batch_keep_their_bytes(tmp_path: Path) -> None:
    batch = only(parquet(tmp_path, {"image": [ONE, TWO, ONE]}))
    assert contents(batch.after(1)) == [TWO, ONE]
    assert [contents(part) for part in batch.cut(2)] == [[ONE, TWO], [ONE]]
    fields = add_bytes(batch.kept.select([]), batch.contents)
    assert fields is not None
    assert fields.column(BYTES).to_pylist() == [ONE, TWO, ONE]
    assert add_bytes(None, None) is None


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ({"text": "body", "picture": "image"}, "Both"),
        ({"text": "body", "root": "/data"}, "No column of pictures"),
        ({"picture": "image", "root": "s3://bucket/a"}, "not a folder"),
        ({"picture": "image", "group_by": "user"}, "group_by"),
    ],
)
def test_a_spec_names_pictures_alone(work: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        make_spec({"source": "a.parquet", "task": "embed", **work})


def test_a_spec_of_pictures_has_no_text() -> None:
    work = make_spec({"source": "a.parquet", "task": "embed", "picture": "image"}).work
    assert (work.text, work.picture, work.params) == (NO_TEXT, "image", {"pictures": True})
