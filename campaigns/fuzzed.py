"""What is fuzzed: every parser, with valid files to begin from and a way to use a file as a run would."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc
from pyiceberg.catalog import load_catalog

from shardmill.core.errors import ShardmillError
from shardmill.engines.ssh.cluster import read_cluster
from shardmill.ledger import Ledger, segment
from shardmill.plan.spec import make_execution, make_spec, read_spec
from shardmill.run import Run, start
from shardmill.run.planner import result_schema
from shardmill.run.status.shard import describe_shard
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.compressed import entries
from shardmill.sources.compressed.gzip import parse_index
from shardmill.testing import InProcessEngine
from shardmill.worker.steps import begin_again, finish
from tests.support.mds import encode_shard

ROWS = [{"id": f"k{i}", "text": f"text {i} é" + "x" * (i % 7), "n": i} for i in range(12)]
FIELDS = Fields("text", ("id",), ("n",))
_DOCUMENT = Fields("text", ("file",))
_TEXTS = {f"folder/{row['id']}.txt": str(row["text"]) * 20 for row in ROWS}


@dataclass(frozen=True, slots=True)
class Parser:
    """`file` is the name of the fuzzed file; `use` reads it as a run does, in a folder of its own."""

    name: str
    file: str
    seeds: Callable[[Path], list[bytes]]
    use: Callable[[Path], None]


class RowsDiffer(Exception):
    """The same file gave other rows when it was cut elsewhere."""


def read_source(path: Path, fields: Fields = FIELDS, format: str | None = None) -> None:
    """Read a file twice, as one shard and as many: the rows are the same, unless the file is refused."""
    stat = discover([str(path)], fields, format)
    found: list[Any] = []
    for target_bytes in (1 << 40, max(40, stat.size_bytes // 50)):
        try:
            source = open_source(stat, fields)
            shards = source.shards(target_bytes)
            rows = [row for shard in shards for batch in source.read(shard) for row in _rows(batch)]
        except ShardmillError as error:
            found.append(error)
        else:
            found.append(rows)
    refused = [each for each in found if isinstance(each, ShardmillError)]
    if not refused and found[0] != found[1]:
        raise RowsDiffer(f"as one shard: {str(found[0])[:300]} … as many: {str(found[1])[:300]}")
    if refused:
        raise refused[0]


def _rows(batch: Any) -> list[Any]:
    assert len(batch) == batch.kept.num_rows == len(batch.lines)
    assert {i for i, text in enumerate(batch.texts.to_pylist()) if text is None} == set(batch.bad)
    return list(zip(batch.texts.to_pylist(), map(str, batch.kept.to_pylist()), strict=True))


def _lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _csv(mark: str) -> bytes:
    rows = [["id", "text", "n"], *([r["id"], f'"{r["text"]}{mark}\n""quoted"""', str(r["n"])] for r in ROWS)]
    return "".join(mark.join(row) + "\r\n" for row in rows).encode()


def _table() -> pa.Table:
    return pa.Table.from_pylist(ROWS)


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(_table(), out, row_group_size=4)
    return out.getvalue()


def _orc() -> bytes:
    out = io.BytesIO()
    orc.write_table(_table(), out, stripe_size=1)
    return out.getvalue()


def _avro(codec: str) -> bytes:
    names = {"id": "string", "text": "string", "n": ["null", "long"]}
    schema = {"type": "record", "name": "row", "fields": [{"name": k, "type": v} for k, v in names.items()]}
    out = io.BytesIO()
    fastavro.writer(out, schema, ROWS, codec=codec, sync_interval=80)
    return out.getvalue()


def _samples() -> bytes:
    """A WebDataset: the text and the other fields of each row are members."""
    others = {f"{row['id']}.json": json.dumps({"id": row["id"], "n": row["n"]}) for row in ROWS}
    texts = {f"{row['id']}.txt": row["text"] for row in ROWS}
    return _tar("w", dict(sorted({**texts, **others}.items())))


def _arrow(kind: Callable[..., Any]) -> bytes:
    out = io.BytesIO()
    with kind(out, _table().schema) as writer:
        writer.write_table(_table(), max_chunksize=4)
    return out.getvalue()


def _many() -> bytes:
    return _lines([{**row, "id": f"{i}", "text": "long " * 400} for i in range(10) for row in ROWS])


