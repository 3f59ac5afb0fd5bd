"""Objects as sources: thousands of them, large ones in little memory, odd names, other people's buckets, plain HTTP."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from shardmill.core.errors import SourceError, StoreError
from shardmill.run import start
from shardmill.sources import Fields, discover, open_source
from shardmill.store import open_store
from shardmill.testing import InProcessEngine
from tests.support.badline import BadLine
from tests.support.corpora import fake_rows, fake_spec

pytestmark = pytest.mark.services

TEXT = Fields("text")


def read_texts(place: str) -> list[str]:
    source = open_source(discover([place], TEXT), TEXT)
    return [
        text for shard in source.shards(1 << 20) for batch in source.read(shard) for text in batch.texts.to_pylist()
    ]


def test_every_row_of_2500_objects_comes_once(folder: str) -> None:
    """More than two pages of a listing, and more shards than a claim may list each time."""
    rows = fake_rows(2500)
    store = open_store(f"{folder}/source")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: store.put(f"{i:04d}.jsonl", json.dumps(rows[i]).encode()), range(len(rows))))
    run = start(fake_spec(f"{folder}/source", shard_bytes=100), "memory://thousands", engine=InProcessEngine())
    assert len(run.plan.stat.files) == len(rows)
    assert len(run.plan.shards) > 1000
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in rows]


@pytest.mark.parametrize("kind", ["CSV", "Parquet", "ORC"])
def test_the_objects_of_an_inventory(folder: str, kind: str) -> None:
    store, bucket = open_store(folder), folder.removeprefix("s3://").partition("/")[0]
    for name in ("a 1.jsonl", "b.jsonl", "old.jsonl"):
        store.put(name, json.dumps({"text": name}).encode())
    entries = {entry.key: entry for entry in store.list()}
    prefix = folder.removeprefix(f"s3://{bucket}/")
    rows = [
        {"bucket": bucket, "key": f"{prefix}/{name}", "is_latest": name != "old.jsonl", "is_delete_marker": False}
        | {"size": entries[name].size, "e_tag": entries[name].tag.strip('"')}
        for name in entries
    ]
    table, data = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    if kind == "CSV":
        text = "".join(
            ",".join(f'"{quote_plus(str(value)) if name == "key" else value}"' for name, value in row.items()) + "\n"
            for row in rows
        )
        data.write(gzip.compress(text.encode()))
    elif kind == "ORC":
        orc.write_table(table, data)
    else:
        pq.write_table(table, data)
    store.put("inventory/1", bytes(data.getvalue()))
    told = {
        "destinationBucket": f"arn:aws:s3:::{bucket}",
        "fileFormat": kind,
        "fileSchema": "Bucket, Key, IsLatest, IsDeleteMarker, Size, ETag",
        "files": [{"key": f"{prefix}/inventory/1"}],
    }
    store.put("inventory/manifest.json", json.dumps(told).encode())
    assert read_texts(f"manifest:{folder}/inventory/manifest.json") == ["a 1.jsonl", "b.jsonl"]


_READ_ALL = """
import sys
from shardmill.sources import Fields, discover, open_source
source = open_source(discover([sys.argv[1]], Fields("text")), Fields("text"))
rows = sum(len(batch) for shard in source.shards(1 << 40) for batch in source.read(shard))
print(rows, next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz"])
def test_memory_does_not_grow_with_the_object(folder: str, kind: str) -> None:
    line = json.dumps({"text": "x" * 980}).encode() + b"\n"
    peaks = []
    # Both are larger than what is read ahead.
    for rows in (40_000, 120_000):
        data = line * rows
        open_store(folder).put(f"{rows}.{kind}", gzip.compress(data, 1) if kind == "jsonl.gz" else data)
        said = subprocess.run(
            [sys.executable, "-c", _READ_ALL, f"{folder}/{rows}.{kind}"], capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(said[0]) == rows
        peaks.append(int(said[1]) / 1024)
    assert peaks[1] - peaks[0] < 16, peaks


def test_keys_are_taken_as_they_are(folder: str) -> None:
    place = f"{folder}/a dir %41#x"
    names = ["a b.jsonl", "é+&=.jsonl", "what #1 %41.jsonl"]
    for name in names:
        open_store(place).put(name, json.dumps({"text": name}).encode())
    assert sorted(read_texts(place)) == sorted(names)
    assert [read_texts(f"{place}/{name}") for name in names] == [[name] for name in names]


def test_requester_pays(line: BadLine, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(folder).put("items.jsonl", b'{"text": "a"}\n')
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    line.headers.clear()
    assert read_texts(f"{folder}/items.jsonl") == ["a"]
    assert line.headers
    assert all(headers.get("x-amz-request-payer") == "requester" for headers in line.headers)


def test_without_a_signature(line: BadLine, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public bucket needs no credentials; this server has none that is public, and says so."""
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="access is denied"):
        read_texts(f"{folder}/items.jsonl")
    assert line.headers
    assert not any("authorization" in headers for headers in line.headers)


def test_ranges_are_asked_for_by_their_tag(line: BadLine, folder: str) -> None:
    open_store(folder).put("items.jsonl", b'{"text": "a"}\n')
    line.headers.clear()
    assert read_texts(f"{folder}/items.jsonl") == ["a"]
    ranged = [headers for headers in line.headers if "range" in headers]
    assert ranged
    assert all(headers["if-match"].startswith('"') for headers in ranged)


def test_plain_http(folder: str) -> None:
    open_store(folder).put("items.jsonl.gz", gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))
    address = f"{os.environ['WEED_FILER_URL']}/buckets/{folder.removeprefix('s3://')}/items.jsonl.gz"
    assert read_texts(address) == ["a", "b"]
    with pytest.raises(SourceError, match="no such file"):
        read_texts(f"{address}.xz")
    with pytest.raises(SourceError, match=r"items\.jsonl\.gz: URLs with a query are not read"):
        read_texts(f"{address}?X-Amz-Signature=secret")
