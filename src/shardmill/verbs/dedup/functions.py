"""Finds texts that are equal or nearly so, as functions for `apply`: signatures, bands of them, pairs, and a filter."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.extras import missing_package
from shardmill.core.words import cut_characters, find_words
from shardmill.plan import NUMBER

Numbers = NDArray[np.int64]

# Hashes in a signature. A similarity that is estimated by them has a standard error of at most 0.045.
HASHES = 128
_SEED = 1
# A candidate that is not similar costs a comparison, a pair that is no candidate is missed.
_WEIGHTS = (0.02, 0.98)
_SHINGLE = 3
# What is between tags is text, but not of these; a block begins a new word, and marks within a word do not cut it.
_HIDDEN = re.compile(r"<!--.*?(?:-->|$)|<(script|style)\b.*?(?:</\1\s*>|$)", re.IGNORECASE | re.DOTALL)
_INLINE = re.compile(r"</?(?:a|abbr|b|em|font|i|mark|s|small|span|strong|sub|sup|u)(?:\s[^<>]*)?>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-z!?][^<>]*>", re.IGNORECASE)
# Bands for a threshold so high that datasketch has none: a pair at 1 shares all.
_TWO_BANDS = (2, HASHES // 2)
# The lower bits of an item's number are its number in the shard.
SHARD_BITS = 32
# A column on the way to a result without duplicates; a source hardly has one of that name.
SIGNATURE = "shardmill_signature"
# The file of the run folder that says which item each dropped one is like.
PAIRS = "duplicates.parquet"


def normalize(text: str) -> str:
    """The words of a text in lower case, without marks: texts that differ in nothing else are equal.

    >>> normalize("It’s  FINE, really!")
    'it s fine really'
    """
    return " ".join(find_words(unicodedata.normalize("NFKC", text).lower()))


def strip_markup(text: str) -> str:
    """The text of HTML or XML, without tags, comments, scripts and styles.

    >>> strip_markup("<p class=lead>Fish &amp; <b>ch</b>ips</p><!-- ad -->")
    ' Fish & chips  '
    """
    return html.unescape(_TAG.sub(" ", _INLINE.sub("", _HIDDEN.sub(" ", text))))


def shingles(normalized: str, *, characters: bool = False) -> list[bytes]:
    """Each three words that follow one another; of a shorter text, all its words.

    With `characters`, those of scripts without spaces stand for words.
    """
    words = normalized.split()
    words = cut_characters(words) if characters else words
    return [" ".join(words[i : i + _SHINGLE]).encode() for i in range(max(1, len(words) - _SHINGLE + 1))]


def digest_text(normalized: str, item: int) -> str:
    """Equal for equal texts. A text without words is like no other."""
    return hashlib.sha256(normalized.encode()).hexdigest()[:32] if normalized else f"item {item}"


def exact_signatures(rows: list[dict[str, Any]], markup: bool = True) -> list[dict[str, Any]]:
    """The number of each item and the digest of its text, with its `markup` or without."""
    texts = [normalize(row["text"] if markup else strip_markup(row["text"])) for row in rows]
    return [
        {NUMBER: row[NUMBER], "digest": digest_text(text, row[NUMBER])} for row, text in zip(rows, texts, strict=True)
    ]


class Signatures:
    """The same with a MinHash signature, null for a text without words.

    `characters` of scripts without spaces stand for words, but in runs of earlier versions.
    """

    columns: ClassVar = {NUMBER: "int64", "digest": "string", SIGNATURE: f"fixed_size_binary[{4 * HASHES}]"}

    def __init__(self, characters: bool = False, markup: bool = True) -> None:
        self._library, self._characters, self._markup = load_datasketch(), characters, markup

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        texts = [normalize(row["text"] if self._markup else strip_markup(row["text"])) for row in rows]
        made = self._library.MinHash.generator(
            [shingles(text, characters=self._characters) for text in texts],
            num_perm=HASHES,
            seed=_SEED,
            scheme="affine32",
        )
        return [
            {
                NUMBER: row[NUMBER],
                "digest": digest_text(text, row[NUMBER]),
                SIGNATURE: np.asarray(each.hashvalues, "<u4").tobytes() if text else None,
            }
            for row, text, each in zip(rows, texts, made, strict=True)
        ]


class Bands:
    """One row per band of a signature: items that share one are candidates."""

    columns: ClassVar = {NUMBER: "int64", "key": "string"}

    def __init__(self, threshold: float) -> None:
        library = load_datasketch()
        try:
            chosen = library.MinHashLSH(threshold=threshold, num_perm=HASHES, weights=_WEIGHTS)
        except ValueError:
            chosen = library.MinHashLSH(params=_TWO_BANDS, num_perm=HASHES)
        self._bands, self._rows = chosen.b, chosen.r

    def __call__(self, rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        return [[{NUMBER: row[NUMBER], "key": key} for key in self._keys(row[SIGNATURE])] for row in rows]

    def _keys(self, signature: bytes | None) -> Iterator[str]:
        size = 4 * self._rows
        for band in range(self._bands if signature else 0):
            piece = (signature or b"")[band * size : (band + 1) * size]
            yield f"{band}:{hashlib.sha256(piece).hexdigest()[:24]}"


def pair_up(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Of each group of items, given as a text of numbers, the first with each of the others; none of one alone."""
    made = []
    for row in rows:
        first, *others = sorted({int(number) for number in row["text"].split()})
        made.append([{"kept": first, "dropped": other} for other in others])
    return made


