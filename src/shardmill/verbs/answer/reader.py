"""A reader: any extractive question-answering model. It points at the answer, or says that there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.kinds import READER
from shardmill.models.location import Location
from shardmill.models.pair_tokens import PairTokens, find_frame
from shardmill.models.pairs import PairModel
from shardmill.verbs.answer.spans import (
    MOST_TOKENS,
    QUESTION_TOKENS,
    PassageTokens,
    ReadWindow,
    Span,
    best_spans,
    cut_windows,
)


@dataclass(frozen=True, slots=True)
class ReadPassage:
    """What the reader says of one passage: its best span if it found one, and by how much that beats "no answer"."""

    span: Span | None
    null: Span

    @property
    def margin(self) -> float:
        return -np.inf if self.span is None else self.span.total - self.null.total


class SpanReader:
    """A loaded reader. `most_tokens` is the length of the longest answer."""

    def __init__(self, location: Location, device: Device, most_tokens: int, *, named_types: bool = True) -> None:
        self._model = PairModel(location.path, READER, device, named_types=named_types)
        self._frame = find_frame(self._model.tokenizer, location.name)
        # Only WordPiece marks pieces that continue a word.
        self._continued = str(getattr(self._model.tokenizer.model, "continuing_subword_prefix", None) or "")
        self._most_tokens = most_tokens
        self._limit = min(MOST_TOKENS, self._model.limit)

    @property
    def note(self) -> str:
        """What computes it."""
        return self._model.note

    def read(self, questions: Sequence[str], passages: Sequence[str]) -> list[ReadPassage]:
        """Read each question's passage; all windows of all pairs share batches."""
        prepared = [self.cut(*pair) for pair in zip(questions, passages, strict=True)]
        logits = iter(self._model.spans([pair for windows, pairs, _ in prepared for pair in pairs]))
        found = []
        for text, (windows, _, tokens) in zip(passages, prepared, strict=True):
            spans = best_spans(windows, [next(logits) for _ in windows], tokens, text, self._most_tokens)
            best = next((span for span in spans if not span.is_null), None)
            found.append(ReadPassage(best, next(span for span in spans if span.is_null)))
        return found

    def cut(self, question: str, passage: str) -> tuple[list[ReadWindow], list[PairTokens], PassageTokens]:
        """The windows of a passage, as the model takes them, and the passage's tokens."""
        tokenizer = self._model.tokenizer
        asked = tokenizer.encode(question, add_special_tokens=False).ids[:QUESTION_TOKENS]
        made = tokenizer.encode(passage, add_special_tokens=False)
        ids, offsets = made.ids, np.array(made.offsets, np.int64).reshape(-1, 2)
        before, between, after = self._frame.parts
        head = [*before, *asked, *between]
        room = self._limit - len(head) - len(after)
        if room < 1:
            raise ModelError(f"The reader takes {self._limit} tokens, which leaves no room for a passage.")
        windows = cut_windows(len(ids), room, len(head))
        first, second = self._frame.types
        pairs = []
        for window in windows:
            own = [*ids[window.first : window.first + window.length], *after]
            pairs.append(self._model.pair([*head, *own], [first] * len(head) + [second] * len(own)))
        pieces = map(tokenizer.id_to_token, ids) if self._continued else ()
        continues = [piece.startswith(self._continued) for piece in pieces] or [False] * len(ids)
        return windows, pairs, PassageTokens.of(passage, offsets, continues)
