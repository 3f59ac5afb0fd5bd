"""Lance datasets, read by their own library at the version that was the latest when the run was planned.

A shard is a range of the rows that this version has: those of some fragments, or of a part of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from shardmill.core.errors import SourceError, StoreError
from shardmill.core.extras import missing_package
from shardmill.sources.arrow.messages import Message
from shardmill.sources.arrow.rows import RowMaker, check_schema, column_types, plain_schema
from shardmill.sources.arrow.source import cut_batches
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.files import changed, empty_source, file_name
from shardmill.store import is_url, open_store
from shardmill.store.clients import options_for_others

FORMAT, SCHEME = "lance", "lance:"
_VERSIONS = "_versions"
# Its own is 2 GiB, which would hold that much of a fragment ahead.
_AHEAD_BYTES, _AHEAD_BATCHES = 32 << 20, 2
# Each batch of the library has a price, so that they are larger than ours.
_SCANNED_ROWS = 8 * BATCH_ROWS


class Fragment(NamedTuple):
    """Some rows of a dataset, which lie in files of their own: what reads them, their number, and their size."""

    fragment: Any
    rows: int
    size_bytes: int


class LanceSource(Source):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        self._stat, self._fields = stat, fields
        self._rows = RowMaker(stat, fields, max_item_bytes)

    def shards(self, target_bytes: int) -> list[Shard]:
        found: list[Shard] = []
        for number, file in enumerate(self._stat.files):
            sizes = [Message(0, each.size_bytes, each.rows, is_batch=True) for each in open_fragments(file)]
            for span, weight in cut_batches(sizes, target_bytes, sys.maxsize):
                found.append(Shard(len(found), number, *span, weight))
        return found

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        file, rows_done, first = self._stat.files[shard.file], 0, 0
        weight = shard.weight_bytes / (shard.stop - shard.start)
        for each in open_fragments(file):
            start, stop = max(shard.start - first, 0), min(shard.stop - first, each.rows)
            first += each.rows
            if start < stop:
                for batch in _scan(file, each, start, stop, self._rows.names):
                    yield self._rows.items(batch, rows_done, weight, shard.start, None)
                    rows_done += batch.num_rows
        if rows_done != shard.stop - shard.start:
            raise changed(file, f"it has {rows_done:,} of {shard.stop - shard.start:,} rows")


def _scan(file: SourceFile, each: Fragment, start: int, stop: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    fitting = max(1, BATCH_BYTES * each.rows // each.size_bytes)
    at_once = min(BATCH_ROWS, fitting)
    if not names:
        for at in range(start, stop, BATCH_ROWS):
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * min(BATCH_ROWS, stop - at), pa.struct([])))
        return
    with _explained(file.place, f"at version {file.tag}"):
        scanner = each.fragment.scanner(
            columns=names,
            offset=start,
            limit=stop - start,
            batch_size=min(_SCANNED_ROWS, fitting),
            batch_readahead=_AHEAD_BATCHES,
            io_buffer_size=_AHEAD_BYTES,
        )
        for batch in scanner.to_batches():
            for at in range(0, batch.num_rows, at_once):
                yield batch.slice(at, at_once)


def discover(places: Sequence[str], fields: Fields) -> SourceStat:
    """Each dataset counts as a file, with its version as the tag."""
    files, columns = [], dict[str, str]()
    for place in map(_locate, places):
        dataset = _open(place)
        fragments = _list_fragments(place, dataset)
        version = str(dataset.version)
        file = SourceFile(place, sum(each.size_bytes for each in fragments), version, _identify(fragments))
        check_schema(file, dataset.schema, fields)
        if fragments and not columns:
            columns = column_types(file, dataset.schema, fields)
        files.append(file)
    if not any(file.size_bytes for file in files):
        raise empty_source(files)
    return SourceStat(FORMAT, tuple(files), columns)


def list_columns(places: Sequence[str], query: str) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in plain_schema(_open(_locate(places[0])).schema)}


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return LanceSource(stat, fields, max_item_bytes)


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    return sum(each.rows for each in open_fragments(file))


@lru_cache(8)
def open_fragments(file: SourceFile) -> list[Fragment]:
    """The fragments of the version that was planned."""
    found = _list_fragments(file.place, _open(file.place, int(file.tag)))
    if _identify(found) != file.edges:
        raise changed(file, f"version {file.tag} is another one")
    return found


def _list_fragments(place: str, dataset: Any) -> list[Fragment]:
    with _explained(place, f"at version {dataset.version}"):
        return [
            Fragment(each, rows, max(1, sum(file.file_size_bytes or rows for file in each.metadata.files)))
            for each in dataset.get_fragments()
            if (rows := each.count_rows())
        ]


def _identify(fragments: Sequence[Fragment]) -> str:
    """What says whether fragments have the same rows: names of files are drawn by chance, and no file is rewritten."""
    told = [[[file.path for file in each.fragment.metadata.files], each.rows] for each in fragments]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _locate(place: str) -> str:
    """The path or URL of a dataset; refuses a place that has none."""
    place = place.removeprefix(SCHEME).removeprefix("file://").rstrip("/")
    if not is_url(place):
        path = Path(place).expanduser().absolute()
        if not (path / _VERSIONS).is_dir():
            what = (
                "is a file" if path.is_file() else f"has no {_VERSIONS} folder" if path.exists() else "does not exist"
            )
            raise SourceError(f"{place} is no Lance dataset: it {what}.", hint="Name the folder of the dataset.")
        return str(path)
    if not place.startswith("s3://"):
        raise SourceError(
            f"{place}: Lance datasets are read from a disk or s3://, not from {place.partition('://')[0]}://.",
            hint="Copy it, or give its rows from Python: shardmill.embed(lance.dataset(…).to_table())",
        )
    if next(iter(open_store(place).list(f"{_VERSIONS}/")), None) is None:
        raise SourceError(f"{place}: there is no Lance dataset.", hint="Check the bucket and the name.")
    return place


def _open(place: str, version: int | None = None) -> Any:
    lance = import_lance()
    with _explained(place, "" if version is None else f"at version {version}"):
        return lance.dataset(place, version=version, storage_options=options_for_others(place) or None)


def import_lance() -> Any:
    try:
        import lance
    except ImportError as error:
        raise missing_package("pylance") from error
    return lance


@contextlib.contextmanager
def _explained(place: str, at: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise _explain(place, at, error) from error
    except BaseException as error:
        # Rust's own way to fail, on files that are damaged; Python takes it for an end of the process.
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise _explain(place, at, error) from error


def _explain(place: str, at: str, error: BaseException) -> SourceError | StoreError:
    """What the library says, in a line: it adds where in its own code it was."""
    reason = str(error).partition("\n")[0].partition(", /")[0].rstrip(".")
    if "not found" in reason.lower() or "no such file" in reason.lower():
        return SourceError(
            f"{file_name(place)} is no longer there {at}: {reason}.",
            hint="A version that was cleaned up cannot be read. Start over with --fresh, and keep it during the run.",
        )
    if is_url(place):
        return StoreError(f"{place}: {reason}.", hint="Run the same command again: it resumes.")
    return SourceError(
        f"{file_name(place)} cannot be read {at}: {reason}.", hint="Restore its files, or write it again."
    )
