from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, StaleResume
from shardmill.sources import Fields, ItemBatch, Shard, Source, discover, open_source
from shardmill.sources.arrow.rows import RowMaker
from shardmill.sources.base import SourceStat

BODY = Fields(text="body")
MIB = 1 << 20


def open_file(folder: Path, name: str, data: bytes, fields: Fields = BODY, max_item_bytes: int = 32 * MIB) -> Source:
    (folder / name).write_bytes(data)
    return open_source(discover([str(folder / name)], fields), fields, max_item_bytes)


def read(source: Source, target_bytes: int = 1 << 40) -> list[ItemBatch]:
    return [batch for shard in source.shards(target_bytes) for batch in source.read(shard)]


def read_one(*args: object, **kwargs: object) -> ItemBatch:
    [batch] = read(open_file(*args, **kwargs))  # type: ignore[arg-type]
    return batch


def test_bad_lines_are_rows_with_a_reason(tmp_path: Path) -> None:
    lines = [
        b'{"body": "ok", "n": 1}',
        b'{"body": "ok", "n": ',
        b"[1]",
        b'{"body": "\xff", "n": 1}',
        b'{"body": null, "n": 1}',
        b'{"n": 1}',
        b'{"body": 5, "n": 1}',
        b'{"body": "\\ud800", "n": 1}',
        b'{"body": "ok", "n": 99999999999999999999}',
        b'{"body": "ok", "n": "many"}',
        b'{"body": "ok", "n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"body": "a\\u0000b", "n": null}',
    ]
    batch = read_one(tmp_path, "a.jsonl", b"\n".join(lines), Fields("body", keep=("n:int64",)))
    assert batch.bad == {
        1: "broken JSON: Expecting value at column 21",
        2: "the line is JSON, but not an object",
        3: "not valid UTF-8 at byte 11 of the line",
        4: "'body' is null",
        5: "no field 'body'",
        6: "'body' is a number, not text",
        7: "the text is not valid Unicode",
        8: "'n' is 99999999999999999999, which int64 cannot hold; set its type with --keep n:string",
        9: "'n' is \"many\", which int64 cannot hold; set its type with --keep n:string",
        10: "broken JSON: a number has too many digits",
        11: "broken JSON: nested too deep",
    }
    assert batch.texts.to_pylist() == ["ok", *[None] * 11, "a\x00b"]
    assert batch.kept["n"].to_pylist()[:5] == [1, None, None, None, 1]


def test_not_a_number_is_kept_as_a_float(tmp_path: Path) -> None:
    data = b'{"body": "a", "n": NaN}\n{"body": "a", "n": -Infinity}\n{"body": "a", "n": 1}\n'
    batch = read_one(tmp_path, "a.jsonl", data, Fields("body", keep=("n",)))
    assert str(batch.kept["n"].to_pylist()) == "[nan, -inf, 1.0]"


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    assert read_one(tmp_path, "a.jsonl", mark + b'{"body": "a"}\n').texts.to_pylist() == ["a"]
    assert read_one(tmp_path, "a.txt", mark + b"a\n").texts.to_pylist() == ["a"]
    assert read_one(tmp_path, "a.csv", mark + b"body\na\n").texts.to_pylist() == ["a"]


def test_blank_lines_are_counted_but_are_no_items(tmp_path: Path) -> None:
    for name, data in (("a.txt", b"\n a\n\n \r\nb\n\n\n"), ("a.csv", b"body,n\n a,1\n\n \r\nb,1\n\n\n")):
        batch = read_one(tmp_path, name, data)
        assert [t.strip() for t in batch.texts.to_pylist()] == ["a", "b"]
        assert batch.lines == [2, 5]
        assert batch.line_count == 7


