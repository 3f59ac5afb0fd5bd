"""What a look at a source found, and how it is found: by the first items, and by a sample from all over the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from shardmill.core.template import NO_TEXT
from shardmill.core.where.condition import columns_of
from shardmill.core.where.parsing import parse_condition
from shardmill.sources import Fields, ItemBatch, Source, SourceStat, count_lines, discover, list_columns, open_source
from shardmill.sources.formats import find_format
from shardmill.sources.taking import check_condition
from shardmill.verbs.peek.lengths import Counter, Lengths, find_languages

# A source up to this size is read whole, so that what is said of it is exact.
_WHOLE_BYTES = 4 << 20
# Otherwise items are sampled at some places.
_SAMPLED, _PLACES, _SMALLEST_BYTES = 1000, 20, 64 << 10
# For the first items, no more than this is read.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Peek:
    """What a source has. `items` is an estimate unless it is `exact`. So is `taken`, how many of them would be taken,
    unless the source was read whole.

    `shown` are the first items: `row`, the id, and `text`, or all columns if no text was named, or `error`. `lengths`
    are of the texts, or of each column of texts; `bad` is the share of sampled items that cannot be used. `languages`
    are shares of the sampled texts, empty if they were not looked for.
    """

    source: str
    format: str
    files: int
    bytes: int
    items: int
    taken: int
    exact: bool
    whole: bool
    columns: dict[str, str]
    shown: list[dict[str, Any]]
    lengths: list[Lengths]
    sampled: int
    bad: float
    languages: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def in_a_line(self) -> str:
        """How many items there are, how long they are, and what a model cuts."""
        return "; ".join([self.count(), *(each.in_a_line() for each in self.lengths[:1])])

    def count(self) -> str:
        """How many items there are, and how many are taken."""
        part = f", {'' if self.whole else 'about '}{self.taken:,} taken" if self.taken != self.items else ""
        return f"{'' if self.exact else 'about '}{self.items:,}{part}"


@dataclass(frozen=True, slots=True)
class _Sample:
    """Batches from all over a source, or all of it, and the size of the whole in items."""

    batches: list[ItemBatch]
    items: int
    exact: bool
    whole: bool = False

    @property
    def taken(self) -> int:
        """How many of these are taken."""
        return sum(len(_taken(batch)) for batch in self.batches)

    @property
    def taken_in_all(self) -> int:
        """How many of the whole are taken. Places count alike, as many rows as each shows."""
        shares = [len(_taken(batch)) / len(batch) for batch in self.batches if len(batch)]
        return self.taken if self.whole else round(self.items * sum(shares) / max(1, len(shares)))


def look(
    places: Sequence[str],
    fields: Fields,
    counter: Counter,
    *,
    format: str | None = None,
    limit: int | None = None,
    items: int = 10,
    max_item_bytes: int = 32 << 20,
) -> Peek:
    """Look at a source. Without a text, its columns are shown, and the lengths of those that hold texts are told."""
    columns = list_columns(places, fields.query, format, fields.config)
    simple = [name for name, kind in columns.items() if not pa.types.is_nested(kind)]
    has_text = fields.text not in ("", NO_TEXT)
    asked = columns_of(parse_condition(fields.where)) if fields.where else ()
    wanted = (*fields.wanted, *asked, *(() if has_text else simple))
    fields = replace(fields, text=fields.text or NO_TEXT, wanted=tuple(dict.fromkeys(wanted)))
    stat = discover(places, fields, format)
    check_condition(stat, fields)
    source = open_source(stat, fields, max_item_bytes)
    sample = _draw(source, stat, bool(fields.query))
    texts = {"text": _texts(sample)} if has_text else _columns(sample)
    shown_fields = fields if has_text else replace(fields, id=tuple(simple))
    usable = [text for each in texts.values() for text in each][:_SAMPLED]
    return Peek(
        source=", ".join(places),
        format=stat.format,
        files=len(stat.files),
        bytes=stat.size_bytes,
        items=sample.items,
        taken=min(sample.taken_in_all, limit or sample.items),
        exact=sample.exact,
        whole=sample.whole,
        columns={name: str(kind) for name, kind in columns.items()},
        shown=list(_first(source, shown_fields, counter.prompt, items, has_text=has_text)),
        lengths=[counter.measure(name, each) for name, each in texts.items() if each],
        sampled=sample.taken,
        bad=sum(len(batch.bad) for batch in sample.batches) / max(1, sample.taken),
        languages=find_languages(usable),
    )


def _taken(batch: ItemBatch) -> list[int]:
    rows: list[int] = list(range(len(batch))) if batch.taken is None else batch.taken.nonzero()[0].tolist()
    return rows


def _draw(source: Source, stat: SourceStat, is_query: bool) -> _Sample:
    if stat.size_bytes <= _WHOLE_BYTES:
        batches = [batch for shard in source.shards(1 << 60) for batch in source.read(shard)]
        return _Sample(batches, sum(map(len, batches)), exact=True, whole=True)
    pieces = source.shards(max(_SMALLEST_BYTES, stat.size_bytes // _PLACES))
    found = []
    for piece in pieces[:: max(1, len(pieces) // _PLACES)]:
        batch = next(iter(source.read(piece)), None)
        found += [] if batch is None else [batch]
    known = pieces[-1].stop if is_query else _count(stat)
    rows, size = sum(map(len, found)), sum(batch.size_bytes for batch in found)
    estimate = round(sum(piece.weight_bytes for piece in pieces) * rows / max(1, size))
    return _Sample(found, estimate if known is None else known, exact=known is not None)


def _count(stat: SourceStat) -> int | None:
    """The number of items, if the files tell it without being read."""
    if not find_format(stat.format).counted_remotely:
        return None
    counts = [count_lines(stat, file) for file in stat.files]
    return None if None in counts else sum(each or 0 for each in counts)


def _texts(sample: _Sample) -> list[str]:
    every = [text for batch in sample.batches for text in _pick(batch, batch.texts) if text is not None]
    return every[:: max(1, len(every) // _SAMPLED)]


def _columns(sample: _Sample) -> dict[str, list[str]]:
    """The values of each column of texts."""
    found: dict[str, list[str]] = {}
    for batch in sample.batches:
        for name in batch.kept.schema.names:
            if pa.types.is_string(batch.kept.schema.field(name).type):
                values = _pick(batch, batch.kept.column(name))
                found.setdefault(name, []).extend(value for value in values if value is not None)
    return {name: each[:: max(1, len(each) // _SAMPLED)] for name, each in found.items()}


def _pick(batch: ItemBatch, column: pa.Array) -> list[Any]:
    picked: list[Any] = (column if batch.taken is None else column.filter(pa.array(batch.taken))).to_pylist()
    return picked


def _first(source: Source, fields: Fields, prompt: str, items: int, *, has_text: bool) -> Iterator[dict[str, Any]]:
    """The first items that are taken, by their numbers in the source."""
    row = read_bytes = shown = 0
    for shard in source.shards(_WHOLE_BYTES) if items else ():
        for batch in source.read(shard):
            for at in _taken(batch)[: items - shown]:
                text = batch.texts[at].as_py()
                seen: dict[str, Any] = {"row": row + at}
                seen |= {name: batch.kept.column(name)[at].as_py() for name in fields.id}
                if why := batch.bad.get(at):
                    seen["error"] = why
                elif has_text:
                    seen["text"] = prompt + text
                yield seen
                shown += 1
            row, read_bytes = row + len(batch), read_bytes + batch.size_bytes
            if shown >= items or read_bytes > _MOST_BYTES:
                return
