"""What the conformance suite is run with: files of every format, packed in every way, for every kind of store."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from pyarrow import orc

from shardmill.sources.formats import find_format
from tests.support.mds import encode_shard

ROWS = [{"id": f"i{n}", "body": f"The text of item {n}, with ünïcode, {'long ' * (n % 40)}end."} for n in range(60)]


def write_avro(path: Path) -> None:
    import fastavro

    schema = {"type": "record", "name": "item", "fields": [{"name": n, "type": "string"} for n in ("id", "body")]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, ROWS, "deflate", sync_interval=500)


def write_sheet(path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in (["id", "body"], *([row["id"], row["body"]] for row in ROWS)):
        book.active.append(row)
    with path.open("wb") as file:
        book.save(file)


def write_samples(path: Path) -> None:
    """A tar with the samples of a WebDataset: a text, an object, and a picture that nobody reads."""
    with tarfile.open(path, "w") as archive:
        for number, row in enumerate(ROWS):
            members = {"body": row["body"].encode(), "json": json.dumps({"id": row["id"]}).encode(), "jpg": b"\xff\xd8"}
            for suffix, data in members.items():
                about = tarfile.TarInfo(f"{number:06}.{suffix}")
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))


WRITE: dict[str, Callable[[Path], Any]] = {
    "jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
    "csv": lambda path: path.write_text("id,body\n" + "".join(f'{row["id"]},"{row["body"]}"\n' for row in ROWS)),
    "tsv": lambda path: path.write_text("id\tbody\n" + "".join(f"{row['id']}\t{row['body']}\n" for row in ROWS)),
    "json": lambda path: path.write_text(json.dumps(ROWS)),
    "parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7),
    "orc": lambda path: orc.write_table(pa.Table.from_pylist(ROWS), path),
    "avro": write_avro,
    "arrow": lambda path: feather.write_feather(pa.Table.from_pylist(ROWS), str(path), chunksize=7),
    "pickle": lambda path: path.write_bytes(pickle.dumps(ROWS)),
    "excel": write_sheet,
    "webdataset": write_samples,
    "mds": lambda path: path.write_bytes(encode_shard({"id": "str", "body": "str"}, ROWS)[0]),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
# Kinds of stores, as the fixture `place` names them, and what users write.
STORES = {"local": "a disk", "memory": "`memory://`", "s3": "`s3://`", "gs": "`gs://`", "az": "`az://`"}


def packings(format: str) -> list[str]:
    """The suffixes of compression that files of a format are checked with; "" is none."""
    return ["", *PACK] if find_format(format).compressible else [""]