def _excel() -> bytes:
    book = openpyxl.Workbook()
    for row in (list(ROWS[0]), *(list(row.values()) for row in ROWS)):
        book.active.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _TEXTS.items():
            archive.writestr(name, text)
    return out.getvalue()


def _tar(mode: str, members: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def _bgzf() -> bytes:
    data, out = _lines(), b""
    for at in range(0, len(data), 200):
        packed = gzip.compress(data[at : at + 200], mtime=0)
        body = packed[10:]
        size = 18 + len(body) - 1
        out += packed[:3] + b"\x04" + packed[4:10] + b"\x06\0BC\x02\0" + size.to_bytes(2, "little") + body
    return out


def _zstd(data: bytes, step: int) -> bytes:
    codec = pa.Codec("zstd")
    return b"".join(bytes(codec.compress(data[at : at + step])) for at in range(0, len(data), step))


def _gzip_index(folder: Path) -> list[bytes]:
    path = folder / "many.jsonl.gz"
    # Text that packs badly has several blocks, where seek points may be.
    words = [hashlib.sha256(str(i).encode()).hexdigest() * 4 for i in range(2_000)]
    path.write_bytes(gzip.compress(_lines([{**ROWS[0], "text": word} for word in words]), mtime=0))
    (file,) = discover([str(path)], FIELDS).files
    return [Path(file.index).read_bytes()]


@contextmanager
def seeking_everywhere() -> Iterator[None]:
    """Look for seek points in small files too."""
    before = entries.ENTRIES_FROM_BYTES, entries.SPACING_BYTES
    entries.ENTRIES_FROM_BYTES, entries.SPACING_BYTES = 1, 1
    try:
        yield
    finally:
        entries.ENTRIES_FROM_BYTES, entries.SPACING_BYTES = before


@contextmanager
def sealing_few() -> Iterator[None]:
    """Roll up two shards instead of a thousand."""
    before, segment.SEALED_AT_ONCE = segment.SEALED_AT_ONCE, 2
    try:
        yield
    finally:
        segment.SEALED_AT_ONCE = before


def make_run(folder: Path) -> Path:
    """A finished run of three shards with one bad row, rolled up, and what a dead worker leaves: lease and suspects."""
    source = folder / "items.jsonl"
    source.write_bytes(_lines() + b"not JSON\n")
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    spec = make_spec(work, {"shard_bytes": 250, "max_errors": "5", "device": "cpu"})
    start(spec, folder / "run", engine=InProcessEngine())
    ledger = Ledger(folder / "run")
    plan = ledger.plan()
    with sealing_few():
        ledger.segments.catch_up(len(plan.shards))
    ledger.store.put(ledger.folder.key("rolled", 0), json.dumps({"workers": ledger.workers.read()}).encode())
    ledger.store.put(ledger.folder.key("leases", 1), _LEASE)
    ledger.store.put(ledger.folder.key("suspects", 1), b'{"rows":[1,2],"strikes":1,"probes":0,"poison":[]}')
    return folder / "run"


_LEASE = b'{"worker":"w","host":"elsewhere","pid":1,"since":0.0,"until":1.0,"crashes":1,"shadow":"","due":0.0}'


def use_run(place: Path) -> None:
    """Everything that is read of a run folder, and what a worker would do next."""
    run = Run(place)
    ledger, plan = run.ledger, run.plan
    run.status()
    list(run.errors())
    run.cost()
    for shard in range(min(2, len(plan.shards))):
        describe_shard(ledger, plan, shard)
    execution = make_execution(ledger.execution())
    with sealing_few():
        ledger.segments.believe_full_windows(len(plan.shards))
        ledger.segments.read(len(plan.shards))
        ledger.segments.seal()
    ledger.workers.roll_up()
    ledger.state.is_wanted(), ledger.notes.forecast(), ledger.notes.placement()
    ledger.suspects.read()
    claim = ledger.leases.take_over([1], "heir", 5.0, 1e9, 0.0)
    if claim is not None:
        ledger.leases.renew(claim, "heir", 5.0)
        ledger.leases.release(claim, "heir")
    for _ in run.batches():
        pass
    run.verify(sample=4)
    result_schema(plan)
    ledger.steps.read()
    begin_again(ledger, plan, execution)
    stop = threading.Event()
    # Whoever waits for another's step looks at it again and again.
    threading.Timer(0.2, stop.set).start()
    finish(ledger, plan, execution, "heir", stop=stop)
    for change in (ledger.state.stop, ledger.state.want):
        change("heir")


def _record(name: str, find: str) -> Parser:
    """A file of a run folder: the whole run is used, with this file damaged."""

    def seeds(folder: Path) -> list[bytes]:
        run = folder / "run" if (folder / "run").exists() else make_run(folder)
        return [next(iter(sorted(run.glob(find)))).read_bytes()]

    def use(path: Path) -> None:
        run = path.parent / "run"
        target = next(iter(sorted(run.glob(find))))
        before = _files(run)
        target.write_bytes(path.read_bytes())
        try:
            use_run(run)
        finally:
            after = _files(run)
            for added in after.keys() - before.keys():
                added.unlink()
            for each, data in before.items():
                if after.get(each) != data:
                    each.write_bytes(data)

    return Parser(name, f"{name}.json", seeds, use)


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _delta_log(folder: Path) -> list[bytes]:
    """The second commit of a table of two files: it removes one and adds another."""
    table = folder / "table"
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    for name in ("a", "b", "c"):
        (table / f"{name}.parquet").write_bytes(_parquet())
    added = [{"add": {"path": f"{name}.parquet", "size": 1}} for name in "ab"]
    first = [{"protocol": {"minReaderVersion": 1}}, {"metaData": {"id": "t", "configuration": {}}}, *added]
    second = [
        {"protocol": {"minReaderVersion": 3, "readerFeatures": ["timestampNtz"]}},
        {"remove": {"path": "a.parquet"}},
        {"add": {"path": "c.parquet", "size": 1, "deletionVector": None}},
    ]
    _delta_commit(folder, 0).write_bytes(_lines(first))
    return [_lines(second)]


def _use_delta_log(path: Path) -> None:
    _delta_commit(path.parent, 1).write_bytes(path.read_bytes())
    read_source(path.parent / "table")


def _delta_commit(folder: Path, version: int) -> Path:
    return folder / "table" / "_delta_log" / f"{version:020d}.json"


def _iceberg(found: str) -> Callable[[Path], list[bytes]]:
    """A file of a table that pyiceberg wrote."""

    def seeds(folder: Path) -> list[bytes]:
        if not (folder / "db").exists():
            catalog = load_catalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=str(folder), type="sql")
            catalog.create_namespace("db")
            catalog.create_table("db.table", _table().schema).append(_table())
        return [_of_iceberg(folder, found).read_bytes().replace(_at(folder, found), _ANYWHERE)]

    return seeds


