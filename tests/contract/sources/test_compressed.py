"""Compressed files: what holds for a plain file holds for it compressed, wherever it is entered."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import struct
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.devices import Device
from shardmill.core.errors import SourceError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.run.planner import make_plan
from shardmill.sources import Fields, SourceStat, count_lines, discover, open_source
from shardmill.sources.compressed import entries
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_spec
from tests.support.sources import FIELDS, NEAR_ROOTS, WRITERS, Row, memory_root, put, read_all, rows_strategy, s3_root

Pack = Callable[[bytes], bytes]


def zstd_frame(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


class _Kept(io.BytesIO):
    """Closing the stream that writes here leaves the bytes."""

    def close(self) -> None:
        pass


def zstd_frame_of_unknown_size(data: bytes) -> bytes:
    out = _Kept()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue()


def bgzf_block(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


def in_pieces(pack: Pack, size: int) -> Pack:
    return lambda data: b"".join(pack(data[i : i + size]) for i in range(0, len(data), size)) or pack(b"")


BGZF_END = bgzf_block(b"")
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"

PACKERS: dict[str, tuple[str, Pack]] = {
    "gzip": ("gz", gzip.compress),
    "gzip of members": ("gz", in_pieces(gzip.compress, 700)),
    "bgzf": ("gz", lambda data: in_pieces(bgzf_block, 500)(data) + BGZF_END),
    "gzip after bgzf": ("gz", lambda data: in_pieces(bgzf_block, 500)(data[:2000]) + gzip.compress(data[2000:])),
    "zstd": ("zst", zstd_frame),
    "zstd frames": ("zst", in_pieces(zstd_frame, 500)),
    "zstd frames of unknown size": ("zst", in_pieces(zstd_frame_of_unknown_size, 500)),
    "zstd after a skippable frame": ("zst", lambda data: SKIPPABLE + in_pieces(zstd_frame, 900)(data)),
    "bzip2": ("bz2", bz2.compress),
    "bzip2 streams": ("bz2", in_pieces(bz2.compress, 800)),
    "xz": ("xz", lzma.compress),
    "xz streams": ("xz", lambda data: in_pieces(lzma.compress, 800)(data) + b"\0" * 8),
}
CUT_SMALL = ["bgzf", "zstd frames", "zstd frames of unknown size", "zstd after a skippable frame"]


@pytest.fixture(autouse=True)
def small_spacing(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small files are entered as large ones are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(entries, "ENTRIES_FROM_BYTES", 1)
    monkeypatch.setattr(entries, "SPACING_BYTES", 400)
    monkeypatch.setattr(entries, "_MOST_ENTRIES", 10**9)


@pytest.fixture(params=NEAR_ROOTS, ids=lambda root: root.__name__)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param(tmp_path))


@pytest.fixture(params=PACKERS)
def packer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_json(rows: list[Row], newline: str, final: bool) -> bytes:
    return json.dumps(rows, indent=1).replace("\n", newline).encode() + (newline.encode() if final else b"")


PACKED_WRITERS = {**{name: WRITERS[name] for name in ("jsonl", "csv", "tsv")}, "json": as_json}


def many_rows(count: int) -> list[Row]:
    return [{"key": str(i), "body": f'text {i}, "é"\n' + "x" * (i % 50), "n": i} for i in range(count)]


@pytest.mark.parametrize("format", PACKED_WRITERS)
def test_every_row_is_read_once_in_order(root: str, format: str, packer: str) -> None:
    ending, pack = PACKERS[packer]
    rows = many_rows(200)
    for i, part in enumerate((rows[:150], rows[150:])):
        put(root, f"{i}.{format}.{ending}", pack(PACKED_WRITERS[format](part, "\r\n", i == 0)))
    stat = discover([f"{root}/*.{format}.{ending}"], FIELDS)
    assert [f.compression for f in stat.files] == [packer.partition(" ")[0].replace("bgzf", "gzip")] * 2
    assert read_all(stat, 1000) == rows
    assert read_all(stat, 10**9) == rows
    if packer in CUT_SMALL:
        assert len(open_source(stat, FIELDS).shards(1000)) > 5


@pytest.mark.services
@pytest.mark.usefixtures("s3_server")
def test_every_row_is_read_once_from_s3(packer: str, tmp_path: Path) -> None:
    ending, pack = PACKERS[packer]
    root = s3_root(tmp_path)
    put(root, f"a.csv.{ending}", pack(WRITERS["csv"](many_rows(100), "\n", True)))
    assert read_all(discover([root], FIELDS), 1000) == many_rows(100)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows_strategy,
    target_bytes=st.integers(1, 400),
    format=st.sampled_from(list(PACKED_WRITERS)),
    newline=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
    bom=st.booleans(),
)
def test_cuts_never_lose_or_double_a_row(
    tmp_path: Path,
    packer: str,
    rows: list[Row],
    target_bytes: int,
    format: str,
    newline: str,
    final: bool,
    bom: bool,
) -> None:
    ending, pack = PACKERS[packer]
    place = tmp_path / f"{uuid.uuid4().hex}.{format}.{ending}"
    place.write_bytes(pack((b"\xef\xbb\xbf" if bom else b"") + PACKED_WRITERS[format](rows, newline, final)))
    found = read_all(discover([str(place)], FIELDS), target_bytes)
    assert found == [{**row, "body": row["body"] if str(row["body"]).strip() else None} for row in rows]


def test_text_with_nul_bytes_bom_and_crlf_is_as_in_a_plain_file(root: str, packer: str) -> None:
    ending, pack = PACKERS[packer]
    data = b"\xef\xbb\xbffirst\r\n\r\n\x00a\x00\r\n" + b"".join(b"line %d\xff\n" % i for i in range(300)) + b"\xffend"
    put(root, "plain.txt", data)
    put(root, f"packed.txt.{ending}", pack(data))
    plain, packed = (lines_of(f"{root}/{name}", 500) for name in ("plain.txt", f"packed.txt.{ending}"))
    assert packed == plain


def lines_of(place: str, target_bytes: int) -> list[tuple[int, str | None, str]]:
    fields = Fields("text")
    source = open_source(discover([place], fields), fields)
    found, before = [], 0
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            texts = batch.texts.to_pylist()
            found += [(before + n, texts[i], batch.bad.get(i, "")) for i, n in enumerate(batch.lines)]
        before += sum(batch.line_count for batch in source.read(shard))
    return found


def test_lines_are_counted(tmp_path: Path, packer: str) -> None:
    ending, pack = PACKERS[packer]
    for final in (b"", b"\n"):
        place = tmp_path / f"a.txt.{ending}"
        place.write_bytes(pack(b"a line\n" * 999 + b"the last" + final))
        stat = discover([str(place)], Fields("text"))
        assert count_lines(stat, stat.files[0]) == 1000


def read_until_error(place: str) -> str:
    with pytest.raises(SourceError) as caught:
        read_all(discover([place], FIELDS), 1000)
    return str(caught.value)


@pytest.mark.parametrize("entered", [True, False])
@pytest.mark.parametrize("cut", [1, 5, 12, 1000])
def test_a_file_that_was_cut_off_is_an_error(
    tmp_path: Path, packer: str, cut: int, entered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not entered:
        monkeypatch.setattr(entries, "ENTRIES_FROM_BYTES", 1 << 30)
    ending, pack = PACKERS[packer]
    data = pack(WRITERS["jsonl"](many_rows(400), "\n", True)).removesuffix(BGZF_END).rstrip(b"\0")
    place = tmp_path / f"a.jsonl.{ending}"
    place.write_bytes(data[:-cut])
    assert "a.jsonl" in (said := read_until_error(str(place)))
    assert "is damaged or truncated" in said


@pytest.mark.parametrize("entered", [True, False])
def test_a_changed_byte_is_an_error(
    tmp_path: Path, packer: str, entered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packer.startswith("zstd"):
        pytest.skip("a zstd frame has no checksum unless its writer wants one")
    if not entered:
        monkeypatch.setattr(entries, "ENTRIES_FROM_BYTES", 1 << 30)
    ending, pack = PACKERS[packer]
    data = bytearray(pack(WRITERS["jsonl"](many_rows(400), "\n", True)))
    data[len(data) // 2] ^= 0xFF
    place = tmp_path / f"a.jsonl.{ending}"
    place.write_bytes(data)
    assert "is damaged or truncated" in read_until_error(str(place))


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "xz"])
def test_rubbish_behind_the_end_is_an_error(tmp_path: Path, ending: str) -> None:
    pack = {"gz": gzip.compress, "zst": zstd_frame, "bz2": bz2.compress, "xz": lzma.compress}[ending]
    place = tmp_path / f"a.jsonl.{ending}"
    place.write_bytes(pack(WRITERS["jsonl"](many_rows(400), "\n", True)) + b"rubbish")
    assert "is damaged or truncated" in read_until_error(str(place))


def test_a_compressed_file_without_the_name_of_one_is_read(tmp_path: Path, packer: str) -> None:
    if "skippable" in packer:
        pytest.skip("its first bytes are plain text too, so the name has to say it")
    place = tmp_path / "a.jsonl"
    place.write_bytes(PACKERS[packer][1](WRITERS["jsonl"](many_rows(50), "\n", True)))
    assert read_all(discover([str(place)], FIELDS), 1000) == many_rows(50)


def test_empty_content_is_no_rows(tmp_path: Path, packer: str) -> None:
    ending, pack = PACKERS[packer]
    (tmp_path / f"a.jsonl.{ending}").write_bytes(pack(b""))
    with pytest.raises(SourceError, match="no rows"):
        discover([str(tmp_path)], FIELDS)
    (tmp_path / f"b.jsonl.{ending}").write_bytes(pack(WRITERS["jsonl"](many_rows(3), "\n", True)))
    assert read_all(discover([str(tmp_path)], FIELDS), 1000) == many_rows(3)


def test_parquet_inside_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(WRITERS["parquet"](many_rows(3), "\n", True)))
    with pytest.raises(SourceError, match="parquet compressed with gzip is not supported"):
        discover([str(tmp_path / "a.parquet.gz")], FIELDS)


def write_gzip(folder: Path, count: int = 20_000) -> Path:
    place = folder / "a.jsonl.gz"
    rows = ({"id": f"k{i}", "text": f"text {i} {hashlib.md5(str(i).encode()).hexdigest()}"} for i in range(count))
    place.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), 1))
    return place


@pytest.mark.parametrize("make_root", [str, memory_root])
def test_plain_gzip_is_entered_by_an_index(tmp_path: Path, make_root: Callable[[Path], str]) -> None:
    data = write_gzip(tmp_path).read_bytes()
    root = make_root(tmp_path)
    put(root, "a.jsonl.gz", data)
    fields = Fields("text", id=("id",))
    stat = discover([f"{root}/a.jsonl.gz"], fields)
    assert stat.files[0].unpacked_bytes == len(gzip.decompress(data))
    assert len(stat.files[0].entries) > 10
    assert len(open_source(stat, fields).shards(1000)) > 20
    found = read_all(stat, 10_000, fields)
    assert [row["id"] for row in found] == [f"k{i}" for i in range(20_000)]
    assert found[::-1] == read_backwards(stat, fields)


def read_backwards(stat: SourceStat, fields: Fields) -> list[dict[str, Any]]:
    source = open_source(stat, fields)
    found = []
    for shard in reversed(source.shards(100_000)):
        rows = [(key, text) for b in source.read(shard) for key, text in zip(b.kept["id"], b.texts, strict=True)]
        found += [{"id": key.as_py(), "body": text.as_py()} for key, text in reversed(rows)]
    return found


def test_the_index_is_in_the_run_for_workers_elsewhere(tmp_path: Path) -> None:
    source = write_gzip(tmp_path)
    spec = fake_spec(source, shard_bytes=100_000)
    plan = make_plan(spec, [Device("cpu", "cpu")])
    ledger = Ledger(tmp_path / "run")
    found = ledger.create(plan)
    Path(plan.stat.files[0].index).unlink()
    assert found.stat.files[0].index.startswith(str(tmp_path / "run" / "index"))
    fields = Fields("text", id=("id",))
    assert len(read_all(found.stat, 100_000, fields)) == 20_000


def test_a_run_over_compressed_files_is_proved_and_resumed(tmp_path: Path) -> None:
    source = write_gzip(tmp_path, 12_000)
    spec = fake_spec(source, shard_bytes=100_000)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert run.status().shards > 3
    assert run.verify().verified
    assert run.table().column("id").to_pylist() == [f"k{i}" for i in range(12_000)]
    again = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert again.status().rows == 12_000
    start(spec, tmp_path / "run", fresh=True, engine=InProcessEngine())


def test_an_index_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gzip(tmp_path)
    fields = Fields("text", id=("id",))
    seen: list[tuple[float, str]] = []
    monkeypatch.setattr(entries, "_TELL_EVERY_BYTES", 1)
    first = discover([str(source)], fields, None, lambda share, what: seen.append((share, what)))
    assert seen == sorted(seen)
    assert {what for _, what in seen} == {"a.jsonl.gz"}
    monkeypatch.setattr("shardmill.sources.compressed.gzip.build_index", None)
    assert discover([str(source)], fields) == first


def test_a_plan_remembers_how_a_file_is_entered(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl.zst"
    place.write_bytes(PACKERS["zstd frames"][1](WRITERS["jsonl"](many_rows(300), "\n", True)))
    spec = make_spec({"source": str(place), "text": "body", "task": "shardmill.testing:FakeTask"}, {})
    plan = make_plan(spec, [Device("cpu", "cpu")])
    assert len(plan.stat.files[0].entries) > 3
    assert Plan.from_json(plan.encode()) == plan


def test_many_small_files_are_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRIES_FROM_BYTES", 1 << 20)
    for i in range(5):
        data = PACKERS["zstd frames"][1](WRITERS["jsonl"](many_rows(100), "\n", True))
        (tmp_path / f"{i}.jsonl.zst").write_bytes(data)
    stat = discover([str(tmp_path)], FIELDS)
    assert all(f.streamed for f in stat.files)
    assert len(open_source(stat, FIELDS).shards(100)) == 5
    assert read_all(stat, 100) == many_rows(100) * 5
