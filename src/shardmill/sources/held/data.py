"""What data in memory is, and its rows as Arrow batches of plain types."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import ShardmillError, SourceError
from shardmill.sources import kinds
from shardmill.store import is_url

if TYPE_CHECKING:
    import pyarrow as pa

# The column of a list of strings, as of the lines of a text, and of an array of vectors.
TEXT, VECTOR = kinds.TEXT.column, "vector"
_TYPES = (
    "Give a path or a URL, a pandas or Polars DataFrame, a Polars LazyFrame, an Arrow table, reader or dataset, a "
    "Hugging Face dataset, a list of strings or of dicts, or an iterator of either."
)
_BATCH_ROWS, _BATCH_BYTES = 8192, 16 << 20
# A string without spaces that has a scheme, a suffix, a folder or a wildcard.
_PLACE = re.compile(r"[A-Za-z][A-Za-z0-9+]*:\S+|\S*[^\s.]\.[A-Za-z0-9]{2,8}|\S*[/*]\S*")
_LONGEST_PLACE = 1024

MakeBatches = Callable[[], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True, slots=True)
class HeldData:
    """Data in memory: what it is, and its batches. Those of an iterator come once; all others as often as asked for.

    `text` is its column if it has only one by nature.
    """

    what: str
    make: MakeBatches
    text: str = ""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of limited size, all of one schema of plain types."""
        done, schema = 0, None
        found = self.make()
        while True:
            try:
                batch = next(found, None)
                pieces = [] if batch is None else list(_plain(batch))
            except ShardmillError:
                raise
            except Exception as error:
                raise self._broken(error, done) from error
            if batch is None:
                break
            for piece in pieces:
                schema = schema or piece.schema
                if piece.schema != schema:
                    raise SourceError(
                        f"{self.what}: its columns or their types change after row {done:,}.",
                        hint="Give rows that all have the same columns.",
                    )
                done += piece.num_rows
                yield piece
        if not done:
            raise SourceError(f"{self.what} has no rows.", hint="Check what fills it.")

    def _broken(self, error: Exception, done: int) -> SourceError:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        return SourceError(
            f"{self.what} failed after row {done:,}: {type(error).__name__}: {reason}.",
            hint="Nothing was begun. Repair it, and run the same again.",
        )