def test_a_shard_of_blank_lines_still_counts_them(tmp_path: Path) -> None:
    batches = read(open_file(tmp_path, "a.txt", b"a\n" + b"\n" * 8 + b"b\n"), target_bytes=4)
    assert [(len(b), b.line_count) for b in batches] == [(1, 3), (0, 4), (1, 3)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv"])
def test_a_line_of_50_mb_is_passed_by_in_little_memory(tmp_path: Path, name: str) -> None:
    head, before, after = {
        "a.jsonl": (b"", b'{"body": "a"}\n{"body": "', b'"}\n{"body": "b"}\n'),
        "a.txt": (b"", b"a\n", b"\nb\n"),
        "a.csv": (b"body\n", b'a\n"', b'"\nb\n'),
    }[name]
    with open(tmp_path / name, "wb") as file:
        file.write(head + before)
        for _ in range(50):
            file.write(b"x" * MIB)
        file.write(after)
    source = open_source(discover([str(tmp_path / name)], BODY), BODY, max_item_bytes=2 * MIB)
    tracemalloc.start()
    [batch] = read(source)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 * MIB
    assert batch.texts.to_pylist() == ["a", None, "b"]
    assert batch.bad[1].endswith("is 50.0 MB, over the limit of 2.0 MB")
    assert [t for b in read(source, 7 * MIB) for t in b.texts.to_pylist()] == ["a", None, "b"]


def test_a_long_line_in_a_gzip_is_passed_by_in_little_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", 1) as file:
        file.write(b'{"body": "a"}\n{"body": "')
        for _ in range(50):
            file.write(b"x" * MIB)
        file.write(b'"}\n{"body": "b"}\n')
    source = open_source(discover([str(tmp_path / "a.jsonl.gz")], BODY), BODY, max_item_bytes=2 * MIB)
    tracemalloc.start()
    [batch] = read(source)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 24 * MIB
    assert batch.texts.to_pylist() == ["a", None, "b"]
    assert batch.bad[1].endswith("is 50.0 MB, over the limit of 2.0 MB")


def test_other_encodings_and_ends_of_lines_among_good_rows(tmp_path: Path) -> None:
    latin, wide = "caf\u00e9".encode("latin-1"), "caf\u00e9".encode("utf-16-le")
    lines = [b"\xef\xbb\xbfone", b"two\r", latin, b"\xe2\x82", b"a\0b", b"\xef\xbb\xbfmark", wide, b"", b"last"]
    batch = read_one(tmp_path, "a.txt", b"\n".join(lines))
    assert batch.texts.to_pylist() == ["one", "two", None, None, "a\0b", "\ufeffmark", None, "last"]
    assert batch.bad == {
        2: "not valid UTF-8 at byte 4 of the line",
        3: "not valid UTF-8 at byte 1 of the line",
        6: "not valid UTF-8 at byte 7 of the line",
    }
    records = [b"body,n"] + [b"%s,1" % line for line in lines[1:6]]
    batch = read_one(tmp_path, "a.csv", b"\r\n".join(records).replace(b"two\r", b"two"))
    assert batch.texts.to_pylist() == ["two", None, None, "a\0b", "\ufeffmark"]
    quoted = [json.dumps({"body": "a"}).encode(), b'{"body": "' + latin + b'"}', b'{"body": "a\0b"}', b"\0\0\0"]
    batch = read_one(tmp_path, "a.jsonl", b"\r\n".join(quoted))
    assert batch.texts.to_pylist() == ["a", None, None, None]


def test_a_long_record_of_many_lines_is_passed_by(tmp_path: Path) -> None:
    record = b'1,"' + b'line ""x"", y\n' * 1000 + b'end",z\n'
    data = b"n,body,m\n0,a,z\n" + record + b"2,b,z\n"
    batch = read_one(tmp_path, "a.csv", data, max_item_bytes=1000)
    assert batch.texts.to_pylist() == ["a", None, "b"]
    assert batch.bad[1].startswith("the record is 0.0 MB, over the limit")
    assert batch.lines == [2, 3, 1004]


def test_bad_csv_records_are_rows_with_a_reason(tmp_path: Path) -> None:
    data = b'body,n\na,1\nb\nc,1,2\n\xff,1\nd\re,1\nf,x\ng,\n"h,1\n'
    batch = read_one(tmp_path, "a.csv", data, Fields("body", keep=("n:int32",)))
    assert batch.texts.to_pylist() == ["a", None, None, None, None, None, "g", None]
    assert batch.bad == {
        1: "1 field where the header has 2",
        2: "3 fields where the header has 2",
        3: "not valid UTF-8 at byte 1 of the line",
        4: "broken CSV: a carriage return outside quotes",
        5: "'n' is \"x\", which int32 cannot hold; set its type with --keep n:string",
        7: "a quote is opened here and never closed",
    }
    assert batch.kept["n"].to_pylist() == [1, None, None, None, None, None, None, None]


def test_csv_fields_over_the_default_limit_of_python_are_read(tmp_path: Path) -> None:
    batch = read_one(tmp_path, "a.csv", b"body\n" + b"x" * 300_000 + b"\n")
    assert len(batch.texts[0].as_py()) == 300_000


def test_an_ambiguous_place_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of three fields, whether the reading starts inside or outside of quotes; only the file's end tells."""
    monkeypatch.setattr("shardmill.sources.csv.cuts.BLOCK_BYTES", 64 << 10)
    data = b"a,body,c\n" + b'a,",b\n' * 40_000
    source = open_file(tmp_path, "a.csv", data)
    shards = source.shards(20_000)
    assert 1 < len(shards) < 6
    assert all(s.start > len(data) - (64 << 10) for s in shards[1:])
    assert sum(len(b) for b in read(source, 20_000)) == 20_000


def test_lines_in_a_quoted_field_that_look_like_records_do_not_mislead(tmp_path: Path) -> None:
    source = open_file(tmp_path, "a.csv", b"a,body,c\n" + b'p,"' + b"1,2,3\n" * 5000 + b'",q\n')
    assert sum(len(b) for b in read(source, 10_000)) == 1


def test_a_cut_that_was_misled_is_found_when_it_is_read(tmp_path: Path) -> None:
    source = open_file(tmp_path, "a.csv", b"a,body,c\n" + b'p,"' + b"1,2,3\n" * 50_000 + b'",q\n')
    with pytest.raises(SourceError, match="is wrong"):
        read(source, 100_000)


def test_csv_is_cut_only_where_a_record_starts(tmp_path: Path) -> None:
    records = [f'{i},"first, line {i}\n""{i}"", 1,2\n{i},x,y\n",z\n'.encode() for i in range(20_000)]
    source = open_file(tmp_path, "a.csv", b"n,body,m\n" + b"".join(records))
    shards = source.shards(50_000)
    starts, at = {len(b"n,body,m\n")}, len(b"n,body,m\n")
    for record in records:
        at += len(record)
        starts.add(at)
    assert len(shards) > 15
    assert {s.start for s in shards} <= starts
    assert sum(len(b) for b in read(source, 50_000)) == 20_000


@pytest.mark.parametrize("stop", [20, 24, 22])
def test_reading_proves_that_a_cut_is_right(tmp_path: Path, stop: int) -> None:
    data = b'body,n\n"aaaa\nbbbb\ncccc\ndddd",1\nx,1\n'
    source = open_file(tmp_path, "a.csv", data)
    with pytest.raises(SourceError, match=f"the cut at byte {stop} is wrong") as caught:
        list(source.read(Shard(0, 0, 7, stop, stop - 7)))
    assert "--fresh" in caught.value.hint
    right = data.index(b"x,1")
    assert [len(b) for b in source.read(Shard(0, 0, 7, right, 1))] == [1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_file_that_changed_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"body": ["a"]}), path)
    else:
        path.write_bytes(b'{"body": "a"}\n' if name == "a.jsonl" else b"body\na\n")
    source = open_source(discover([str(path)], BODY), BODY)
    [shard] = source.shards(100)
    size = path.stat().st_size
    os.utime(path, ns=(1, 1))
    with pytest.raises(StaleResume, match=f"{name} changed during the run: tag"):
        list(source.read(shard))
    with open(path, "ab") as file:
        file.write(b"\n\n")
    with pytest.raises(StaleResume, match=f"size {size} -> {size + 2}") as caught:
        list(source.read(shard))
    assert "--fresh" in caught.value.hint
    path.unlink()
    with pytest.raises(SourceError, match="is gone"):
        list(source.read(shard))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source = open_file(tmp_path, "a.jsonl", b'{"body": "a"}\n' * 3000)
    batches = source.read(source.shards(1 << 30)[0])
    next(batches)
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    with pytest.raises(StaleResume):
        list(batches)


