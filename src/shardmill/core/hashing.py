"""Hashes of rows, eight bytes each, made for all rows of a batch at once, and sums of them that do not depend on cuts.

They find faults, not forgers: whoever can rewrite a digest can rewrite what it was made from.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

# Of rows of different lengths, which take several steps: what fits into the cache is faster.
_CACHED_WORDS = 1 << 15
_NULL = np.uint64(0x6E756C6C)
_OF_NONE = zlib.crc32(b"None")


def hash_rows(rows: pa.RecordBatch) -> Hashes:
    """A hash of each row: equal rows have equal hashes in every batch."""
    total = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        total = mix(total * np.uint64(31) + hash_column(column))
    return total


def hash_column(column: pa.Array) -> Hashes:
    """A hash of each value. It depends on the value and not on how wide its type is, but for numbers with fractions."""
    hashes = _hash_values(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def bind(hashes: Hashes, places: NDArray[Any]) -> Hashes:
    """The hashes of the same values, each at its place."""
    return mix(hashes ^ mix(places.astype(np.uint64)))


def sum_hashes(hashes: Hashes) -> str:
    """The digest of many rows. Their order counts only as far as each hash is bound to a place.

    >>> sum_hashes(np.array([2, 2**64 - 1], np.uint64))
    '0000000000000001'
    """
    return f"{int(hashes.sum(dtype=np.uint64)):016x}"


def add_sums(digests: Iterable[str]) -> str:
    """The digest of the rows of all; "" if one is unknown.

    >>> add_sums(["00000000000000ff", "0000000000000001"]), add_sums(["", "0000000000000001"])
    ('0000000000000100', '')
    """
    found = list(digests)
    if not all(map(is_digest, found)):
        return ""
    return f"{sum(int(digest, 16) for digest in found) % (1 << 64):016x}"


def is_digest(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{16}", text) is not None


def hash_inputs(inputs: Any) -> Hashes:
    """A hash of each input of a task: a sequence, an array or a record batch. 0 for a value of an unknown kind.

    Token ids are hashed all at once, also if they lie one after another (`flat`) and row i begins at `starts[i]`.
    """
    if isinstance(inputs, pa.RecordBatch):
        return hash_rows(inputs)
    if hasattr(inputs, "flat") and hasattr(inputs, "starts"):
        return _hash_numbers(inputs.flat, inputs.starts)
    if isinstance(inputs, np.ndarray) and inputs.dtype != object:
        flat = np.ascontiguousarray(inputs).reshape(len(inputs), -1)
        return _hash_bytes_of_rows(flat.view(np.uint8)) if flat.size else np.zeros(len(inputs), np.uint64)
    if len(inputs) and all(map(_is_numbers, inputs)):
        starts = np.zeros(len(inputs) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, inputs), np.int64, len(inputs)), out=starts[1:])
        return _hash_numbers(np.concatenate(inputs), starts)
    # Most are none, since their rows are there already, or one kind of value.
    values = ((_OF_NONE if value is None else _hash_input(value)) for value in inputs)
    return np.fromiter(values, np.uint64, len(inputs))


def _hash_input(value: Any, before: int = 0) -> int:
    if isinstance(value, str):
        return zlib.crc32(value.encode("utf-8", "surrogatepass"), before)
    if _is_numbers(value) and not before:
        return int(_hash_numbers(value, np.array([0, len(value)]))[0])
    if isinstance(value, np.ndarray) and value.dtype != object:
        return zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data, before)
    if isinstance(value, bytes):
        return zlib.crc32(value, before)
    if isinstance(value, tuple):
        for each in value:
            before = _hash_input(each, before)
        return before
    if is_dataclass(value):
        return _hash_input(tuple(getattr(value, each.name) for each in fields(value)), before)
    if value is None or isinstance(value, int | float | list | dict):
        return zlib.crc32(repr(value).encode("utf-8", "surrogatepass"), before)
    return before


def _hash_values(column: pa.Array) -> Hashes:
    """The hashes of a column; those of nulls may be any."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _hash_values(column.dictionary_decode())
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.uint8()), pa.uint8()
    if pa.types.is_integer(kind):
        return mix(column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64))
    if (matrix := _fixed(column)) is not None:
        return _with_holes(column, _hash_bytes_of_rows(matrix))
    if (lists := _lists(column)) is not None:
        return _with_holes(column, _hash_bytes(lists))
    if any(is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        column = column.cast(pa.large_string())
    elif not any(is_bytes(kind) for is_bytes in (pa.types.is_binary, pa.types.is_large_binary)):
        column = _spell(column)
    return _hash_bytes(column.cast(pa.large_binary()))


def _spell(column: pa.Array) -> pa.Array:
    return pa.array([repr(value) for value in column.to_pylist()], pa.large_string())


def _with_holes(column: pa.Array, hashes: Hashes) -> Hashes:
    """The hashes of a column, where lists that have a null inside are spelled out; what their bytes are is chance."""
    kind = column.type
    if not pa.types.is_nested(kind) or not column.values.null_count:
        return hashes
    missing = np.zeros(len(column.values) + 1, np.int64)
    np.cumsum(column.values.is_null().to_numpy(zero_copy_only=False), out=missing[1:])
    if pa.types.is_fixed_size_list(kind):
        edges = (np.arange(len(column) + 1) + column.offset) * kind.list_size
    else:
        edges = column.offsets.to_numpy()
    holes = np.flatnonzero(missing[edges[1:]] > missing[edges[:-1]])
    if len(holes):
        hashes[holes] = _hash_bytes(_spell(column.take(pa.array(holes))).cast(pa.large_binary()))
    return hashes


def _fixed(column: pa.Array) -> NDArray[np.uint8] | None:
    """The bytes of each value if all have the same number of them: numbers, times, vectors. None for other types."""
    kind, size = column.type, 1
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        values = column.values.slice(column.offset * size, len(column) * size)
        if not size:
            return None
    else:
        values = column
    if not (pa.types.is_primitive(values.type) or pa.types.is_decimal(values.type)) or values.type.bit_width < 8:
        return None
    width, data = values.type.bit_width // 8, values.buffers()[1]
    if data is None:
        return np.zeros((len(column), size * width), np.uint8)
    flat = np.frombuffer(data, np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    return flat.reshape(len(column), size * width)


def _lists(column: pa.Array) -> pa.LargeBinaryArray | None:
    """The bytes of each list of numbers or times. None for other types."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    values = column.values
    if not pa.types.is_primitive(values.type) or values.type.bit_width < 8:
        return None
    edges = (column.offsets.to_numpy().astype(np.int64) + values.offset) * (values.type.bit_width // 8)
    data = values.buffers()[1] or pa.py_buffer(b"")
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(column), [None, pa.py_buffer(edges), data])


def _hash_bytes_of_rows(matrix: NDArray[np.uint8]) -> Hashes:
    """Multiply the words of each row by constants of their places, and add them up."""
    if matrix.shape[1] % 4:
        matrix = np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % 4)))
    words = np.ascontiguousarray(matrix).view("<u4")
    factors = mix(np.arange(words.shape[1], dtype=np.uint64)) | np.uint64(1)
    return mix(np.einsum("ij,j->i", words, factors))


def _is_numbers(value: Any) -> bool:
    return type(value) is np.ndarray and value.ndim == 1 and value.dtype.kind in "iu"


def _hash_numbers(flat: NDArray[Any], starts: NDArray[np.int64]) -> Hashes:
    """A hash of each row of whole numbers: each times a constant of its place in the row, added up."""
    counts = np.diff(starts)
    factors = mix(np.arange(counts.max(initial=0), dtype=np.uint64)) | np.uint64(1)
    hashes = mix(counts.astype(np.uint64))
    for rows in _cut(counts):
        own = counts[rows]
        numbers = flat[starts[rows.start] : starts[rows.stop]].astype(np.uint64)
        hashes[rows] += _add_up(numbers * factors[_places(own)], own)
    return mix(hashes)


def _hash_bytes(column: pa.LargeBinaryArray) -> Hashes:
    """A hash of each value: of words of eight bytes, each mixed with its place, added up."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    lengths, starts = np.diff(edges), edges[:-1] - edges[0]
    padded = np.zeros(int(edges[-1] - edges[0]) + 8, np.uint8)
    if len(padded) > 8:
        padded[:-8] = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
    every = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))
    counts = (lengths + 7) // 8
    marks = mix(np.arange(counts.max(initial=0), dtype=np.uint64))
    hashes = mix(lengths.astype(np.uint64))
    for rows in _cut(counts):
        own = counts[rows]
        places = _places(own)
        words = every[np.repeat(starts[rows], own) + 8 * places]
        # The bytes after the end of a value are shifted out of its last word.
        some = own > 0
        surplus = (8 * own - lengths[rows])[some]
        words[np.cumsum(own)[some] - 1] <<= (8 * surplus).astype(np.uint64)
        hashes[rows] += _add_up(mix(words ^ marks[places]), own)
    return mix(hashes)


def _cut(counts: NDArray[np.int64]) -> Iterator[slice]:
    """Ranges of rows that fit into the cache together, with at least one row each."""
    ends = np.cumsum(counts)
    start, done = 0, 0
    while start < len(counts):
        stop = max(start + 1, int(np.searchsorted(ends, done + _CACHED_WORDS, "right")))
        yield slice(start, stop)
        start, done = stop, int(ends[stop - 1])


def _places(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each word in its row."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _add_up(values: Hashes, counts: NDArray[np.int64]) -> Hashes:
    """The sum of each row's values, which lie one after another."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, out=sums[1:])
    ends = np.cumsum(counts)
    return np.asarray(sums[ends] - sums[ends - counts])


def mix(values: Hashes) -> Hashes:
    """Spread every bit of each value over all bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
