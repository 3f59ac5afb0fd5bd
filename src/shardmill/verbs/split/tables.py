"""Parses lines into rows of Arrow tables, infers their schema, and checks that lines are JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from shardmill.core.errors import SourceError
from shardmill.sources.parsing import BadLine, decode, parse_json
from shardmill.verbs.split.blocks import Buffer, LineBlock

_ENDS_INSIDE = 2
_SAMPLE_ROWS = 10_000
_HINT = "Fix the line, or write lines unchanged with --format jsonl."


def check_lines(block: LineBlock, index: int) -> None:
    """Refuse a block with a line that is not JSON.

    Arrow's parser is fast but ignores line boundaries, so each line must also start and end with a brace, and there
    must be as many objects as lines. If this fails, Python's parser decides.
    """
    raw = np.frombuffer(block.data, np.uint8)
    ends = raw[block.ends - _ENDS_INSIDE]
    braces = (raw[block.starts] == ord("{")).all() and (ends == ord("}")).all()
    if braces and _is_utf8(block.data):
        nothing = pj.ParseOptions(explicit_schema=pa.schema([]), unexpected_field_behavior="ignore")
        try:
            if _parse(block.data, nothing).num_rows == len(block):
                return
        except pa.ArrowInvalid:
            pass
    for i, line in enumerate(block.lines()):
        try:
            json.loads(decode(line))
        except (BadLine, ValueError, RecursionError) as error:
            raise SourceError(f"item {index + i:,} is not JSON: {error}.", hint=_HINT) from error


def _is_utf8(data: Buffer) -> bool:
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _parse(data: Buffer, options: pj.ParseOptions) -> pa.Table:
    whole = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    # In single runs, peak memory was lower than with Arrow's own pool.
    return pj.read_json(pa.BufferReader(data), whole, options, memory_pool=pa.system_memory_pool())


def parse_rows(block: LineBlock, schema: pa.Schema, index: int) -> pa.Table:
    """Parse the lines into rows of the schema; refuses values that the schema cannot hold."""
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    reason: object = "it is not valid UTF-8"
    if _is_utf8(block.data):
        try:
            table = _parse(block.data, options)
            if table.num_rows == len(block):
                return table.select(schema.names)
            reason = f"{len(block)} lines hold {table.num_rows} objects"
        except pa.ArrowInvalid as error:
            reason = error
    raise _misfit(block, schema, index, reason)


def _misfit(block: LineBlock, schema: pa.Schema, index: int, reason: object) -> SourceError:
    """Find the item that does not fit, and why."""
    for i, line in enumerate(block.lines()):
        try:
            row = parse_json(line)
        except BadLine as bad:
            return SourceError(f"item {index + i:,}: {bad}.", hint=_HINT)
        strange = next((name for name in row if name not in schema.names), None)
        if strange is not None:
            return SourceError(
                f"item {index + i:,} has a field {strange!r} that no item of the sample has.",
                hint="Write lines unchanged with --format jsonl.",
            )
        try:
            pa.Table.from_pylist([row], schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            return SourceError(f"item {index + i:,} does not fit the columns: {error}.", hint=_HINT)
    return SourceError(f"items from {index:,} on do not fit the columns: {reason}.", hint=_HINT)


def infer_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Infer columns that hold these rows; refuses a field with values of several kinds.

    >>> infer_schema([{"a": 1}, {"a": 2.5, "b": None}]).types
    [DataType(double), DataType(string)]
    """
    rows = list(rows)
    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            kind = pa.array([row.get(name) for row in rows]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise SourceError(
                f"the field {name!r} holds values of several kinds: {str(error).partition(chr(10))[0]}.",
                hint="Parquet has one type per column. Write lines unchanged with --format jsonl.",
            ) from error
        except UnicodeEncodeError:
            # Half of a surrogate pair: writing reports the row.
            kind = pa.string()
        fields.append(pa.field(name, _without_null(kind)))
    return pa.schema(fields)


def _without_null(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_null(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _without_null(f.type)) for f in kind])
    return kind


def sample_schema(block: LineBlock) -> pa.Schema:
    """Infer columns from the first lines of a block."""
    rows = []
    for i, line in enumerate(block.lines()[:_SAMPLE_ROWS]):
        try:
            rows.append(parse_json(line))
        except BadLine as bad:
            raise SourceError(f"item {i:,}: {bad}.", hint=_HINT) from bad
    return infer_schema(rows)
