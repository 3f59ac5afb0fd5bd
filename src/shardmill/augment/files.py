"""Streams as compressed Parquet: a column of ids, one column per parameter, and their origin in the footer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.augment.config import AugmentationConfig, Value
from shardmill.augment.streams import AugmentationStream
from shardmill.core.errors import CorruptState, UsageError

Tables = Iterator[tuple[Any, Any]]

_ABOUT = b"shardmill.augment"
_FILE = "params-{:06d}.parquet"


def save_augmentation_stream(
    stream: AugmentationStream, folder: str | os.PathLike[str], *, samples_per_file: int = 1_000_000
) -> int:
    """Write the rest of a stream into a folder of Parquet files and return the number of items written.

    A file gets its final name only when it is complete; a file cut off by a crash is written again.
    """
    if samples_per_file < 1:
        raise UsageError(f"samples_per_file is {samples_per_file}.", hint="Give 1 or more.")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = _files(place)
    written, tables = 0, stream.tables()
    for number in count(len(files)):
        rows = _write(stream, tables, place, number, samples_per_file)
        written += rows
        if rows < samples_per_file:
            break
    return written


def resume_augmentation_stream(folder: str | os.PathLike[str], stream: AugmentationStream) -> AugmentationStream:
    """Set a stream to the end of the files in a folder, after checking that they belong to it and have no gap.

    stream = resume_augmentation_stream("params", stream_augmentation_chain(100_000_000, config))
    save_augmentation_stream(stream, "params")
    """
    state: dict[str, int] | None = None
    for path in _files(Path(folder)):
        about = _about(path)
        if about["stream"] != _describe(stream):
            raise CorruptState(f"{path} belongs to another stream.", hint="Use its config, epoch and rank.")
        if about["begin"] != (stream.start if state is None else state["next_id"]):
            raise CorruptState(f"{path} does not begin where the previous file ends.", hint="Restore the missing file.")
        state = {"next_id": about["end"], "epoch": stream.epoch, "seed": stream.config.seed}
    if state is not None:
        stream.load_state_dict(state)
    return stream


def load_augmentation_stream(folder: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Value]]]:
    """Ids and parameters from the files of a folder, one row group in memory at a time."""
    for path in _files(Path(folder)):
        _about(path)
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                columns = _read_group(file, group, path)
                ids = columns.pop("sample_id")
                names = list(columns)
                for sample_id, *row in zip(ids, *columns.values(), strict=True):
                    yield sample_id, dict(zip(names, row, strict=True))


def _read_group(file: pq.ParquetFile, group: int, path: Path) -> dict[str, list[Any]]:
    try:
        table: dict[str, list[Any]] = file.read_row_group(group).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise CorruptState(f"{path}: row group {group} is damaged ({error}).", hint=_again(path)) from error
    return table


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("params-*.parquet"))


def _again(path: Path) -> str:
    return f"Delete {path.name} and the files after it; resuming makes them again."


def _describe(stream: AugmentationStream) -> dict[str, Any]:
    return {
        "config": stream.config.to_dict(),
        "epoch": stream.epoch,
        "rank": stream.rank,
        "world_size": stream.world_size,
    }


def _about(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((pq.read_schema(path).metadata or {})[_ABOUT])
        AugmentationConfig.from_dict(about["stream"]["config"])
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise CorruptState(f"{path} is damaged, or not a file of parameters.", hint=_again(path)) from error
    return about


def _write(stream: AugmentationStream, rest: Tables, folder: Path, number: int, limit: int) -> int:
    """Write one file of at most `limit` items; none if nothing is left."""
    begin = stream.state
    tables, rows = [], 0
    for ids, columns in _limited(stream, rest, limit):
        tables.append(pa.table({"sample_id": ids, **columns}))
        rows += len(ids)
    if not rows:
        return 0
    about = {"stream": _describe(stream), "begin": begin, "end": stream.state}
    table = pa.concat_tables(tables).replace_schema_metadata({_ABOUT: json.dumps(about).encode()})
    path = folder / _FILE.format(number)
    staged = path.with_suffix(".part")
    pq.write_table(table, staged, compression="zstd", use_byte_stream_split=_floats(table), use_dictionary=False)
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    staged.rename(path)
    return rows


def _limited(stream: AugmentationStream, rest: Tables, limit: int) -> Tables:
    usual = stream.chunk_size
    try:
        while limit > 0:
            stream.chunk_size = min(usual, limit)
            found = next(rest, None)
            if found is None:
                return
            limit -= len(found[0])
            yield found
    finally:
        stream.chunk_size = usual


def _floats(table: pa.Table) -> list[str]:
    return [f.name for f in table.schema if pa.types.is_floating(f.type)]