def _at(folder: Path, found: str) -> bytes:
    """The folder as JSON names it; in Avro the lengths of names are beside them."""
    return str(folder).encode() if found.endswith(".json") else _ANYWHERE


def _of_iceberg(folder: Path, found: str) -> Path:
    return sorted((folder / "db" / "table" / "metadata").glob(found))[-1]


def _use_iceberg(found: str) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        target = _of_iceberg(path.parent, found)
        before = target.read_bytes()
        target.write_bytes(path.read_bytes().replace(_ANYWHERE, _at(path.parent, found)))
        try:
            read_source(path.parent / "db" / "table")
        finally:
            target.write_bytes(before)

    return use


def _use_spec(path: Path) -> None:
    tables = read_spec(path)
    make_spec(tables["work"], tables["execution"])


_SPEC = b"""[work]
source = ["a.jsonl", "b/*.csv"]
text = "{title}: {body}"
id = "key"
keep = ["price:double", "n"]
params = { model = "demo", dims = 16 }
[work.to]
url = "postgresql://ann@db/shop"
table = "reviews"
[execution]
engine = "slurm"
engine_options = { partition = "gpu", setup = ["module load x"] }
workers = 4
max_errors = "2%"
lease_s = 30.5
"""
_CLUSTER = b"""shared = false
known_hosts = "known"
[defaults]
user = "ann"
[[hosts]]
address = "10.0.0.7"
gpus = [0, 1]
weight = 2.0
[[hosts]]
name = "b"
port = 2222
conda = "mill"
"""


