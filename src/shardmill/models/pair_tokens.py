"""Tokens of two texts that are read together: both in one row, with the type of each token.

A model gets the types only if its tokenizer names them among its inputs (`model_input_names`), as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.backend import Backend, names_types
from shardmill.models.folder import read_transformer_config
from shardmill.models.ragged import Ragged, ragged, starts_of
from shardmill.models.tokenizer import Tokenizer

Ints = NDArray[np.int64]
# Families that do not tell the two texts apart; of others, a config.json without `type_vocab_size` says nothing.
_UNTYPED = {"deberta-v2", "distilbert", "modernbert", "mpnet"}
_PROBE = ("a", "b")


@dataclass(frozen=True, slots=True)
class PairTokens:
    """One pair as the model takes it: ids, and which of the two texts each belongs to."""

    ids: NDArray[Any]
    types: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class PairRows(Sequence[PairTokens]):
    """Pairs, how many of them were cut, and why a pair is bad."""

    ids: Ragged
    types: Ragged
    truncated: int = 0
    bad: dict[int, str] = field(default_factory=dict)

    @overload
    def __getitem__(self, row: int) -> PairTokens: ...
    @overload
    def __getitem__(self, row: slice) -> list[PairTokens]: ...
    def __getitem__(self, row: int | slice) -> PairTokens | list[PairTokens]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return PairTokens(self.ids[row], self.types[row])

    def __len__(self) -> int:
        return len(self.ids)


def rows_of(ids: Iterable[Sequence[int]], truncated: int) -> PairRows:
    """Pairs without types."""
    rows = ragged(ids)
    return PairRows(rows, Ragged(np.zeros_like(rows.flat), rows.starts), truncated)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The special ids of a pair with their types, before, between and after its texts, and the types of those."""

    ids: tuple[Ints, Ints, Ints]
    types: tuple[Ints, Ints, Ints]
    of_texts: tuple[int, int]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The special tokens of a pair: before the first text, between both, after the second; and the types of both."""

    parts: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    types: tuple[int, int]


class PairTokenizer:
    """A folder's tokenizer. `longest` is the maximum number of tokens by its files, huge if they give none.

    `typed` says whether a model gets the types; without `named_types` all models do, as in runs of earlier versions.
    A `prompt` is put before the first text.
    """

    def __init__(self, backend: Backend, *, named_types: bool = True, prompt: str = "") -> None:
        self.tokenizer, self.longest = backend.tokenizer, backend.longest
        self._backend, self._prompt = backend, prompt
        self._side = "left" if backend.from_left else "right"
        self._pad_id = backend.pad_id or 0
        self.typed = backend.typed or not named_types

    @cached_property
    def _texts(self) -> Tokenizer | None:
        """Tokenizes single texts; None if that cannot be told from pairs."""
        own = self._backend
        if self._frame is None:
            return None
        try:
            special = set(own.special_ids)
            return Tokenizer(own.tokenizer, limit=None, pad_id=self._pad_id, special_ids=special, from_left=False)
        except ModelError:
            return None

    @cached_property
    def _frame(self) -> _Frame | None:
        return _find_frame(self.tokenizer)

    def encode(self, firsts: Sequence[str], seconds: Sequence[str], limit: int) -> PairRows:
        """Tokenize pairs; of one with more than `limit` tokens, the longer text is cut, as transformers does it."""
        if self._prompt:
            firsts = [self._prompt + first for first in firsts]
        if self._texts is None or self._frame is None or self._frame.tokens >= limit:
            return self._encode_whole(firsts, seconds, limit)
        sides = _read_once(self._texts, firsts), _read_once(self._texts, seconds)
        return self._join(self._frame, *sides, limit)

    def _encode_whole(self, firsts: Sequence[str], seconds: Sequence[str], limit: int) -> PairRows:
        """By the tokenizers library, whatever it puts around the texts."""
        self.tokenizer.enable_truncation(limit, strategy="longest_first", direction=self._side)
        try:
            made: list[Any] = self.tokenizer.encode_batch(list(zip(firsts, seconds, strict=True)))
        finally:
            self.tokenizer.no_truncation()
        ids = ragged(each.ids for each in made)
        types = ragged(each.type_ids for each in made) if self.typed else Ragged(np.zeros_like(ids.flat), ids.starts)
        return PairRows(ids, types, sum(bool(each.overflowing) for each in made))

    def _join(self, frame: _Frame, first: _Side, second: _Side, limit: int) -> PairRows:
        """Rows of both sides, cut to the limit, with the special ids."""
        sides, room = (first.rows, second.rows), limit - frame.tokens
        lengths = [side.lengths for side in sides]
        cut = lengths[0] + lengths[1] > room
        kept = _cut_longest(lengths[0], lengths[1], room)
        starts = starts_of(kept[0] + kept[1] + frame.tokens)
        ids = np.empty(int(starts[-1]), np.int32)
        types = np.zeros(len(ids), np.int32)
        at = starts[:-1].copy()
        for part in range(3):
            for value, kind in zip(frame.ids[part], frame.types[part], strict=True):
                ids[at], types[at] = value, kind
                at += 1
            if part < 2:
                side, count = sides[part], kept[part]
                skipped = lengths[part] - count if self._side == "left" else 0
                taken = side.take(side.starts[:-1] + skipped, count)
                places = np.arange(len(taken.flat)) + np.repeat(at - taken.starts[:-1], count)
                ids[places], types[places] = taken.flat, frame.of_texts[part]
                at += count
        if not self.typed:
            types[:] = 0
        bad = {**second.bad, **first.bad}
        return PairRows(Ragged(ids, starts), Ragged(types, starts), int(cut.sum()), bad)

    def pair(self, ids: Sequence[int], types: Sequence[int]) -> PairTokens:
        """One pair, with its types if the model gets them, else with zeros."""
        return PairTokens(np.array(ids, np.int64), np.array(types if self.typed else [0] * len(ids), np.int64))

    def pad(self, pairs: Sequence[PairTokens]) -> tuple[Ints, Ints, Ints]:
        """Ids padded to the longest pair, which of them are there, and their types."""
        return pad_pairs(pairs, self._pad_id)


def pad_pairs(pairs: Sequence[PairTokens], pad_id: int = 0) -> tuple[Ints, Ints, Ints]:
    """Ids padded to the longest pair, which of them are there, and their types."""
    lengths = np.array([len(pair.ids) for pair in pairs])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids, types = np.full(real.shape, pad_id, np.int64), np.zeros(real.shape, np.int64)
    ids[real] = np.concatenate([pair.ids for pair in pairs])
    types[real] = np.concatenate([pair.types for pair in pairs])
    return ids, real.astype(np.int64), types


@dataclass(frozen=True, slots=True)
class _Side:
    rows: Ragged
    bad: dict[int, str]


def _read_once(tokenizer: Tokenizer, texts: Sequence[str]) -> _Side:
    """The ids of one side of pairs; a text that many pairs have is tokenized once."""
    unique = list(dict.fromkeys(texts))
    rows, bad = tokenizer.bare(unique)
    if len(unique) == len(texts):
        return _Side(rows, bad)
    numbers = {text: i for i, text in enumerate(unique)}
    which = np.array([numbers[text] for text in texts], np.int64)
    taken = rows.take(rows.starts[:-1][which], rows.lengths[which])
    return _Side(taken, {i: bad[k] for i, k in enumerate(which.tolist()) if k in bad} if bad else {})


def _cut_longest(first: Ints, second: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens stay of each text: the longer is cut to the shorter one's length, then both alike."""
    short, swapped, fits = np.minimum(first, second), first > second, first + second <= room
    long = np.where(fits, np.maximum(first, second), np.maximum(short, room - short))
    halved = short + long > room
    short, long = np.where(halved, room // 2, short), np.where(halved, room // 2 + room % 2, long)
    return np.where(swapped, long, short), np.where(swapped, short, long)


def _find_frame(tokenizer: Any) -> _Frame | None:
    """What the tokenizer puts around two texts, in their order; None if it does something else with them."""
    made = tokenizer.encode(*_PROBE)
    whose = made.sequence_ids
    bare = [tokenizer.encode(text, add_special_tokens=False).ids for text in _PROBE]
    places = [[i for i, side in enumerate(whose) if side == k] for k in (0, 1)]
    for own, found in zip(places, bare, strict=True):
        if not own or own != list(range(own[0], own[0] + len(found))) or [made.ids[i] for i in own] != found:
            return None
    (a, b), (c, d) = ((own[0], own[-1] + 1) for own in places)
    if b > c:
        return None
    cuts = (slice(0, a), slice(b, c), slice(d, None))
    ids, types = np.array(made.ids, np.int64), np.array(made.type_ids, np.int64)
    return _Frame(
        (ids[cuts[0]], ids[cuts[1]], ids[cuts[2]]),
        (types[cuts[0]], types[cuts[1]], types[cuts[2]]),
        (int(types[a]), int(types[c])),
    )


def find_frame(tokenizer: Any, name: str) -> PairFrame:
    """What a tokenizer puts around two texts."""
    made = tokenizer.encode("a", "b")
    sides = made.sequence_ids
    if None not in sides or sides.index(0) > sides.index(1) or sides[0] is not None:
        raise ModelError(f"{name} puts the second text first or marks no start.", hint="Choose another model.")
    first, last = sides.index(0), len(sides) - sides[::-1].index(0)
    second, end = sides.index(1), len(sides) - sides[::-1].index(1)
    parts = tuple(made.ids[:first]), tuple(made.ids[last:second]), tuple(made.ids[end:])
    return PairFrame(parts, (made.type_ids[first], made.type_ids[second]))


def lacks_types(folder: Path) -> bool:
    """Whether a model reads types that its tokenizer does not name: an earlier version gave them, with other logits."""
    config = read_transformer_config(folder)
    types = config.get("type_vocab_size", 0 if config.get("model_type") in _UNTYPED else 2)
    return int(types) > 1 and not names_types(folder)
