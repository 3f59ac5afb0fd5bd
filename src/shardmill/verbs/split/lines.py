"""Reads lines of files as blocks. Without Arrow, because importing it takes longer than splitting a small file."""

from __future__ import annotations

from shardmill.core.errors import SourceError
from shardmill.plan import SourceFile
from shardmill.sources.base import MAX_ITEM_BYTES
from shardmill.sources.content import open_filling
from shardmill.sources.files import file_name
from shardmill.sources.parsing import BOM, BadLine, decode, over_limit
from shardmill.verbs.split.blocks import BLOCK_BYTES, Blocks, Buffers, LineBlock
from shardmill.verbs.split.items import At, encode_item, read_share

_LINE_BYTES = 64 << 10


def read_lines(file: SourceFile, at: At) -> Blocks:
    """Read the lines of a file; memory holds one block and one unfinished line.

    Progress in bytes of the file goes to `at`.
    """
    position, rest, buffers = 0, b"", Buffers(BLOCK_BYTES + _LINE_BYTES)
    with open_filling(file) as fill:
        while position < file.end:
            buffer = buffers.take(len(rest) + BLOCK_BYTES)[: len(rest) + BLOCK_BYTES]
            buffer[: len(rest)] = rest
            if not (got := fill(position, buffer[len(rest) :])):
                break
            data = buffer[: len(rest) + got]
            block, rest = LineBlock.cut(data[len(BOM) :] if position == 0 and data[: len(BOM)] == BOM else data)
            if len(rest) > MAX_ITEM_BYTES:
                raise SourceError(
                    f"{file_name(file.place)}: {over_limit('a line', len(rest), MAX_ITEM_BYTES)}.",
                    hint="Check that it has one item per line.",
                )
            position += got
            if len(block):
                yield block
            at(read_share(file, position))
    if rest.strip():
        yield LineBlock.of_lines([rest])


def read_texts(file: SourceFile, bare: bool, at: At) -> Blocks:
    """Read the lines of a file as JSON: objects with the field `text`, or with `bare` plain strings."""
    for block in read_lines(file, at):
        try:
            texts = [decode(line.removesuffix(b"\r")) for line in block.lines()]
        except BadLine as bad:
            raise SourceError(f"{file_name(file.place)}: {bad}.", hint="Convert it to UTF-8.") from bad
        yield LineBlock.of_lines([encode_item(text if bare else {"text": text}, i) for i, text in enumerate(texts)])