def _source(name: str, file: str, *seeds: bytes, fields: Fields = FIELDS, format: str | None = None) -> Parser:
    usual = fields is FIELDS and format is None
    use = read_source if usual else lambda path: read_source(path, fields, format)
    return Parser(name, file, lambda folder: list(seeds), use)


_ANYWHERE = b"/anywhere"
_ICEBERG = {"iceberg": "*.metadata.json", "snapshot": "snap-*.avro", "manifest": "[!s]*-m0.avro"}
# The files of a run folder that are parsed; where there are several, the first is damaged.
RECORDS = {
    "plan": "plan.json",
    "execution": "execution.json",
    "commit": "commits/000001.*.json",
    "lease": "leases/000001.*.json",
    "suspects": "suspects/000001.*.json",
    "heartbeat": "workers/*.json",
    "errors": "errors/*.jsonl",
    "state": "state.json",
    "step": "steps/sweep.*.json",
    "segment": "segments/*.json",
    "rolled": "rolled/*.json",
    "part": "parts/000001.*.parquet",
}
PARSERS = {
    parser.name: parser
    for parser in (
        _source("jsonl", "a.jsonl", _lines()),
        _source("csv", "a.csv", _csv(",")),
        _source("tsv", "a.tsv", _csv("\t")),
        Parser(
            "text", "a.txt", lambda folder: [b"one\ntwo\r\n\nthree"], lambda path: read_source(path, Fields("text"))
        ),
        _source("json", "a.json", json.dumps(ROWS, indent=1).encode(), json.dumps(ROWS).encode()),
        _source("gzip", "a.jsonl.gz", gzip.compress(_lines(), mtime=0), gzip.compress(_many(), mtime=0)),
        Parser("gzip-index", "a.gzidx", _gzip_index, lambda path: use_index(path)),
        _source("bgzf", "a.jsonl.gz", _bgzf()),
        _source("zstd", "a.jsonl.zst", _zstd(_lines(), 200), _zstd(_lines(), 1 << 20)),
        _source(
            "pickle",
            "a.pkl",
            pickle.dumps(ROWS),
            pickle.dumps(ROWS, 0),
            pickle.dumps({"id": ["a"], "text": ["b"], "n": [1]}),
        ),
        _source("arrow", "a.arrow", _arrow(pa.ipc.new_file), _arrow(pa.ipc.new_stream)),
        _source("parquet", "a.parquet", _parquet()),
        _source("excel", "a.xlsx", _excel()),
        _source("zip", "a.zip", _zip(), fields=_DOCUMENT),
        _source("tar", "a.tar", _tar("w", _TEXTS), fields=_DOCUMENT),
        _source("tar.gz", "a.tar.gz", _tar("w:gz", _TEXTS), fields=_DOCUMENT),
        _source("webdataset", "a.tar", _samples(), fields=Fields("txt", ("id",), ("n",)), format="webdataset"),
        _source("mds", "a.mds", encode_shard({"id": "str", "text": "str", "n": "int"}, ROWS)[0]),
        _source("avro", "a.avro", _avro("null"), _avro("deflate")),
        _source("orc", "a.orc", _orc()),
        Parser("delta", "1.json", _delta_log, _use_delta_log),
        *(Parser(name, f"{name}.part", _iceberg(found), _use_iceberg(found)) for name, found in _ICEBERG.items()),
        Parser("spec", "a.toml", lambda folder: [_SPEC], _use_spec),
        Parser("cluster", "cluster.toml", lambda folder: [_CLUSTER], lambda path: void(read_cluster(str(path)))),
        *(_record(name, find) for name, find in RECORDS.items()),
    )
}


def void(value: object) -> None:
    """Ignore a value."""


def use_index(path: Path) -> None:
    """Read the gzip file that the index belongs to, with this index."""
    from dataclasses import replace

    packed = path.parent / "many.jsonl.gz"
    stat = discover([str(packed)], FIELDS)
    index = parse_index(path.read_bytes())
    file = replace(stat.files[0], index=str(path), entries=index.entries, unpacked_bytes=index.unpacked_bytes)
    source = open_source(replace(stat, files=(file,)), FIELDS)
    for shard in source.shards(100_000):
        for _ in source.read(shard):
            pass
