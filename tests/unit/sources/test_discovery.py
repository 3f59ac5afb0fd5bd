from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import make_spec, start
from shardmill.core.arrowtypes import arrow_type, type_text
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, files, open_source, places
from shardmill.sources.places import expand
from shardmill.store import LocalStore, open_store
from shardmill.testing import InProcessEngine
from tests.support.sources import put

BODY = Fields(text="body")


def write(path: Path, *rows: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def refusal(*places: str, fields: Fields = BODY, format: str | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        discover(places, fields, format)
    return str(caught.value)


def test_places_keep_their_order_and_come_once(tmp_path: Path) -> None:
    b, a = write(tmp_path / "x/b.jsonl", {"body": "b"}), write(tmp_path / "x/deep/a.ndjson", {"body": "a"})
    z = write(tmp_path / "z.jsonl", {"body": "z"})
    write(tmp_path / "x/.hidden.jsonl", {"body": "h"})
    (tmp_path / "x/README.md").write_text("no data")
    stat = discover([z, str(tmp_path / "x"), z, f"file://{b}"], BODY)
    assert [f.place for f in stat.files] == [z, b, a]
    assert discover([str(tmp_path / "**/*.jsonl")], BODY).files == tuple(stat.files[i] for i in (1, 0))
    assert stat.size_bytes == sum(os.path.getsize(f.place) for f in stat.files)


def test_relative_places_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(tmp_path / "a.jsonl", {"body": "b"})
    monkeypatch.chdir(tmp_path)
    assert discover(["a.jsonl"], BODY).files[0].place == place
    assert discover(["./*.jsonl"], BODY).files[0].place == place


def test_a_name_with_glob_marks_is_a_file_if_it_exists(tmp_path: Path) -> None:
    place = write(tmp_path / "a[1].jsonl", {"body": "b"})
    assert discover([place], BODY).files[0].place == place


def test_globs_behind_a_url() -> None:
    store = open_store("memory://globs")
    for name in ("a-1.txt", "a-2.txt", "b.txt", ".c.txt"):
        store.put(name, b"line")
    assert [f.place for f in expand("memory://globs/a-?.txt")] == ["memory://globs/a-1.txt", "memory://globs/a-2.txt"]
    assert [f.place for f in expand("memory://globs/**/[!a]*.txt")] == ["memory://globs/b.txt"]
    assert "matches no file" in refusal("memory://globs/*.csv")
    assert "no such file or folder" in refusal("memory://globs/none.txt")


def test_edges_and_tag_tell_contents_apart(tmp_path: Path) -> None:
    place = write(tmp_path / "a.jsonl", {"body": "one"})
    before = discover([place], BODY).files[0]
    write(tmp_path / "a.jsonl", {"body": "two"})
    after = discover([place], BODY).files[0]
    assert before.size_bytes == after.size_bytes
    assert before.edges != after.edges
    assert before.tag.startswith("mtime-")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.zst", "a.txt.bz2", "a.xz"])
def test_a_plain_file_with_the_name_of_a_compressed_one_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"body": "b"}')
    assert f"{name} is not compressed as its name says" in refusal(str(tmp_path / name), format="text")


def _parquet() -> bytes:
    pq.write_table(pa.table({"body": ["a"]}), out := io.BytesIO())
    return out.getvalue()


def _arrow() -> bytes:
    table = pa.table({"body": ["a"]})
    with pa.ipc.new_file(out := io.BytesIO(), table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _tar() -> bytes:
    with tarfile.open(fileobj=(out := io.BytesIO()), mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.jsonl"))
    return out.getvalue()


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (_parquet(), r"is Parquet and cannot be read as (jsonl|csv|text).*\n.*--format parquet"),
        (_arrow(), r"is an Arrow file and .*\n.*--format arrow"),
        (gzip.compress(gzip.compress(b"body\n")), "is gzip and"),
        (gzip.compress(_parquet()), "is Parquet and"),
        (gzip.compress(_tar()), "is a tar archive and"),
        (b"PK\x03\x04rest", "is a zip archive and"),
        *((f"body\n{encoding}\n".encode(encoding), "is text in UTF-16 and") for encoding in ("utf-16", "utf-16-be")),
        ("body\nx\n".encode("utf-32"), "is text in UTF-32 and.*\n.*iconv -f UTF-32 -t UTF-8"),
    ],
    ids=["parquet", "arrow", "gzip in gzip", "parquet in gzip", "tar", "zip", "utf-16", "utf-16-be", "utf-32"],
)
def test_a_file_that_is_something_else_than_its_name_says(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=rf"{name} {what}"):
        discover([str(tmp_path / name)], BODY)


def test_a_parquet_file_with_another_name_is_read_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(_parquet())
    assert discover([str(tmp_path / "a.csv")], BODY, "parquet").format == "parquet"


def test_what_cannot_be_found_says_what_is_near(tmp_path: Path) -> None:
    write(tmp_path / "reviews.jsonl", {"body": "b"})
    assert "Did you mean 'reviews.jsonl'?" in refusal(str(tmp_path / "review.jsonl"))
    assert "matches no file" in refusal(str(tmp_path / "*.csv"))
    (tmp_path / "none").mkdir()
    assert "no readable file" in refusal(str(tmp_path / "none"))
    assert "no source given" in refusal()
    assert "not a supported format" in refusal(str(tmp_path), format="jsonlines")


@pytest.mark.parametrize("data", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf\n"])
@pytest.mark.parametrize("kind", ["jsonl", "txt", "csv", "tsv"])
def test_an_empty_source_is_refused(tmp_path: Path, kind: str, data: bytes) -> None:
    place = tmp_path / f"a.{kind}"
    place.write_bytes(data)
    assert "no rows" in refusal(str(place))


def test_headers_without_records_are_an_empty_source(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,n\n\n")
    pq.write_table(pa.table({"body": pa.array([], pa.string())}), tmp_path / "b.parquet")
    assert "no rows" in refusal(str(tmp_path / "a.csv"))
    assert "no rows" in refusal(str(tmp_path / "b.parquet"))


def test_empty_files_among_others_are_fine(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", {"body": "b"})
    source = open_source(discover([str(tmp_path)], BODY), BODY)
    assert [s.file for s in source.shards(10**6)] == [1]


def test_formats_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"body": "b"})
    (tmp_path / "b.csv").write_text("body\nb\n")
    text = refusal(str(tmp_path))
    assert "a.jsonl" in text
    assert "b.csv" in text
    assert discover([str(tmp_path)], BODY, format="csv").files[0].place.endswith("b.csv")


def test_format_by_name_and_by_choice(tmp_path: Path) -> None:
    place = write(tmp_path / "data.bin", {"body": "b"})
    assert "--format" in refusal(place)
    assert discover([place], BODY, format="jsonl").format == "jsonl"
    assert discover([place], Fields("line"), format="text").format == "text"


def test_json_files_hold_an_array_or_an_object_a_line(tmp_path: Path) -> None:
    assert discover([write(tmp_path / "a.json", {"body": "b"})], BODY).format == "jsonl"
    assert discover([write(tmp_path / "b.json", [{"body": "b"}])], BODY).format == "json"
    (tmp_path / "c.json").write_text('{\n  "body": "b"\n}\n')
    assert "does not look like JSON Lines" in refusal(str(tmp_path / "c.json"))


@pytest.mark.parametrize("fields", [Fields("bodi"), Fields("{bodi} {n}"), Fields("body", id=("bodi",))])
def test_a_missing_field_names_the_nearest(tmp_path: Path, fields: Fields) -> None:
    rows = [{"body": "b", "n": 1}]
    (tmp_path / "a.csv").write_text("body,n\nb,1\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for place in (write(tmp_path / "a.jsonl", *rows), str(tmp_path / "a.csv"), str(tmp_path / "a.parquet")):
        text = refusal(place, fields=fields)
        assert text.startswith(f"no field 'bodi' in {Path(place).name}.")
        assert "Did you mean 'body'?" in text


def test_text_files_have_one_field(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line\n")
    place = str(tmp_path / "a.txt")
    assert "Available: text." in refusal(place, fields=Fields("text", id=("key",)))
    assert "Available: text." in refusal(place, fields=Fields("query: {body}"))
    assert discover([place], Fields("query: {text}", keep=("text",))).columns == {"text": "string"}


def test_a_text_field_that_never_holds_text(tmp_path: Path) -> None:
    place = write(tmp_path / "a.jsonl", {"n": 12, "body": "b"}, {"n": None, "body": "b"})
    assert "'n' in a.jsonl holds a number, not text, for example 12." in refusal(place, fields=Fields("n"))
    pq.write_table(pa.table({"n": [1], "body": ["b"]}), tmp_path / "a.parquet")
    assert "'n' in a.parquet has type int64" in refusal(str(tmp_path / "a.parquet"), fields=Fields("n"))


def test_csv_headers_must_agree(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,n\nb,1\n")
    (tmp_path / "b.csv").write_text("body,m\nb,1\n")
    assert "b.csv has columns (body, m) that differ from a.csv (body, n)" in refusal(str(tmp_path))
    (tmp_path / "c.csv").write_text("body,body\nb,1\n")
    assert "two columns named 'body'" in refusal(str(tmp_path / "c.csv"))


def test_corrupt_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    assert "a.parquet is not readable Parquet" in refusal(str(tmp_path / "a.parquet"))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(tmp_path / "a.jsonl", {"body": "b"})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(SourceError) as caught:
        discover([place], BODY)
    monkeypatch.undo()
    assert str(caught.value).startswith(f"{place}: Permission denied.")


def test_types_of_kept_json_columns(tmp_path: Path) -> None:
    rows = [
        {"body": "b", "i": 1, "f": 1, "mixed": 1, "flag": True, "nested": {"a": 1}, "none": None, "huge": 2**70},
        {"body": "b", "i": None, "f": 2.5, "mixed": "x", "flag": None, "nested": [1], "none": None, "huge": 1},
    ]
    fields = Fields("body", id=("i",), keep=("f", "mixed", "flag", "nested", "none", "huge", "i:float32"))
    stat = discover([write(tmp_path / "a.jsonl", *rows)], fields)
    assert stat.columns == {
        "i": "float",
        "f": "double",
        "mixed": "string",
        "flag": "bool",
        "nested": "string",
        "none": "string",
        "huge": "string",
    }
    source = open_source(stat, fields)
    [batch] = source.read(source.shards(10**6)[0])
    assert batch.kept.to_pylist() == [
        {"i": 1.0, "f": 1.0, "mixed": "1", "flag": True, "nested": '{"a": 1}', "none": None, "huge": str(2**70)},
        {"i": None, "f": 2.5, "mixed": "x", "flag": None, "nested": "[1]", "none": None, "huge": "1"},
    ]


def test_a_type_seen_only_late_in_the_source_counts(tmp_path: Path) -> None:
    rows = [{"body": "b" * 400, "n": 1 if i < 9000 else 1.5} for i in range(10_000)]
    assert discover([write(tmp_path / "a.jsonl", *rows)], Fields("body", keep=("n",))).columns == {"n": "double"}


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("us"),
        pa.timestamp("ms", "Europe/Berlin"),
        pa.decimal128(10, 2),
        pa.date32(),
        pa.float32(),
        pa.binary(16),
        pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int8())),
        pa.struct([pa.field("a", pa.int64()), pa.field("b, c", pa.string())]),
        pa.map_(pa.string(), pa.int32()),
    ],
    ids=str,
)
def test_parquet_types_survive_as_text(kind: pa.DataType) -> None:
    assert arrow_type(type_text(kind)) == kind


def test_parquet_keeps_its_own_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "body": pa.array(["a", None]).dictionary_encode(),
            "when": pa.array([1, None], pa.timestamp("us", "UTC")),
            "tags": pa.array([["x"], []]),
            "label": pa.array(["p", "q"]).dictionary_encode(),
            "n": pa.array([1, 2**40]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    fields = Fields("body", id=("label",), keep=("when", "tags", "n:int32"))
    stat = discover([str(tmp_path / "a.parquet")], fields)
    assert stat.columns["when"] == "timestamp[us, tz=UTC]"
    assert stat.columns["label"] == "string"
    source = open_source(stat, fields)
    [batch] = source.read(source.shards(10**6)[0])
    assert batch.texts.to_pylist() == ["a", None]
    assert batch.bad == {1: f"'n' is {2**40}, which int32 cannot hold; set its type with --keep n:string"}
    assert batch.kept["tags"].to_pylist() == [["x"], []]
    assert batch.kept["when"].type == pa.timestamp("us", "UTC")


def test_planning_ten_gigabytes_reads_almost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.jsonl"
    line = json.dumps({"body": "b", "n": 1}).encode() + b"\n"
    with open(path, "wb") as file:
        file.write(line)
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line * 3)
    fields = Fields("body", keep=("n",))
    read: list[int] = []

    def count(handle: int, start: int, stop: int) -> bytes:
        read.append(stop - start)
        return pread(handle, start, stop)

    pread = files._pread
    monkeypatch.setattr(files, "_pread", count)
    stat = discover([str(path)], fields)
    shards = open_source(stat, fields).shards(64 << 20)
    assert 0 < sum(read) < 32 << 20
    assert len(shards) == 161
    assert stat.columns == {"n": "int64"}


def test_files_left_out_are_counted_by_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jsonl", "a.png", "b.png", "c/d.PNG", "README.md", "LICENSE", ".hidden"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text('{"text": "a"}\n')
    notes: list[str] = []
    discover([str(tmp_path / "data")], Fields("text"), None, lambda share, what: None, notes.append)
    assert notes == ["Left out by suffix: 3 .png, 1 without one, 1 .md."]
    for place in ("data/a.jsonl", "data/*.jsonl"):
        discover([str(tmp_path / place)], Fields("text"), None, lambda share, what: None, notes.append)
    assert len(notes) == 1
    spec = make_spec({"source": str(tmp_path / "data"), "text": "text", "task": "shardmill.testing:FakeTask"}, {})
    for said in (1, 0):
        start(spec, tmp_path / "run", engine=InProcessEngine(), quiet=False)
        assert capsys.readouterr().err.count("Left out by suffix: 3 .png") == said


def test_a_folder_of_too_many_files_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MOST_FILES", 3)
    monkeypatch.setattr(LocalStore, "list", lambda *_: pytest.fail("it was listed"))
    for name in ("a/1.md", "a/2.md", "b/c/3.md", "4.md", ".hidden/5.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    with pytest.raises(SourceError, match="has more than 3 files") as refused:
        discover([str(tmp_path)], Fields("text"), "files")
    assert "tar -cf docs.tar docs/" in refused.value.hint
    with pytest.raises(SourceError, match="has more than 3 files"):
        discover([str(tmp_path / "**" / "*.md")], Fields("text"), "files")
    monkeypatch.undo()
    assert len(discover([str(tmp_path)], Fields("text"), "files").files) == 4


def test_very_many_files_in_a_bucket_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_FILES", 3)
    for number in range(4):
        put("memory://crowd/docs", f"{number}.md", b"text")
    with pytest.raises(SourceError, match="memory://crowd/docs has more than 3 files"):
        discover(["memory://crowd/docs"], Fields("text"), "files")
