"""Cuts a text of any length into overlapping windows of tokens with their character spans; computes their mean."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SpecError
from shardmill.models.ragged import Ids, Ragged
from shardmill.models.tokenizer import Tokenizer
from shardmill.models.words import Spelled
from shardmill.sources.documents.document import find_pages
from shardmill.tasks.base import Output, Prepared

Numbers = NDArray[np.int64]


class Window(NamedTuple):
    """The model's input ids; the characters [start, stop) they cover; how many of the tokens are the text's own.

    `page` is the page of its middle, 0 if that is not asked for or the text has no pages.
    """

    ids: Ids
    start: int
    stop: int
    tokens: int
    page: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Windows(Sequence[Window]):
    ids: Ragged
    starts: Numbers
    stops: Numbers
    tokens: Numbers
    pages: Numbers

    @overload
    def __getitem__(self, row: int) -> Window: ...
    @overload
    def __getitem__(self, row: slice) -> list[Window]: ...
    def __getitem__(self, row: int | slice) -> Window | list[Window]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        numbers = (int(column[row]) for column in (self.starts, self.stops, self.tokens, self.pages))
        return Window(self.ids[row], *numbers)

    def __len__(self) -> int:
        return len(self.ids)


class Cutter:
    """Cuts texts into windows of at most `window_tokens` tokens, including special tokens and the prompt.

    The first window of a text is the model's input without windows, truncated. Each later window repeats the prompt
    and begins with the last `overlap` tokens of the previous one. With `borders`, a window ends where a page or a
    section does, if that leaves it half full, and the next one begins there.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: str, window_tokens: int, overlap: int, borders: bool = False
    ) -> None:
        if tokenizer.chat is not None:
            raise SpecError(
                "The model reads each text as a message of a chat, which windows do not support.",
                hint="Leave out the windows, or split the texts first: shardmill split",
            )
        limit = tokenizer.limit
        if limit is not None and window_tokens > limit:
            raise SpecError(
                f"window_tokens is {window_tokens:,}; the model's maximum is {limit:,}, including special tokens.",
                hint=f"Give --window-tokens {limit} or less.",
            )
        self._tokenizer, self._prompt, self._overlap, self._borders = tokenizer, prompt, overlap, borders
        self._prompt_ids: list[int] = tokenizer.spell([prompt])[0].ids[0].tolist()
        self._whole = window_tokens - tokenizer.frame_tokens
        self._room = self._whole - len(self._prompt_ids)
        if self._room <= overlap:
            taken = tokenizer.frame_tokens + len(self._prompt_ids)
            raise SpecError(
                f"A window of {window_tokens:,} tokens has room for {max(0, self._room):,} of the text besides {taken} "
                f"for special tokens and the prompt; the overlap of {overlap:,} must be smaller.",
                hint="Raise --window-tokens or lower --overlap.",
            )

    def prepare(self, texts: Sequence[str | None], paged: Collection[int] = ()) -> Prepared:
        """Cut each text into windows; None has no window. The windows of the texts in `paged` get their page."""
        present = [i for i, text in enumerate(texts) if text is not None]
        spelled, bad = self._tokenizer.spell([self._prompt + (texts[i] or "") for i in present])
        own = [texts[i] or "" for i in present]
        cuts = self._cut_all(spelled, own, bad)
        bare = spelled.ids.take(cuts[:, _FIRST], cuts[:, _LENGTH])
        bare = bare.put_around(self._prompt_ids, (), cuts[:, _LATER] == 1)
        ids, unfit = self._tokenizer.frame(bare, np.ones(len(bare), bool))
        owners = np.array(present, np.int64)[cuts[:, _OWNER]]
        reasons = {present[k]: reason for k, reason in bad.items()}
        for row, reason in unfit.items():
            reasons.setdefault(int(owners[row]), reason)
        if unfit:
            keep = np.flatnonzero(~np.isin(owners, list(reasons)))
            ids, cuts, owners = ids.take(ids.starts[keep], ids.lengths[keep]), cuts[keep], owners[keep]
        pages = number_pages(texts, owners, (cuts[:, _START] + cuts[:, _STOP]) // 2, paged)
        windows = Windows(ids, cuts[:, _START], cuts[:, _STOP], np.maximum(1, cuts[:, _OWN]), pages)
        return Prepared(windows, ids.lengths, reasons, len(ids.flat), owners=owners)

    def _cut_all(self, spelled: Spelled, texts: Sequence[str], bad: dict[int, str]) -> Numbers:
        """One row per window, in the order of the texts; `_OWNER` to `_OWN` are its columns."""
        lengths = np.array([len(text) for text in texts], np.int64)
        counts = spelled.ids.lengths
        wanted = np.ones(len(counts), bool)
        wanted[list(bad)] = False
        short = np.flatnonzero(wanted & (counts <= self._whole))
        zeros = np.zeros_like(short)
        columns = [short, spelled.ids.starts[short], counts[short], zeros, zeros, lengths[short], counts[short]]
        pieces = [np.stack(columns, axis=1)]
        for k in np.flatnonzero(wanted & (counts > self._whole)):
            pieces.append(self._cut_long(spelled, int(k), texts[int(k)]))
        every = np.concatenate(pieces)
        return every[np.argsort(every[:, _OWNER], kind="stable")]

    def _cut_long(self, spelled: Spelled, k: int, text: str) -> Numbers:
        length = len(text)
        first, end = spelled.ids.starts[k : k + 2]
        before = len(self._prompt)
        starts = np.maximum.accumulate(spelled.starts[first:end].astype(np.int64) - before).clip(0, length)
        stops = np.maximum.accumulate(spelled.stops[first:end].astype(np.int64) - before).clip(0, length)
        # The prompt's ids come first; an id that also covers a character of the text counts as the text's.
        prompt = min(len(self._prompt_ids), int(np.searchsorted(stops, 0, side="right"))) if self._prompt else 0
        starts, stops = starts[prompt:], stops[prompt:]
        joints = np.concatenate([[True], starts[1:] >= stops[:-1]])
        borders = find_borders(text, starts, joints) if self._borders else []
        cuts = cut(joints, self._room, self._overlap, first_room=self._whole - prompt, borders=borders)
        begin, finish = cuts.T
        later = np.arange(len(cuts)) > 0
        # A window extends to the start of the next token, so that spaces between two windows belong to one of them.
        lefts = np.where(later, starts[begin], 0)
        rights = np.append(np.maximum(starts[finish[:-1]], stops[finish[:-1] - 1]), length)
        firsts = first + prompt * later + begin
        sizes = finish - begin + prompt * ~later
        return np.stack([np.full(len(cuts), k), firsts, sizes, later, lefts, rights, finish - begin], axis=1)


# The columns of a cut: text; first id and number of ids; whether it gets the prompt; its characters; number of the
# text's own ids.
_OWNER, _FIRST, _LENGTH, _LATER, _START, _STOP, _OWN = range(7)


# A page begins after a form feed, a section with a heading after a blank line.
_BORDER = re.compile(r"\f|\n[ \t]*\n(?=#{1,6} )")


def find_borders(text: str, starts: Numbers, joints: NDArray[np.bool_]) -> list[int]:
    """The tokens that a page or a section begins with, in order."""
    places = np.array([match.end() for match in _BORDER.finditer(text)], np.int64)
    tokens = np.unique(np.searchsorted(starts, places))
    tokens = tokens[tokens < len(starts)]
    return [int(token) for token in tokens[joints[tokens]]]


def number_pages(texts: Sequence[str | None], owners: Numbers, middles: Numbers, paged: Collection[int]) -> Numbers:
    """The page that the middle of each window is on; 0 for those of texts that are not `paged`."""
    pages = np.zeros_like(middles)
    for k in paged:
        own = owners == k
        pages[own] = find_pages(texts[k] or "", middles[own].tolist())
    return pages


def cut(joints: NDArray[np.bool_], room: int, overlap: int, first_room: int, borders: Sequence[int] = ()) -> Numbers:
    """Windows over tokens as pairs (first, end), of at most `room` tokens each (`first_room` for the first).

    The start and end of a window move back to the nearest joint, a token that does not begin inside a character,
    unless that would leave the window without new tokens. A window of which half lies before a border ends there, and
    the next begins there.

    >>> cut(np.ones(10, bool), room=4, overlap=1, first_room=4).tolist()
    [[0, 4], [3, 7], [6, 10]]
    >>> cut(np.ones(10, bool), room=4, overlap=1, first_room=4, borders=[1, 3]).tolist()
    [[0, 3], [3, 7], [6, 10]]
    """
    nearest = np.maximum.accumulate(np.where(joints, np.arange(len(joints)), 0)).tolist()
    windows: list[tuple[int, int]] = []
    start, size, before = 0, first_room, 0
    while start + size < len(joints):
        stop = start + size
        at = bisect.bisect_right(borders, stop) - 1
        if at >= 0 and borders[at] > max(before, start + size // 2):
            windows.append((start, borders[at]))
            start, size, before = borders[at], room, borders[at]
            continue
        if nearest[stop] > max(before, start + overlap):
            stop = nearest[stop]
        windows.append((start, stop))
        back = nearest[stop - overlap]
        start = back if start < back and stop < back + room else stop - overlap
        size, before = room, stop
    windows.append((start, len(joints)))
    return np.array(windows, np.int64)


class Mean:
    """The mean of each item's windows, weighted by their tokens, so that a short last window counts little.

    Only sums are kept. The vector of a single window stays bit-identical.
    """

    def __init__(
        self, items: int, dims: int, *, normalize: bool, store: Callable[[NDArray[np.float32]], Output]
    ) -> None:
        self._sums = np.zeros((items, dims), np.float64)
        self._weights, self._windows = np.zeros(items), np.zeros(items, np.int64)
        self._normalize, self._store = normalize, store

    def add(self, items: Numbers, rows: pa.RecordBatch) -> None:
        order = np.argsort(items, kind="stable")
        own, firsts, counts = np.unique(items[order], return_index=True, return_counts=True)
        weights = rows.column("tokens").to_numpy()[order].astype(np.float64)
        vectors = rows.column("embedding").flatten().to_numpy().reshape(len(items), -1)[order]
        self._sums[own] += np.add.reduceat(vectors * weights[:, None], firsts, axis=0)
        self._weights[own] += np.add.reduceat(weights, firsts)
        self._windows[own] += counts

    def finish(self) -> Output:
        means = self._sums / np.maximum(self._weights, 1)[:, None]
        if self._normalize:
            several = self._windows > 1
            means[several] /= np.maximum(np.linalg.norm(means[several], axis=1, keepdims=True), 1e-12)
        return self._store(means.astype(np.float32))