pair_up.columns = {"kept": "int64", "dropped": "int64"}  # type: ignore[attr-defined]


class WithoutDuplicates:
    """Gives the digest of each item that stays, and no row for the others."""

    columns: ClassVar = {"digest": "string"}
    dropped_file = PAIRS

    def __init__(self, dropped: dict[str, str]) -> None:
        self._dropped = {int(shard): _unpack(bits) for shard, bits in dropped.items()}

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
        if any(row[NUMBER] is None for row in rows):
            raise ValueError("it has no signature: see the errors of the run of signatures")
        return [None if self._is_dropped(row[NUMBER]) else {"digest": row["digest"]} for row in rows]

    def _is_dropped(self, item: int) -> bool:
        bits, number = self._dropped.get(item >> SHARD_BITS), item & ((1 << SHARD_BITS) - 1)
        return bits is not None and number < len(bits) and bool(bits[number])


def pack_items(items: Numbers) -> dict[str, str]:
    """Numbers of items as a bit for each item of their shards, compressed, for `WithoutDuplicates`."""
    shards, numbers = items >> SHARD_BITS, items & ((1 << SHARD_BITS) - 1)
    packed = {}
    for shard in np.unique(shards):
        own = numbers[shards == shard]
        bits = np.zeros(int(own.max()) + 1, bool)
        bits[own] = True
        packed[str(int(shard))] = base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()
    return packed


def _unpack(text: str) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8))


def join_pairs(kept: Numbers, dropped: Numbers) -> tuple[Numbers, Numbers]:
    """For each item that is removed, in order, the first item that it is joined to by pairs.

    >>> join_pairs(np.array([1, 2]), np.array([2, 5]))
    (array([1, 1]), array([2, 5]))
    """
    first: dict[int, int] = {}

    def find(item: int) -> int:
        while (above := first.get(item, item)) != item:
            first[item] = first.get(above, above)
            item = above
        return item

    for a, b in zip(kept.tolist(), dropped.tolist(), strict=True):
        low, high = sorted((find(a), find(b)))
        if low != high:
            first[high] = low
    gone = np.array(sorted(first), np.int64)
    return np.array([find(item) for item in gone.tolist()], np.int64), gone


def similarity(signatures: pa.Array, kept: Numbers, dropped: Numbers) -> NDArray[np.float64]:
    """The share of equal hashes of signatures at these places: an estimate of the share of equal shingles."""
    matrix = np.frombuffer(b"".join(signatures.to_pylist()), "<u4").reshape(-1, HASHES)
    return np.array((matrix[kept] == matrix[dropped]).mean(axis=1), np.float64)


def load_datasketch() -> Any:
    """The library for MinHash, or the command that installs it."""
    try:
        import datasketch
    except ImportError as error:
        raise missing_package("datasketch") from error
    return datasketch


__all__: Sequence[str] = (
    *("Bands", "Signatures", "WithoutDuplicates", "exact_signatures", "join_pairs", "normalize"),
    *("pack_items", "pair_up", "shingles", "similarity", "strip_markup"),
)
