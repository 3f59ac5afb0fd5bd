"""Files whose items are not lines, as blocks of JSON lines, by the readers that runs have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from shardmill.errors import SourceError
from shardmill.plan import SourceFile
from shardmill.sources import MAX_ITEM_BYTES, sampling
from shardmill.sources import parquet as parquets
from shardmill.sources.arrow import source as arrows
from shardmill.sources.arrow.rows import plain_type
from shardmill.sources.batches import BATCH_ROWS
from shardmill.sources.content import open_ranges
from shardmill.sources.csv.records import CsvRecords
from shardmill.sources.csv.source import DELIMITERS, read_header
from shardmill.sources.cuts import iter_lines
from shardmill.sources.files import file_name
from shardmill.sources.json import array as jsonarrays
from shardmill.sources.parsing import over_limit
from shardmill.sources.pickle import source as pickles
from shardmill.split.blocks import Blocks, gather
from shardmill.split.items import At, encode_item, read_share
from shardmill.split.tables import infer_schema


def read_rows(file: SourceFile, kind: str, at: At) -> Blocks:
    """The items of a file; `at` is told how many of its bytes have been read."""
    read = {"parquet": _read_parquet, "arrow": _read_arrow, "json": _read_array, "pickle": _read_pickle}.get(kind)
    yield from read(file, at) if read else _read_csv(file, kind, at)


def find_schema(kind: str, files: Sequence[SourceFile]) -> pa.Schema | None:
    """The schema that a source has, or one that fits a sample from all over it; None where its first items tell."""
    if kind == "parquet":
        with parquets.open_parquet(next(f for f in files if f.size_bytes)) as opened:
            return _plain_schema(opened.schema_arrow)
    if kind == "arrow":
        return _plain_schema(arrows.read_schema(next(f for f in files if f.size_bytes)))
    samples = {"jsonl": sampling.sample_rows, "json": jsonarrays.sample_rows, "pickle": pickles.sample_rows}
    return infer_schema(samples[kind](files)[1]) if kind in samples else None


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def _read_csv(file: SourceFile, kind: str, at: At) -> Blocks:
    header = read_header(file, DELIMITERS[kind])
    if header is None:
        return
    with open_ranges(file) as read:
        lines = iter_lines(read, header.stop, file.end, file.end, MAX_ITEM_BYTES)
        records = CsvRecords(lines, DELIMITERS[kind], MAX_ITEM_BYTES, header.lines)
        position = header.stop

        def rows() -> Iterator[bytes]:
            nonlocal position
            for record in records:
                reason = record.reason
                if not reason and len(record.fields) != len(header.names):
                    reason = f"it has {len(record.fields)} fields where the header has {len(header.names)}"
                if reason:
                    raise SourceError(
                        f"{file_name(file.place)}:{record.line}: {reason}.", hint="Mend the record, or leave it out."
                    )
                position += record.size
                yield encode_item(dict(zip(header.names, record.fields, strict=True)), record.line)

        for block in gather(rows()):
            yield block
            at(read_share(file, position))


def _read_parquet(file: SourceFile, at: At) -> Blocks:
    with parquets.open_parquet(file) as opened:
        _check_names(file, opened.schema_arrow)
        rows = max(1, opened.metadata.num_rows)
        batches = opened.iter_batches(BATCH_ROWS, use_threads=False)
        yield from _encode_rows(_table_rows(file, batches), lambda done: at(file.size_bytes * done // rows))


def _read_arrow(file: SourceFile, at: At) -> Blocks:
    names = _check_names(file, arrows.read_schema(file))
    if not (rows := arrows.count_rows(file)):
        return
    batches = arrows.read_rows(file, 0, rows, names, file.size_bytes / rows)
    yield from _encode_rows(_table_rows(file, batches), lambda done: at(file.size_bytes * done // rows))


def _read_pickle(file: SourceFile, at: At) -> Blocks:
    """The one format that is held whole."""
    records = pickles.hold_records(file)

    def rows() -> Iterator[dict[str, object]]:
        for i in range(len(records)):
            try:
                yield {str(name): pickles.plain(str(name), value) for name, value in records.row(i).items()}
            except pickles.BadRecord as bad:
                raise SourceError(
                    f"{file_name(file.place)}: record {i + 1:,}: {bad}.", hint="Mend the record, or leave it out."
                ) from bad

    yield from _encode_rows(rows(), lambda done: at(file.size_bytes * done // len(records)))
    pickles.hold_records.cache_clear()


def _read_array(file: SourceFile, at: At) -> Blocks:
    """Elements as they are, on one line each: a newline inside of one is space between two of its parts."""
    layout = jsonarrays.find_layout(file)
    if not layout.rows:
        return
    position = layout.starts[0]
    with open_ranges(file) as read:

        def lines() -> Iterator[bytes]:
            nonlocal position
            elements = jsonarrays.iter_elements(read, position, layout.close, MAX_ITEM_BYTES)
            for i, element in enumerate(elements):
                reason = "" if element.data is None or element.data.strip() else "it is empty"
                if element.data is None:
                    reason = over_limit("it", element.size, MAX_ITEM_BYTES)
                if reason or element.data is None:
                    raise SourceError(
                        f"{file_name(file.place)}: element {i + 1:,}: {reason}.", hint="Mend it, or leave it out."
                    )
                position += element.size + 1
                yield element.data.strip().replace(b"\r", b" ").replace(b"\n", b" ")

        for block in gather(lines()):
            yield block
            at(read_share(file, position))


def _check_names(file: SourceFile, schema: pa.Schema) -> list[str]:
    names: list[str] = schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{file_name(file.place)} has two columns named {twice!r}.", hint="Rename one of them.")
    return names


def _table_rows(file: SourceFile, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, object]]:
    done = 0
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{file_name(file.place)}: a row after row {done:,} is not valid UTF-8.",
                hint="Write it in UTF-8.",
            ) from error
        done += batch.num_rows


def _encode_rows(rows: Iterable[dict[str, object]], at_row: At) -> Blocks:
    done = 0

    def lines() -> Iterator[bytes]:
        nonlocal done
        for row in rows:
            yield encode_item(row, done)
            done += 1

    for block in gather(lines()):
        yield block
        at_row(done)
