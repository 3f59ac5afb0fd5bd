"""Pipes: standard input and named pipes, which can be read once. Their bytes are copied to a file, and cut there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from shardmill.core.errors import SourceError
from shardmill.sources.base import MAX_ITEM_BYTES
from shardmill.sources.compressed.detection import COMPRESSED_SUFFIXES, compression_of
from shardmill.sources.files import file_name
from shardmill.sources.formats import every_format, find_format, suffixes
from shardmill.store import is_url

STDIN = "-"
_STDIN_FILES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
_BLOCK_BYTES = 1 << 20
_ARROW_STREAM = b"\xff\xff\xff\xff"


def find_pipe(source: Any) -> str:
    """The pipe that a source is; "" if it is none. Several sources, one of them a pipe, are refused."""
    places = source if isinstance(source, list | tuple) else [source]
    pipe = next((str(place) for place in places if isinstance(place, str | os.PathLike) and is_pipe(str(place))), "")
    if pipe and len(places) > 1:
        raise SourceError(f"{_called(pipe)} cannot be combined with other sources.", hint="Name it alone.")
    return pipe


def is_pipe(place: str) -> bool:
    if place == STDIN or place.startswith(_STDIN_FILES):
        return True
    with contextlib.suppress(OSError, ValueError):
        return not is_url(place) and stat.S_ISFIFO(os.stat(place).st_mode)
    return False


def copy_pipe(pipe: str, format: str | None, file: IO[bytes] | None) -> str:
    """Read a pipe to its end, into a file if there is one. Returns a digest of its bytes and the suffix of its format.

    A pipe whose writer died looks like one that has ended. What can be told of it is refused: a cut line of JSON here,
    other formats when they are planned.
    """
    content, line, lines = hashlib.sha256(), bytearray(), 0
    suffix, packed = "", False
    with _open(pipe) as read:
        while block := _read(read, pipe):
            if not suffix:
                suffix, packed = _find_suffix(block, pipe, format), bool(compression_of(block, ""))
            content.update(block)
            if file is not None:
                file.write(block)
            lines += block.count(b"\n")
            rest = block[block.rfind(b"\n") + 1 :]
            line = line + rest if len(rest) == len(block) else bytearray(rest)
            del line[MAX_ITEM_BYTES + 1 :]
    if not suffix:
        raise SourceError(f"{_called(pipe)} is empty.", hint="Check the command that writes to it.")
    if suffix == find_format("jsonl").suffixes[0] and not packed:
        _refuse_cut_line(bytes(line), lines, pipe)
    return f"{content.hexdigest()[:16]}{suffix}"


def _called(pipe: str) -> str:
    return "Standard input" if pipe == STDIN else pipe


@contextlib.contextmanager
def _open(pipe: str) -> Iterator[int]:
    if pipe != STDIN:
        try:
            handle = os.open(pipe, os.O_RDONLY)
        except OSError as error:
            raise SourceError(f"{pipe}: {error.strerror}.", hint="Check that you may read it.") from error
        try:
            yield handle
        finally:
            os.close(handle)
        return
    try:
        handle = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        raise SourceError("There is no standard input here.", hint="Name a file.") from None
    if os.isatty(handle):
        raise SourceError(
            "Standard input is a terminal.", hint="Send it data: zcat news.jsonl.gz | shardmill embed - …"
        )
    yield handle


def _read(handle: int, pipe: str) -> bytes:
    """The next block, a whole one unless the pipe ends: the first has what tells the format."""
    pieces: list[bytes] = []
    left = _BLOCK_BYTES
    try:
        while left and (piece := os.read(handle, left)):
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        raise SourceError(
            f"{_called(pipe)} broke: {error.strerror}.", hint="Nothing was begun. Run the same again."
        ) from error
    return b"".join(pieces)


def _find_suffix(head: bytes, pipe: str, format: str | None) -> str:
    """The suffix of the files of its format: as named, by the name of the pipe, or by its first bytes."""
    if format:
        return _suffix_of(find_format(format).suffixes, pipe, format)
    name, dot, suffix = file_name(pipe).rpartition(".")
    if dot + suffix.lower() in COMPRESSED_SUFFIXES:
        name, dot, suffix = name.rpartition(".")
    if dot and dot + suffix.lower() in suffixes():
        return dot + suffix.lower()
    for kind in every_format():
        if kind.magic and head.startswith(kind.magic):
            return kind.suffixes[0]
    if head.startswith(_ARROW_STREAM):
        return find_format("arrow").suffixes[0]
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"[":
        return find_format("json").suffixes[0]
    if start == b"{" or compression_of(head, ""):
        return find_format("jsonl").suffixes[0]
    raise SourceError(
        f"The format of {_called(pipe)[:1].lower()}{_called(pipe)[1:]} cannot be told: it begins with {head[:20]!r}.",
        hint="Name it with --format text, csv, tsv or another.",
    )


def _suffix_of(known: Sequence[str], pipe: str, format: str) -> str:
    if not known:
        raise SourceError(f"--format {format} cannot be read from a pipe.", hint=f"Write {pipe} to a file first.")
    return known[0]


def _refuse_cut_line(line: bytes, lines: int, pipe: str) -> None:
    """Refuse a last line that has no end and is no JSON: whoever wrote it died."""
    if not line.strip() or len(line) > MAX_ITEM_BYTES:
        return
    try:
        json.loads(line)
    except ValueError:
        raise SourceError(
            f"{_called(pipe)} ended in the middle of line {lines + 1:,}: its writer stopped before the end.",
            hint="Nothing was begun. Run the same again.",
        ) from None
