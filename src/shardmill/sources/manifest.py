"""A list of files as a source: `manifest:files.txt` with one address a line, or the manifest.json of an S3 inventory.

Millions of objects are found without listing a bucket. A line is a path or a URL, without wildcards; a path begins at
the manifest's folder. An inventory also tells sizes and tags, so that nothing is asked of any object.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from shardmill.core.errors import SourceError
from shardmill.sources.files import read_object, stat_file
from shardmill.store import Entry, is_url

MANIFEST = "manifest:"
# Requests for sizes and tags at a time.
_AT_ONCE = 32
_TEXT = "Write one path or URL a line."


def read_manifest(place: str) -> Iterator[tuple[str, Entry]]:
    """The addresses that a manifest lists, in its order, and what is known of each."""
    place = place.removeprefix(MANIFEST)
    if not is_url(place):
        place = str(Path(place).expanduser().absolute())
    if stat_file(place) is None:
        raise SourceError(f"{place}: no such list of files.", hint="Check the path after manifest:.")
    data = read_object(place)
    if data.lstrip()[:1] == b"{":
        yield from _read_inventory(place, data)
        return
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"{place} is not a list of files: it is not valid UTF-8.", hint=_TEXT) from error
    folder = place.rpartition("/")[0]
    named = [line.strip() for line in lines if line.strip()]
    if not named:
        raise SourceError(f"{place} lists no file.", hint=_TEXT)
    addresses = [line if is_url(line) or line.startswith("/") else f"{folder}/{line}" for line in named]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line, (address, entry) in enumerate(zip(addresses, pool.map(stat_file, addresses), strict=True), 1):
            if entry is None:
                raise SourceError(
                    f"{address} is not there: line {line:,} of {place} names it.", hint="Write the list again."
                )
            yield address, entry


def _read_inventory(place: str, data: bytes) -> Iterator[tuple[str, Entry]]:
    try:
        told = json.loads(data)
        format, files = str(told["fileFormat"]), [str(file["key"]) for file in told["files"]]
        columns = [name.strip() for name in str(told["fileSchema"]).split(",")]
        bucket = str(told["destinationBucket"]).rpartition(":")[2]
    except (ValueError, LookupError, TypeError) as error:
        raise SourceError(
            f"{place} is JSON, but not the manifest of an S3 inventory ({type(error).__name__}).", hint=_TEXT
        ) from error
    for key in files:
        file = f"s3://{bucket}/{key}"
        for row in (
            _read_csv(read_object(file), columns) if format == "CSV" else _read_table(read_object(file), format, file)
        ):
            if str(row.get("IsLatest", "true")).lower() == "true" and str(row.get("IsDeleteMarker")).lower() != "true":
                size, tag = int(row.get("Size") or 0), str(row.get("ETag") or "")
                yield f"s3://{row['Bucket']}/{row['Key']}", Entry(str(row["Key"]), size, tag and f'"{tag}"')


def _read_csv(data: bytes, columns: list[str]) -> Iterator[dict[str, Any]]:
    for values in csv.reader(io.StringIO(gzip.decompress(data).decode())):
        row = dict(zip(columns, values, strict=False))
        # Keys in these files are encoded as in a URL.
        yield {**row, "Key": unquote_plus(row["Key"])}


def _read_table(data: bytes, format: str, place: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    if format == "Parquet":
        from pyarrow.parquet import read_table
    elif format == "ORC":
        from pyarrow.orc import read_table
    else:
        raise SourceError(f"{place}: an inventory in {format} is not read.", hint="Make it in CSV, ORC or Parquet.")
    names = {"bucket": "Bucket", "key": "Key", "size": "Size", "e_tag": "ETag"}
    names |= {"is_latest": "IsLatest", "is_delete_marker": "IsDeleteMarker"}
    for row in read_table(pa.BufferReader(data)).to_pylist():
        yield {names.get(name, name): value for name, value in row.items()}
