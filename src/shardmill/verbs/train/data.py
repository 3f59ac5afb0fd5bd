"""The items of a training run, in memory, and the part of them that is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shardmill.core.errors import SourceError, SpecError, TooManyErrors
from shardmill.plan.spec import ErrorLimit
from shardmill.store import locate
from shardmill.verbs.train.batch import StepBatch, Text
from shardmill.verbs.train.params import TrainParams

# Columns that a collected source has of its own: the row there, and why it cannot be used.
ROW, WHY = "row", "why"
# Texts that a held-out anchor is ranked against, at most.
_RANKED = 10_000
# Rows that an error names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts by column, the label of each item if it has one, and the group by which items are split.

    `prompts` are the texts before those of each column; `left_out` says which rows of the source are no items, and why.
    """

    table: pa.Table
    options: TrainParams
    prompts: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        count: int = self.table.num_rows
        return count

    def batch(self, items: Sequence[int] | NDArray[np.int64]) -> StepBatch:
        """The batch of some items, by number."""
        rows = self.table.take(pa.array(items, pa.int64()))
        columns = [rows[name].to_pylist() for name in self.options.columns]
        labels = rows[self.options.label].to_numpy().astype(np.float32) if self.options.label else None
        return StepBatch.of(columns, self.prompts, labels)

    def split(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of the items to train on, and of those held out; whole groups, drawn by the seed."""
        every = np.arange(len(self), dtype=np.int64)
        wanted = round(self.options.held_out * len(self))
        if not wanted:
            return every, every[:0]
        # Rows without a value are one group.
        groups = self.table[self.options.split_column].combine_chunks().dictionary_encode("encode")
        codes = groups.indices.to_numpy(zero_copy_only=False)
        names, sizes = groups.dictionary.to_pylist(), np.bincount(codes)
        order = np.array(sorted(range(len(names)), key=lambda i: _draw(self.options.seed, str(names[i]))))
        before = np.cumsum(sizes[order]) - sizes[order]
        # At least one group is held out, and at least one is trained on.
        chosen = order[: min(max(1, int((before < wanted).sum())), len(order) - 1)]
        held = np.isin(codes, chosen)
        return every[~held], every[held]

    def ranking(self, held: NDArray[np.int64]) -> Ranking:
        """What is ranked to evaluate: held-out anchors against the partners of all items, of held-out ones first."""
        anchors, partners = (self.table[name] for name in self.options.columns[:2])
        rows = pa.array(held)
        right: dict[str, list[str]] = {}
        for anchor, partner in zip(anchors.take(rows).to_pylist(), partners.take(rows).to_pylist(), strict=True):
            right.setdefault(anchor, []).append(partner)
        texts = dict.fromkeys(partner for each in right.values() for partner in each)
        most = max(_RANKED, len(texts))
        for chunk in partners.chunks:
            if len(texts) >= most:
                break
            texts |= dict.fromkeys(chunk.to_pylist())
        found = list(texts)[:most]
        return Ranking(
            tuple((self.prompts[0], anchor) for anchor in right),
            tuple((self.prompts[1], text) for text in found),
            tuple(tuple(partners) for partners in right.values()),
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """Anchors, the texts they are ranked against, and the right ones of each anchor."""

    anchors: tuple[Text, ...]
    texts: tuple[Text, ...]
    right: tuple[tuple[str, ...], ...]


def read_pairs(place: str, options: TrainParams, prompts: tuple[str, ...]) -> Pairs:
    """The items in a Parquet file, without those that lack a text or their label; too many of these are refused."""
    store, name = locate(place)
    with store.reader(name) as data, pq.ParquetFile(data) as file:
        table = file.read()
    for column in options.columns:
        if not _is_text(table[column].type):
            raise SpecError(
                f"The column {column!r} holds {table[column].type}, not text.", hint="Name other ones with --columns."
            )
    if options.label and _is_text(table[options.label].type):
        table = _with_numbers(table, options.label)
    if options.label and not _is_number(table[options.label].type):
        raise SpecError(
            f"The label {options.label!r} holds {table[options.label].type}, not numbers.",
            hint="Name another column with --label.",
        )
    reasons = table[WHY].to_pylist()
    for column in options.columns:
        blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(table[column]), ""), True)
        _blame(reasons, blank, f"no text in {column!r}")
    if options.label:
        finite = pc.fill_null(pc.is_finite(table[options.label].cast(pa.float64())), False)
        _blame(reasons, pc.invert(finite), f"no number in {options.label!r}")
    left = tuple(
        f"row {row}: {why}" for row, why in zip(table[ROW].to_pylist(), reasons, strict=True) if why is not None
    )
    if ErrorLimit.parse(options.max_errors).exceeded(len(left), table.num_rows):
        raise _too_many(left, table.num_rows, options.max_errors)
    table = table.filter(pa.array([why is None for why in reasons]))
    if table.num_rows < 2:
        raise SourceError(
            f"There are too few items to train on: {table.num_rows}.", hint="Give a source with more rows."
        )
    pairs = Pairs(table, options, prompts, left)
    _check_labels(pairs)
    _check_differences(pairs)
    return pairs


def _check_labels(pairs: Pairs) -> None:
    if pairs.options.objective != "cosine":
        return
    seen = pc.min_max(pairs.table[pairs.options.label].cast(pa.float64())).as_py()
    if seen["min"] < -1 or seen["max"] > 1:
        raise SpecError(
            f"{pairs.options.label!r} has labels from {seen['min']:g} to {seen['max']:g}; --loss cosine wants cosines, "
            "from -1 to 1.",
            hint="Leave out --loss: cosent needs their order alone. Or scale them.",
        )


def _check_differences(pairs: Pairs) -> None:
    """Refuse items that all agree where the loss needs a difference: it would be zero at every step."""
    options = pairs.options
    needed = options.columns if options.learns_from_others else ()
    if options.objective == "cosent":
        needed = (options.label,)
    if not needed:
        return
    what = "label" if options.label else "text"
    learnt, held = pairs.split()
    for name in needed:
        if pc.count_distinct(pairs.table[name].take(pa.array(learnt))).as_py() == 1:
            raise SourceError(
                f"All {len(learnt):,} items to train on have the same {what} in {name!r}: there is nothing to learn.",
                hint=f"Lower --held-out, which took {len(held):,} items, or give more rows."
                if len(held)
                else "Give a source with more rows, or name other columns.",
            )


def _too_many(left: tuple[str, ...], rows: int, allowed: str) -> TooManyErrors:
    """The limit is part of the work, as the weights depend on what is left out: with another one it is another run."""
    more = f"; and {len(left) - _NAMED:,} more" if len(left) > _NAMED else ""
    share = 100 * len(left) / rows
    return TooManyErrors(
        f"{len(left):,} of {rows:,} rows cannot be trained on ({share:.1f}%), over --max-errors {allowed}: "
        f"{'; '.join(left[:_NAMED])}{more}.",
        hint=f"With --fresh --max-errors {len(left)} they are left out; or mend them."
        if len(left) < rows
        else "Name other columns with --columns or --label, or mend the source.",
    )


def _with_numbers(table: pa.Table, name: str) -> pa.Table:
    """The table with a column of texts as numbers, null where a text is not a number; unchanged if none is.

    One label that is no number, in a source without types, makes texts of all of them.
    """
    numbers = [_as_number(text) for text in table[name].to_pylist()]
    if not any(number is not None for number in numbers):
        return table
    return table.set_column(table.schema.get_field_index(name), name, pa.array(numbers, pa.float64()))


def _as_number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return any(fits(kind) for fits in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))


def _blame(reasons: list[str | None], rows: pa.ChunkedArray, why: str) -> None:
    for i in np.flatnonzero(rows.to_numpy()):
        reasons[i] = reasons[i] or why


def _draw(seed: int, group: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{group}".encode()).digest()
