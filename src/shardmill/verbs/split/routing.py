"""Chooses the part and the order of items: only from the item and a seed, never from the chunks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import SourceError
from shardmill.sources.parsing import BadLine, parse_json
from shardmill.verbs.split.blocks import LineBlock, gather
from shardmill.verbs.split.spec import SplitSpec, parse_by

BUCKETS = 256
_BUFFER_BYTES = 64 << 10
_HASH_HEX, _PART_HEX = 16, 2


class Routed(NamedTuple):
    """Lines of one part, in the order in which they are written."""

    part: int
    block: LineBlock


def route(blocks: Iterator[LineBlock], spec: SplitSpec) -> Iterator[Routed]:
    """Yield every line with its part, shuffled if the spec asks for it."""
    numbered = _number(blocks)
    if spec.shuffle is not None:
        yield from _shuffle(numbered, spec, spec.shuffle)
        return
    for first, block in numbered:
        parts = choose_parts(block, first, spec)
        if len(spec.splits) < 2:
            yield Routed(0, block)
            continue
        lines = block.lines()
        for part in range(len(spec.splits)):
            chosen = [lines[i] for i in np.flatnonzero(parts == part)]
            if chosen:
                yield Routed(part, LineBlock.of_lines(chosen))


def _number(blocks: Iterator[LineBlock]) -> Iterator[tuple[int, LineBlock]]:
    first = 0
    for block in blocks:
        yield first, block
        first += len(block)


def choose_parts(block: LineBlock, first: int, spec: SplitSpec) -> NDArray[np.int64]:
    """The part of each line; `first` is the row number of the first line."""
    if len(spec.splits) < 2:
        return np.zeros(len(block), np.int64)
    kind, argument = parse_by(spec.by)
    if kind == "random":
        numbers = mix(np.arange(first, first + len(block), dtype=np.uint64), int(argument), "split")
    else:
        numbers = np.fromiter((_hash_field(line, argument, first) for line in block.lines()), np.uint64, len(block))
    edges = np.cumsum([share for _, share in spec.splits])[:-1]
    return np.searchsorted(edges, numbers.astype(np.float64) / 2.0**64, side="right")


def mix(numbers: NDArray[np.uint64], seed: int, use: str) -> NDArray[np.uint64]:
    """A distinct 64-bit number for each row number (SplitMix64 from a state derived from the seed)."""
    key = int.from_bytes(hashlib.blake2b(f"{use}:{seed}".encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        x = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _hash_field(line: bytes, field: str, first: int) -> int:
    try:
        row = parse_json(line)
    except BadLine as bad:
        raise SourceError(f"a row after row {first:,} cannot be split by {field!r}: {bad}.", hint=_BY_HINT) from bad
    if row.get(field) is None:
        raise SourceError(f"a row after row {first:,} has no {field!r} to split by.", hint=_BY_HINT)
    value = json.dumps(row[field], sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


_BY_HINT = "Fix the row, or split with --by random:SEED."


def _shuffle(numbered: Iterator[tuple[int, LineBlock]], spec: SplitSpec, seed: int) -> Iterator[Routed]:
    """Sort all lines by a number derived from seed and row number.

    Lines are distributed over files by the first byte of the number, and each file is sorted in memory. So the order
    does not depend on the number of files, and memory use is 1/256 of the source.
    """
    with tempfile.TemporaryDirectory(prefix="shardmill-shuffle-") as folder:
        paths = [Path(folder) / f"{bucket:02x}" for bucket in range(BUCKETS)]
        _scatter(numbered, spec, seed, paths)
        for path in paths:
            yield from _sorted_bucket(path)
            path.unlink()


def _scatter(numbered: Iterator[tuple[int, LineBlock]], spec: SplitSpec, seed: int, paths: list[Path]) -> None:
    with contextlib.ExitStack() as stack:
        files: list[IO[bytes]] = [stack.enter_context(open(p, "wb", buffering=_BUFFER_BYTES)) for p in paths]
        for first, block in numbered:
            numbers = mix(np.arange(first, first + len(block), dtype=np.uint64), seed, "shuffle")
            parts = choose_parts(block, first, spec)
            buckets = (numbers >> np.uint64(56)).tolist()
            for bucket, number, part, line in zip(
                buckets, numbers.tolist(), parts.tolist(), block.lines(), strict=True
            ):
                files[bucket].write(b"%016x%02x%b\n" % (number, part, line))


def _sorted_bucket(path: Path) -> Iterator[Routed]:
    lines = path.read_bytes().split(b"\n")[:-1]
    lines.sort()
    by_part: dict[int, list[bytes]] = {}
    for line in lines:
        by_part.setdefault(int(line[_HASH_HEX : _HASH_HEX + _PART_HEX], 16), []).append(line)
    del lines
    for part, chosen in sorted(by_part.items()):
        for block in gather(line[_HASH_HEX + _PART_HEX :] for line in chosen):
            yield Routed(part, block)
