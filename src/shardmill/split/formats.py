"""Lines of files as blocks; files of other formats by the readers that runs have."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable
from typing import Any

from shardmill.errors import SourceError
from shardmill.plan import SourceFile
from shardmill.sources import MAX_ITEM_BYTES
from shardmill.sources.files import file_name, open_filling
from shardmill.sources.parsing import BOM, BadLine, decode, over_limit
from shardmill.split.blocks import BLOCK_BYTES, Block, Blocks, Buffers

_LINE_BYTES = 64 << 10
At = Callable[[int], None]


def read_file(file: SourceFile, kind: str, bare_text: bool, at: At) -> Blocks:
    """The items of a file; `at` is told how many of its bytes have been read."""
    if not file.size_bytes:
        return
    if kind in ("jsonl", "text"):
        blocks = _read_lines(file, at)
        yield from blocks if kind == "jsonl" else _as_texts(file, blocks, bare_text)
        return
    # Other formats need Arrow, which takes longer to import than a small file takes to split.
    from shardmill.split.rows import read_rows

    yield from read_rows(file, kind, at)


def encode_item(item: Any, index: int) -> bytes:
    try:
        return json.dumps(
            item, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain_value
        ).encode()
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"item {index:,} cannot be written as JSON: {error}.",
            hint="Give dicts of texts, numbers, lists and dicts; turn other values into text first.",
        ) from error


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


def _read_lines(file: SourceFile, at: At) -> Blocks:
    """The lines of a file; only a block and a line that is not yet whole are held."""
    position, rest, buffers = 0, b"", Buffers(BLOCK_BYTES + _LINE_BYTES)
    with open_filling(file) as fill:
        while position < file.end:
            buffer = buffers.take(len(rest) + BLOCK_BYTES)[: len(rest) + BLOCK_BYTES]
            buffer[: len(rest)] = rest
            if not (got := fill(position, buffer[len(rest) :])):
                break
            data = buffer[: len(rest) + got]
            block, rest = Block.cut(data[len(BOM) :] if position == 0 and data[: len(BOM)] == BOM else data)
            if len(rest) > MAX_ITEM_BYTES:
                raise SourceError(
                    f"{file_name(file.place)}: {over_limit('a line', len(rest), MAX_ITEM_BYTES)}.",
                    hint="Check that it holds one item a line.",
                )
            position += got
            if len(block):
                yield block
            at(read_share(file, position))
    if rest.strip():
        yield Block.of_lines([rest])


def read_share(file: SourceFile, position: int) -> int:
    """How many bytes of the file have been read when so much of its content has."""
    return min(file.size_bytes, file.size_bytes * position // max(1, file.content_bytes))


def _as_texts(file: SourceFile, blocks: Blocks, bare: bool) -> Blocks:
    for block in blocks:
        try:
            texts = [decode(line.removesuffix(b"\r")) for line in block.lines()]
        except BadLine as bad:
            raise SourceError(f"{file_name(file.place)}: {bad}.", hint="Convert it to UTF-8.") from bad
        yield Block.of_lines([encode_item(text if bare else {"text": text}, i) for i, text in enumerate(texts)])
