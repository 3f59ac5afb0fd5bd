"""Samples of a WebDataset, compared with what its own library reads."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill import make_spec, start
from shardmill.core.errors import SourceError, StaleResume
from shardmill.sources import Fields, count_lines, discover, list_columns, open_source
from shardmill.sources.base import MAX_ITEM_BYTES
from shardmill.sources.documents.choosing import UnclearFormat
from shardmill.sources.formats import find_reader
from shardmill.store import open_store
from tests.support.libraries import needed

Member = tuple[str, bytes]
PICTURE = bytes(range(256)) * 9


def samples(count: int) -> list[Member]:
    found = []
    for i in range(count):
        about = json.dumps({"caption": f"caption {i}", "width": i, "url": f"https://x/{i}", "tags": ["a", i]})
        found += [
            (f"{i:06}.jpg", PICTURE),
            (f"{i:06}.txt", f"réview {i}".encode()),
            (f"{i:06}.json", about.encode()),
            (f"{i:06}.cls", b"%d\n" % (i % 7)),
        ]
    return found


def write(path: Path, members: Iterable[Member | tarfile.TarInfo], mode: str = "w", **options: Any) -> Path:
    with tarfile.open(path, mode, **options) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            about = tarfile.TarInfo(member[0])
            about.size = len(member[1])
            archive.addfile(about, io.BytesIO(member[1]))
    return path


def read(places: object, fields: Fields, target_bytes: int = 1 << 30) -> tuple[list[dict[str, Any]], dict[int, str]]:
    stat = discover([str(places)], fields, "webdataset")
    source = open_source(stat, fields)
    found: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            bad |= {len(found) + row: why for row, why in batch.bad.items()}
            found += [
                {**kept, "text": text}
                for kept, text in zip(batch.kept.to_pylist(), batch.texts.to_pylist(), strict=True)
            ]
    return found, bad


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("target_bytes", [5000, 1 << 30])
def test_samples_are_those_of_its_own_library(tmp_path: Path, mode: str, target_bytes: int) -> None:
    webdataset = needed("webdataset")
    suffix = mode.partition(":")[2]
    path = write(tmp_path / f"a.tar{suffix and '.'}{suffix}", samples(50), mode)
    theirs = [*webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False).decode()]
    found, bad = read(path, Fields("txt", id=("__key__",), keep=("cls", "caption", "width", "json")), target_bytes)
    assert not bad
    assert [
        (row["__key__"], row["text"], row["cls"], row["caption"], row["width"], json.loads(row["json"]))
        for row in found
    ] == [(s["__key__"], s["txt"], s["cls"], s["json"]["caption"], s["json"]["width"], s["json"]) for s in theirs]


def test_columns_and_what_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(3))
    columns = list_columns([str(path)], format="webdataset")
    assert [*columns] == ["caption", "width", "url", "tags", "__key__", "txt", "json", "cls"]
    assert columns["cls"] == pa.int64()
    source = open_source(discover([str(path)], Fields("caption"), "webdataset"), Fields("caption"))
    source.shards(1 << 30)
    assert source.notes == ["Members without text are left out: jpg."]
    with pytest.raises(SourceError, match=r"'jpg' in a\.tar is no text"):
        read(path, Fields("txt", keep=("jpg",)))
    with pytest.raises(SourceError, match="no field 'body'"):
        read(path, Fields("body"))


def test_the_data_has_its_own_url_and_lines_are_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(30))
    for target_bytes in (1, 20_000, 1 << 30):
        found, _ = read(path, Fields("{txt}", keep=("url", "line", "file")), target_bytes)
        assert [row["url"] for row in found] == [f"https://x/{i}" for i in range(30)]
        assert [row["line"] for row in found] == [*range(1, 31)]
        assert {row["file"] for row in found} == {"a.tar"}


def test_a_local_tar_is_cut_by_its_headers_and_others_are_one_shard(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(40))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    open_store("memory://samples").put("c.tar", path.read_bytes())
    for place, several in ((path, True), (tmp_path / "b.tar.gz", False), ("memory://samples/c.tar", False)):
        stat = discover([str(place)], Fields("txt"), "webdataset")
        assert (len(open_source(stat, Fields("txt")).shards(1000)) > 10) == several
        assert [row["text"] for row in read(place, Fields("txt"), 1000)[0]] == [f"réview {i}" for i in range(40)]
        counted = count_lines(stat, stat.files[0])
        assert counted == (None if str(place).startswith("memory") else 40)


def test_names_of_samples(tmp_path: Path) -> None:
    long = "deep/" * 30 + "x" * 200
    members = [
        ("./v1.0/a.seg.txt", b"one"),
        ("./v1.0/a.TXT", b"two"),
        (f"{long}.txt", b"three"),
        ("ünïcode.txt", b"four"),
        ("README", b"no suffix"),
        ("__meta__/index.txt", b"not a sample"),
        ("._ünïcode.txt", b"hidden"),
    ]
    path = write(tmp_path / "a.tar", members, format=tarfile.PAX_FORMAT)
    found, _ = read(path, Fields("txt", id=("__key__",)), 1)
    assert [(row["__key__"], row["text"]) for row in found] == [
        ("./v1.0/a", "two"),
        (long, "three"),
        ("ünïcode", "four"),
    ]
    assert [row["text"] for row in read(path, Fields("seg.txt"))[0]] == ["one", None, None]


def test_samples_that_cannot_be_used_are_bad_rows(tmp_path: Path) -> None:
    link = tarfile.TarInfo("3.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members: list[Any] = [
        *[("0.txt", b"good"), ("0.json", b'{"n": 1}')],
        *[("1.txt", b"once"), ("1.txt", b"twice")],
        ("../2.txt", b"outside"),
        link,
        *[("4.json", b'{"n": 4}')],
        ("5.txt", b""),
        ("6.txt", b"\xff\xfe"),
        *[("7.txt", b"good"), ("7.json", b"{")],
        *[("8.txt", b"good"), ("8.json", b'{"n": 8}'), ("8.cls", b"none")],
    ]
    path = write(tmp_path / "a.tar", members)
    for target_bytes in (1, 1 << 30):
        found, bad = read(path, Fields("txt"), target_bytes)
        assert [row["text"] for row in found] == ["good", None, None, None, None, None, None, "good", "good"]
        assert [*bad.values()] == [
            "it has two members 1.txt",
            "../2 leads out of the archive's folder",
            "'txt': it is a link, which is not followed",
            "no field 'txt'",
            "the text is blank",
            "'txt' is not valid UTF-8 at byte 1",
        ]
    _, bad = read(path, Fields("txt", keep=("n",)))
    assert bad[7].startswith("'json': broken JSON")
    write(tmp_path / "b.tar", [("a.txt", b"x"), ("a.cls", b"1"), *[(f"x{i}.txt", b"x") for i in range(200)], *members])
    _, bad = read(tmp_path / "b.tar", Fields("txt", keep=("cls",)))
    assert bad[209] == "'cls' is \"none\", which int64 cannot hold; set its type with --keep cls:string"


def test_members_over_the_limit_are_not_held(tmp_path: Path) -> None:
    bomb = [("0.txt", b"good"), ("1.txt", b"0" * (MAX_ITEM_BYTES + 1)), ("2.jpg", b"0" * (MAX_ITEM_BYTES + 1))]
    path = write(tmp_path / "a.tar.gz", [*bomb, ("2.txt", b"good")], "w:gz", compresslevel=1)
    found, bad = read(path, Fields("txt"))
    assert [row["text"] for row in found] == ["good", None, "good"]
    assert bad == {1: "'txt': it is 32.0 MB, over the limit of 32.0 MB"}
    huge = tarfile.TarInfo("header")
    huge.type, huge.size = tarfile.XHDTYPE, 1 << 32
    (tmp_path / "b.tar").write_bytes(huge.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    with pytest.raises(SourceError, match="a header of 4,294,967,296 bytes"):
        read(tmp_path / "b.tar", Fields("txt"))


def test_members_that_are_scattered_are_refused_and_equal_ones_are_two_samples(tmp_path: Path) -> None:
    apart = [("a.txt", b"1"), ("b.txt", b"2"), ("a.json", b"{}"), ("b.json", b"{}")]
    for name, mode in (("a.tar", "w"), ("a.tar.gz", "w:gz")):
        with pytest.raises(SourceError, match=r"the sample a do not follow one another") as caught:
            read(write(tmp_path / name, apart, mode), Fields("txt"))
        assert "tar --sort=name" in caught.value.hint
    twice = [("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]
    found, bad = read(write(tmp_path / "b.tar", twice), Fields("txt", id=("__key__",)))
    assert ([(row["__key__"], row["text"]) for row in found], bad) == ([("a", "1"), ("b", "2"), ("a", "3")], {})


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(5))
    whole = path.read_bytes()
    for stop in (1536 * 5 + 100, 512 * 30, 512 * 3 + 10):
        path.write_bytes(whole[:stop])
        with pytest.raises(SourceError, match=r"a\.tar: not a whole tar archive|ends inside"):
            read(path, Fields("txt"))
    packed = tmp_path / "b.tar.gz"
    packed.write_bytes(gzip.compress(whole)[:-2000])
    with pytest.raises(SourceError, match=r"b\.tar\.gz"):
        read(packed, Fields("txt"))
    for data in (b"no tar at all", bytes(10240), b""):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"not a whole tar archive|no samples in|no rows in"):
            read(path, Fields("txt"))


def test_an_archive_that_changes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(5))
    source = open_source(discover([str(path)], Fields("txt"), "webdataset"), Fields("txt"))
    shards = source.shards(1 << 30)
    write(path, samples(6))
    with pytest.raises(StaleResume, match=r"a\.tar changed"):
        [*source.read(shards[0])]


def test_a_tar_of_documents_stays_one_and_samples_are_asked_for(tmp_path: Path) -> None:
    notes = write(tmp_path / "notes.tar", [("a.md", b"# A"), ("b.md", b"# B"), ("b.txt", b"b")])
    assert discover([str(notes)], Fields("text")).format == "files"
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train-0.tar", samples(5))
    write(tmp_path / "data" / "test-0.tar", samples(2))
    with pytest.raises(UnclearFormat) as caught:
        discover([str(tmp_path / "data")], Fields("txt"))
    assert caught.value.message.endswith("as a WebDataset: is an item a file, or a sample?")
    assert "--format webdataset for one item per sample" in caught.value.hint
    assert caught.value.is_settled_by("files")
    assert discover([str(tmp_path / "data")], Fields("text"), "files").format == "files"
    with pytest.raises(SourceError, match="several splits: test, train"):
        discover([str(tmp_path / "data")], Fields("txt"), "webdataset")
    (only,) = discover([str(tmp_path / "data")], Fields("txt", split="test"), "webdataset").files
    assert only.name == "test-0.tar"


def test_whole_rows_for_split(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(2))
    stat = discover([str(path)], Fields("txt"), "webdataset")
    rows = [row for row, _ in find_reader("webdataset").iter_rows(stat, stat.files[0])]
    assert [(row["__key__"], row["txt"], row["cls"], row["tags"]) for row in rows] == [
        ("000000", "réview 0", 0, ["a", 0]),
        ("000001", "réview 1", 1, ["a", 1]),
    ]


def test_a_part_of_a_run_is_verified(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(100))
    write(tmp_path / "b.tar.gz", samples(60), "w:gz")
    work = {"source": str(tmp_path), "format": "webdataset", "text": "txt", "id": "file,__key__", "where": "cls < 3"}
    run = start(make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"shard_bytes": 30_000}), tmp_path / "run")
    assert len(run.plan.shards) > 5
    assert run.table(["__key__"]).num_rows == sum(i % 7 < 3 for i in [*range(100), *range(60)])
    assert run.verify(sample=8).verified
