"""Where a row came from, as columns beside those of the data: its file, the address of that, its line, and what the
names of its folders say; and a hash of its text.

A column that the data has itself is the data's. Which ones are ours is settled when a run is planned, so that no row
decides it later. The plan then names each file as it was found, since a host may read a copy, and each shard the lines
before it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from shardmill.core.errors import SourceError, nearest
from shardmill.core.template import NO_TEXT, TextTemplate
from shardmill.plan import Shard, SourceStat
from shardmill.sources.base import Fields
from shardmill.sources.columns import column_names, split_keep
from shardmill.store import is_url

if TYPE_CHECKING:
    import pyarrow as pa

FILE, URL, LINE, HASH = "file", "url", "line", "hash"
# What a reader of files offers, and the types.
ORIGIN = {FILE: "string", URL: "string", LINE: "int64", HASH: "string"}
# In place of an id: the file and the line.
AUTO = "auto"
_HASH_BYTES = 16
# A folder of a partitioned dataset, as `lang=en`, and its name for a null.
_PARTITION = re.compile(r"([^/=]+)=([^/]*)")
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
# What others call them.
_OTHER_WORDS = ("path", "filename", "filepath", "source", "address", "row", "lineno", "line_number")


@dataclass(frozen=True, slots=True)
class Origin:
    """What tells where the rows of a piece of a file came from: what they share, and the lines before the piece."""

    shared: Mapping[str, str | None]
    numbered: bool
    before: int
    hashed: bool

    def of(self, line: int) -> dict[str, object]:
        """The columns of a row by its line in the piece, from 1."""
        return {**self.shared, LINE: self.before + line} if self.numbered else dict(self.shared)

    def extend(self, batch: pa.RecordBatch, rows_done: int) -> pa.RecordBatch:
        """The batch with these columns, but for the hash; it follows `rows_done` rows of the piece."""
        import pyarrow as pa

        for name, value in self.shared.items():
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, pa.string()), batch.num_rows))
        if self.numbered:
            first = self.before + rows_done + 1
            batch = batch.append_column(LINE, pa.array(range(first, first + batch.num_rows), pa.int64()))
        return batch


def hash_text(text: str | None) -> str | None:
    """What identifies a text by its content."""
    return None if text is None else hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()


class Origins:
    """Where the rows of a source came from, piece by piece; nothing if nobody asks."""

    def __init__(self, stat: SourceStat) -> None:
        self._stat = stat
        self._folder = common_folder([file.origin for file in stat.files]) if stat.origin else ""

    def of(self, shard: Shard) -> Origin | None:
        names = self._stat.origin
        if not names:
            return None
        place = self._stat.files[shard.file].origin
        known: dict[str, str | None] = {**partitions(place), FILE: place.removeprefix(self._folder)}
        known[URL] = place if is_url(place) else Path(place).as_uri()
        shared = {name: known[name] for name in names if name in known}
        return Origin(shared, LINE in names, shard.before, HASH in names)


def common_folder(places: Sequence[str]) -> str:
    """The deepest folder with all the places, with its slash.

    >>> common_folder(["/a/b/c.txt", "/a/b/d/e.txt"]), common_folder(["s3://a/b.txt"])
    ('/a/b/', 's3://a/')
    """
    pairs = zip(min(places).split("/")[:-1], max(places).split("/")[:-1], strict=False)
    return "".join(f"{a}/" for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def partitions(place: str) -> dict[str, str | None]:
    """What the names of a file's folders say of all its rows.

    >>> partitions("s3://bucket/lang=en/day=2026-01-01/a.parquet")
    {'lang': 'en', 'day': '2026-01-01'}
    """
    found = [_PARTITION.fullmatch(folder) for folder in place.split("/")[:-1]]
    return {unquote(each[1]): None if each[2] == NULL_VALUE else unquote(each[2]) for each in found if each}


def offered(places: Sequence[str]) -> dict[str, str]:
    """The names and types of all columns that tell where the rows of these files came from."""
    named = bool(places) and "=" in places[0]
    shared = set.intersection(*({*partitions(place)} for place in places)) if named else set()
    return {**dict.fromkeys(sorted(shared), "string"), **ORIGIN}


def asked_origin(fields: Fields, offers: Collection[str], list_names: Callable[[], Collection[str]]) -> tuple[str, ...]:
    """The columns among those offered that the fields name and the data lacks; its names are listed only for that."""
    asked = {*TextTemplate.parse(fields.text).names, *column_names(fields)} & {*offers}
    return tuple(sorted(asked - {*list_names()})) if asked else ()


def without_origin(fields: Fields, origin: Collection[str]) -> Fields:
    """The fields that are read from the data."""
    if not origin:
        return fields
    return replace(
        fields,
        text=_without(fields.text, origin),
        id=tuple(name for name in fields.id if name not in origin),
        keep=tuple(entry for entry in fields.keep if split_keep(entry)[0] not in origin),
        wanted=tuple(name for name in fields.wanted if name not in origin),
    )


def _without(text: str, origin: Collection[str]) -> str:
    template = TextTemplate.parse(text)
    names = [name for name in template.names if name not in origin]
    if len(names) == len(template.names):
        return text
    return "".join(f"{{{name}:json}}" if name in template.as_json else f"{{{name}}}" for name in names) or NO_TEXT


def number_lines(shards: Sequence[Shard], count: Callable[[Shard, Shard], int]) -> Iterator[Shard]:
    """The shards with the lines of their file before them; `count` counts from one piece to the next."""
    before = 0
    for last, shard in itertools.pairwise([None, *shards]):
        assert shard is not None
        before = 0 if last is None or last.file != shard.file else before + count(last, shard)
        yield replace(shard, before=before)


def no_field(name: str, place: str, names: Collection[str]) -> SourceError:
    """The refusal of a field that a file lacks."""
    hint, ours = nearest(name, [*names]), get_close_matches(name, ORIGIN, n=1)
    if ours or name in _OTHER_WORDS:
        hint += f" Where a row came from is in {', '.join(ORIGIN)}."
    return SourceError(f"no field {name!r} in {place}.", hint=hint)
