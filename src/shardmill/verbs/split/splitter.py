"""A split from start to end, as functions and as the class `StreamingDatasetSplitter`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.core.console import Bar
from shardmill.core.errors import SourceError, SpecError, nearest
from shardmill.core.passwords import withhold
from shardmill.sources.ahead import ahead
from shardmill.sources.formats import format_names
from shardmill.store import Store, is_url, open_store
from shardmill.verbs.split.blocks import LineBlock
from shardmill.verbs.split.cutting import Piece, cut_pieces
from shardmill.verbs.split.dataset import Dataset
from shardmill.verbs.split.reading import Feed, feed_database, feed_files, feed_iterable
from shardmill.verbs.split.routing import choose_parts, route
from shardmill.verbs.split.spec import DEFAULT_ITEMS, Cut, SplitSpec
from shardmill.verbs.split.writing import ChunkWriter, OnStep

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SplitDone:
    """A complete dataset; `kept` chunks are from an earlier attempt, `was_there` if it existed already."""

    place: str
    metadata: dict[str, Any]
    kept: int = 0
    was_there: bool = False


def split(
    feed: Feed, store: Store, spec: SplitSpec, *, fresh: bool = False, quiet: bool = False, **writing: Any
) -> SplitDone:
    """Write the items of a feed as chunks. An existing dataset is kept if it is the same, and refused if not."""
    dataset = Dataset(store, spec, feed.identity)
    if fresh:
        dataset.clear()
    elif (found := dataset.metadata()) is not None:
        dataset.check_same(found["asked"])
        return SplitDone(dataset.place, found, was_there=True)
    dataset.remove_partials()
    done = dataset.begun()
    dataset.record(done)
    on_step: OnStep = writing.get("on_step", lambda step: None)
    with Bar("splitting", quiet=quiet) as bar:
        counts = _counts(feed, spec)
        schema, blocks = _with_schema(feed, spec)
        pieces = cut_pieces(route(blocks, spec), spec.cut, counts)
        chunks = ChunkWriter(dataset, schema, done, **writing).write(_shown(pieces, feed, bar))
    if not chunks:
        raise SourceError("no items in the source.", hint="Check that it was written completely.")
    on_step("before metadata")
    return SplitDone(dataset.place, dataset.publish(chunks), len(done))


def split_files(
    places: Sequence[str],
    out: str,
    *,
    name: str | None = None,
    items: int | None = None,
    bytes: int | None = None,
    workers: int | None = None,
    query: str | None = None,
    format: str = "parquet",
    fresh: bool = False,
    quiet: bool = False,
    **how: Any,
) -> SplitDone:
    """Split files, or a query of a database, into `out`/datasets/`name`."""
    if (items, bytes, workers) == (None, None, None):
        items = DEFAULT_ITEMS
    cut = Cut(items=items, bytes=bytes, workers=workers)
    spec = SplitSpec(name or "dataset", cut, format, **how)
    places = [withhold(place) for place in places]
    if query:
        if len(places) != 1:
            raise SpecError("--query takes one database.", hint="Name one source.")
        feed = feed_database(places[0], query)
    else:
        feed = feed_files(places, bare_text=format == "json")
    return split(feed, open_store(out), replace(spec, name=name or feed.name), fresh=fresh, quiet=quiet)


def _counts(feed: Feed, spec: SplitSpec) -> list[int]:
    """The items of each part; counted, in a separate pass, only for a cut by workers."""
    counts = np.zeros(len(spec.parts), np.int64)
    if spec.cut.workers is None:
        return [int(n) for n in counts]
    if not feed.repeatable:
        raise SpecError("--chunks needs a source that can be read twice.", hint="Cut by --items or --bytes.")
    first = 0
    for block in _blocks(feed):
        counts += np.bincount(choose_parts(block, first, spec), minlength=len(counts))
        first += len(block)
    return [int(n) for n in counts]


def _blocks(feed: Feed) -> Iterator[LineBlock]:
    """Read files ahead; an iterator or connection of the caller stays in the caller's thread."""
    return ahead(feed.blocks) if feed.repeatable else feed.blocks()


def _with_schema(feed: Feed, spec: SplitSpec) -> tuple[pa.Schema | None, Iterator[LineBlock]]:
    """The blocks, and for Parquet the schema: from the source, or else inferred from the first block."""
    blocks = _blocks(feed)
    if spec.format != "parquet":
        return None, blocks
    import pyarrow as pa

    from shardmill.verbs.split.tables import sample_schema

    schema = feed.schema()
    if schema is not None:
        return schema, blocks
    first = next(blocks, None)
    if first is None:
        return pa.schema([]), iter(())
    return sample_schema(first), itertools.chain([first], blocks)