class ValueDigest:
    """The digest of rows by their values, however they are cut into batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._content = hashlib.sha256(json.dumps([[field.name, str(field.type)] for field in schema]).encode())

    def add(self, batch: pa.RecordBatch) -> None:
        from shardmill.core.hashing import hash_rows

        self._content.update(hash_rows(batch).astype("<u8").tobytes())

    def __str__(self) -> str:
        return self._content.hexdigest()[:16]


def find_held(source: Any, text: str = "") -> HeldData | None:
    """The data that a source is; None if it names places. What can be neither is refused.

    `text` is what the user calls the text. A list of strings has one column, so places are meant if that is another.
    """
    if source is None or isinstance(source, str | os.PathLike):
        return None
    if isinstance(source, list | tuple) and source and isinstance(source[0], str | os.PathLike):
        return None if (text and TEXT not in text) or _are_places(source) else _of_rows(source, "The list")
    for names, make in _KINDS:
        if _is_one_of(source, names):
            return make(source)
    if hasattr(source, "__arrow_c_stream__"):
        return _of_stream(source)
    if isinstance(source, list | tuple):
        return _of_rows(source, "The list")
    if isinstance(source, Iterator):
        return _of_rows(source, "The iterator")
    raise SourceError(f"A value of type {type(source).__name__} cannot be read as a source.", hint=_TYPES)


def _is_one_of(source: Any, names: Sequence[str]) -> bool:
    """Whether it is of one of these classes, or derived from one; each is named as library.Class."""
    return any(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in names for kind in type(source).__mro__)


def _are_places(source: Sequence[Any]) -> bool:
    """Whether strings are places or texts: places if all look like some. Texts among places that exist are refused."""
    unlike = next((each for each in source if not _is_like_place(each)), None)
    if unlike is None:
        return True
    if (there := next((each for each in source if _is_there(each)), None)) is None:
        return False
    raise SourceError(
        f"Of {len(source):,} strings some are places ({str(there)[:60]!r}), others not ({str(unlike)[:60]!r}).",
        hint='Name places alone, or give texts as dicts: [{"text": …}, …]',
    )


def _is_like_place(each: Any) -> bool:
    return isinstance(each, os.PathLike) or _PLACE.fullmatch(str(each)) is not None or _is_there(each)


def _is_there(each: Any) -> bool:
    if isinstance(each, os.PathLike) or is_url(str(each)):
        return True
    return 0 < len(str(each)) <= _LONGEST_PLACE and "\0" not in str(each) and os.path.exists(str(each))


def _plain(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of limited size, with types that any reader of Arrow knows."""
    import pyarrow as pa

    from shardmill.sources.arrow.rows import plain_type

    schema = pa.schema([pa.field(field.name, plain_type(field.type)) for field in batch.schema])
    for at in range(0, batch.num_rows, _BATCH_ROWS):
        piece = batch.slice(at, _BATCH_ROWS)
        columns = [_decode(column, field.type) for column, field in zip(piece.columns, schema, strict=True)]
        plain = pa.RecordBatch.from_arrays(columns, schema=schema)
        step = max(1, plain.num_rows * _BATCH_BYTES // max(_BATCH_BYTES, plain.nbytes))
        yield from (plain.slice(start, step) for start in range(0, plain.num_rows, step))


def _decode(column: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(column.type, pa.BaseExtensionType):
        return _decode(column.storage, kind)
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _decode(column.dictionary, kind)).dictionary_decode()
    return column.cast(kind)


def _of_rows(rows: Any, what: str) -> HeldData:
    from shardmill.sources.held.rows import batch_rows, first_row

    is_list = isinstance(rows, list | tuple)
    first, rows = (rows[0] if rows else None, rows) if is_list else first_row(rows, what)
    text = TEXT if first is None or isinstance(first, str) else ""
    return HeldData(what, lambda: batch_rows(rows, what, is_list=is_list), text)


def _of_pandas(frame: Any) -> HeldData:
    from shardmill.sources.held.frames import pandas_batches

    return HeldData("The DataFrame", lambda: pandas_batches(frame))


def _of_polars(frame: Any) -> HeldData:
    from shardmill.sources.held.frames import polars_batches

    return HeldData("The DataFrame", lambda: polars_batches(frame))


def _of_lazy(frame: Any) -> HeldData:
    from shardmill.sources.held.frames import lazy_batches

    return HeldData("The LazyFrame", lambda: lazy_batches(frame))


def _of_dataset(dataset: Any) -> HeldData:
    return HeldData("The dataset", lambda: dataset.to_batches())


def _of_saved(dataset: Any) -> HeldData:
    from shardmill.sources.held.frames import dataset_batches

    return HeldData("The dataset", lambda: dataset_batches(dataset))


def _of_array(array: Any) -> HeldData:
    from shardmill.sources.held.frames import vector_batches

    if array.ndim != 2 or array.dtype.kind != "f":
        shape = "x".join(map(str, array.shape))
        raise SourceError(
            f"An array of {array.dtype} and shape {shape} is not one of vectors.",
            hint="It has one row per vector, of float16, float32 or float64. An array of texts: array.tolist()",
        )
    return HeldData("The array", lambda: vector_batches(array, VECTOR))


def _of_stream(source: Any) -> HeldData:
    import pyarrow as pa

    def make() -> Iterator[pa.RecordBatch]:
        yield from pa.RecordBatchReader.from_stream(source)

    return HeldData(f"The {type(source).__name__}", make)


def _refuse_splits(splits: Any) -> HeldData:
    raise SourceError(
        f"A {type(splits).__name__} holds several splits: {', '.join(map(repr, splits))}.",
        hint=f"Give one of them: data[{next(iter(splits), '')!r}]",
    )


def _refuse_column(column: Any) -> HeldData:
    raise SourceError(f"A {type(column).__name__} is one column.", hint="Give a frame: column.to_frame()")


_KINDS: list[tuple[tuple[str, ...], Callable[[Any], HeldData]]] = [
    (("pandas.DataFrame",), _of_pandas),
    (("pandas.Series", "polars.Series"), _refuse_column),
    (("polars.DataFrame",), _of_polars),
    (("polars.LazyFrame",), _of_lazy),
    (("datasets.DatasetDict", "datasets.IterableDatasetDict"), _refuse_splits),
    (("datasets.Dataset", "datasets.IterableDataset"), _of_saved),
    (("pyarrow.Dataset",), _of_dataset),
    (("numpy.ndarray",), _of_array),
]