@pytest.mark.parametrize("at", [4, 2000])
def test_parquet_corrupt_in_the_middle_is_named(tmp_path: Path, at: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": [str(i) for i in range(5000)]}), path, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[at : at + 500] = b"\xaa" * 500
    path.write_bytes(data)
    source = open_source(discover([str(path)], BODY), BODY)
    with pytest.raises(SourceError, match=r"a\.parquet is not readable Parquet"):
        read(source)


def test_texts_that_stay_in_arrow_are_those_that_python_takes() -> None:
    texts = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    batch = pa.record_batch({"body": pa.array(texts)})
    maker = RowMaker(SourceStat("parquet", (), {}), BODY, 4)
    for at in range(0, len(texts), 4096):
        taken = maker.items(batch.slice(at, 4096), 0, 1.0, 0, None).texts.to_pylist()
        assert taken == [text if text.strip() else None for text in texts[at : at + 4096]]
    for hard in ([None, "a"], ["a", "12345"], ["a", ""]):
        found = maker.items(pa.record_batch({"body": pa.array(hard)}), 0, 1.0, 0, None)
        assert found.texts.to_pylist() == [text if text == "a" else None for text in hard]


def test_parquet_files_that_lack_a_field_are_found_at_planning(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "b.parquet")
    source = open_source(discover([str(tmp_path)], BODY), BODY)
    with pytest.raises(SourceError, match=r"no field 'body' in b\.parquet"):
        source.shards(100)


def test_parquet_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    raw = pa.array([b"ok", b"\xff", b""], pa.binary())
    text = pa.StringArray.from_buffers(3, *raw.buffers()[1:])
    pq.write_table(pa.table({"body": text, "key": text}), tmp_path / "a.parquet")
    fields = Fields("body", id=("key",))
    [batch] = read(open_source(discover([str(tmp_path / "a.parquet")], fields), fields))
    assert batch.texts.to_pylist() == ["ok", None, None]
    assert batch.bad == {1: "'body' is not valid UTF-8", 2: "the text is blank"}
    assert batch.kept["key"].to_pylist() == ["ok", None, ""]


def test_batches_are_bounded_by_bytes(tmp_path: Path) -> None:
    line = json.dumps({"body": "x" * MIB}).encode() + b"\n"
    assert [len(b) for b in read(open_file(tmp_path, "a.jsonl", line * 8))] == [3, 3, 2]
    pq.write_table(pa.table({"body": [os.urandom(MIB // 2).hex() for _ in range(8)]}), tmp_path / "a.parquet")
    assert max(len(b) for b in read(open_source(discover([str(tmp_path / "a.parquet")], BODY), BODY))) <= 4