def _shown(pieces: Iterator[Piece], feed: Feed, bar: Bar) -> Iterator[Piece]:
    items = 0
    for piece in pieces:
        yield piece
        items += piece.stop - piece.index
        bar.at(feed.share, f"{items:,} items")


class StreamingDatasetSplitter:
    """Splits files, S3 objects, queries and iterables into chunks in a store.

    `bucket_name` is an S3 bucket, or any place: a path, `s3://bucket/folder`, `memory://name`. Chunks are Parquet;
    `format="json"` writes one JSON document per chunk. A `chunk_config` has one of `chunk_size` (items), `chunk_bytes`
    and `workers`; other keys are ignored.

    >>> splitter = StreamingDatasetSplitter("memory://example", quiet=True)
    >>> made = splitter.from_iterable([{"a": 1}, {"a": 2}, {"a": 3}], "numbers", {"chunk_size": 2})
    >>> made["total_items"], made["total_chunks"]
    (3, 2)
    """

    def __init__(
        self,
        bucket_name: str | os.PathLike[str],
        aws_region: str | None = None,
        *,
        format: str = "parquet",
        compress: str = "",
        shuffle: int | None = None,
        splits: Mapping[str, float] | None = None,
        by: str = "",
        fresh: bool = False,
        quiet: bool = False,
    ) -> None:
        if aws_region:
            os.environ.setdefault("AWS_REGION", aws_region)
        self.bucket_name = os.fspath(bucket_name)
        self._store = open_store(_place(self.bucket_name))
        self._format, self._compress = format, compress
        self._shuffle, self._splits, self._by = shuffle, tuple((splits or {}).items()), by
        self._fresh, self._quiet = fresh, quiet

    def stream_and_split_from_file(
        self, file_path: str, dataset_name: str, chunk_config: Mapping[str, Any], file_format: str = "jsonl"
    ) -> dict[str, Any]:
        """Split a file: `file_format` is gzipped_jsonl or any supported format: jsonl, csv, json, parquet …"""
        return self._split(self._files(os.fspath(file_path), file_format), dataset_name, chunk_config)

    def stream_and_split_from_s3(
        self,
        source_bucket: str,
        source_key: str,
        dataset_name: str,
        chunk_config: Mapping[str, Any],
        file_format: str = "jsonl",
    ) -> dict[str, Any]:
        """Split an S3 object, range by range; memory holds only a few blocks."""
        return self._split(self._files(f"s3://{source_bucket}/{source_key}", file_format), dataset_name, chunk_config)

    def stream_and_split_from_database(
        self,
        db_connection: Any,
        query: str,
        dataset_name: str,
        chunk_config: Mapping[str, Any],
        batch_size: int = 10_000,
    ) -> dict[str, Any]:
        """Split the rows of a query, `batch_size` per fetch, of a DB-API connection, a database URL or an SQLite file.

        With a URL, all rows come from one snapshot.
        """
        return self._split(feed_database(db_connection, query, batch_size), dataset_name, chunk_config)

    def from_iterable(self, items: Iterable[Any], dataset_name: str, chunk_config: Mapping[str, Any]) -> dict[str, Any]:
        """Split any iterable: of dicts, or of strings if the format is json."""
        return self._split(feed_iterable(items), dataset_name, chunk_config)

    def _files(self, place: str, file_format: str) -> Feed:
        known = {"gzipped_jsonl": "jsonl", **{name: name for name in format_names()}}
        if file_format not in known:
            hint = nearest(file_format, list(known))
            raise SourceError(f"{file_format!r} is not a supported format.", hint=hint)
        return feed_files([place], known[file_format], bare_text=self._format == "json")

    def _split(self, feed: Feed, name: str, chunk_config: Mapping[str, Any]) -> dict[str, Any]:
        spec = SplitSpec(
            name=name,
            cut=_cut(chunk_config),
            format=self._format,
            compress=self._compress,
            shuffle=self._shuffle,
            splits=self._splits,
            by=self._by,
        )
        return split(feed, self._store, spec, fresh=self._fresh, quiet=self._quiet).metadata


def _cut(config: Mapping[str, Any]) -> Cut:
    return Cut(items=config.get("chunk_size"), bytes=config.get("chunk_bytes"), workers=config.get("workers"))


def _place(name: str) -> str:
    """Turn a bare bucket name into its URL; a path or an existing folder stays unchanged."""
    is_path = is_url(name) or "/" in name or name.startswith((".", "~")) or Path(name).is_dir()
    return name if is_path else f"s3://{name}"
