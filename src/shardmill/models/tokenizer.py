"""Texts -> token ids: the same ids as truncating the tokenized whole text, but only the head of a huge text is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.backend import open_backend
from shardmill.models.chat import ChatForm, ChatTexts
from shardmill.models.folder import ModelFolder
from shardmill.models.heads import stored_shapes
from shardmill.models.ragged import Ragged, ragged, starts_of
from shardmill.models.words import Spelled, Words
from shardmill.models.wordwise import find_cut, read_rule

_HEAD_CHARS = 4096
_HEAD_CHARS_PER_TOKEN = 8
_GROWTH = 4
# A cut can change the word it falls in and, because tokenizers look ahead, the word before it.
_SAFE_WORDS = 4
# In a text without word ends, a kept token is final once this many tokens follow it.
_SAFE_TOKENS = 4096
# transformers uses a limit this large or larger for "no limit".
_NO_LIMIT = 1 << 31
# Encodings with offsets are large, so only this many texts are encoded at a time.
_SPELLED_TOGETHER = 64
_NOT_UNICODE = "the text is not valid Unicode"
_PROBES = ("a", "hello world", "1")
# These models count positions from the padding id, so fewer tokens fit than there are positions.
_OFFSET_POSITIONS = {
    "camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
# MPNet counts from this padding id, whatever its config.json says.
_PADDING_IDS = {"mpnet": 1}
# Tables with one row per position, by the ends of their names; those of OPT and its kin begin with two unused rows.
_POSITION_TABLE = re.compile(r"(^|\.)(position_embeddings?|wpe|positions_embed|embed_positions)\.weight$")
_UNUSED_ROWS = {"embed_positions": 2}
_LEARNT_POSITIONS = _OFFSET_POSITIONS | {"bert", "distilbert", "albert", "electra"}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids per row (empty for a missing or bad text), the number of truncated texts, and why a row is bad."""

    rows: Ragged
    truncated: int
    bad: dict[int, str]


class Tokenizer:
    """The model's own fast tokenizer.

    `limit` is the maximum number of tokens per text, special tokens included; `embedded` is the number of ids in the
    model's embedding table. With a `chat` template, that writes what is around a text. The ids of a `marker` stand
    between the special ids and a text.
    """

    def __init__(
        self,
        backend: Any,
        *,
        limit: int | None,
        pad_id: int,
        special_ids: set[int],
        from_left: bool,
        embedded: int = _NO_LIMIT,
        chat: ChatTexts | None = None,
        marker: Sequence[int] = (),
    ) -> None:
        self._backend = backend
        self._embedded = embedded
        self._encode_batch = getattr(backend, "encode_batch_fast", backend.encode_batch)
        self.chat = chat
        self._rule = read_rule(backend) if chat is None else None
        self._words = Words(backend, self._rule) if self._rule is not None else None
        self._special_ids = special_ids
        self._from_left = from_left
        self._before, self._after = _frame(backend) if chat is None else ([], [])
        self._before += marker
        self.pad_id = pad_id
        self.limit = limit
        room = None if limit is None else limit - len(self._before) - len(self._after)
        if room is not None and room < 1:
            raise ModelError(f"{limit} tokens leave no room for a text.", hint="Raise max_tokens.")
        self._room = room
        # Truncation from the left keeps the end of a text, so its head is not enough.
        self._head = None if room is None or from_left else max(_HEAD_CHARS, room * _HEAD_CHARS_PER_TOKEN)

    def encode(self, texts: Sequence[str | None], prompt: str = "") -> Tokens:
        """Tokenize `prompt` + each text."""
        present = [i for i, text in enumerate(texts) if text is not None]
        whole = [self._write(texts[i] or "", prompt) for i in present]
        found, bad = self._encode_all(whole)
        lengths = np.zeros(len(texts), np.int64)
        firsts = np.zeros(len(texts), np.int64)
        lengths[present], firsts[present] = found.lengths, found.starts[:-1]
        truncated = 0
        if self._room is not None:
            over = lengths > self._room
            truncated = int(over.sum())
            if self._from_left:
                firsts[over] += lengths[over] - self._room
            lengths[over] = self._room
        reasons = {present[k]: reason for k, reason in bad.items()}
        framed = np.zeros(len(texts), bool)
        framed[present] = True
        framed[list(reasons)] = False
        bare = found if not truncated and len(present) == len(texts) else found.take(firsts, lengths)
        rows, unfit = self.frame(bare, framed)
        if self.chat is not None and self._room is not None:
            end = self.chat.end(prompt)[-self._room :]
            for row in np.flatnonzero(rows.lengths == self._room).tolist() if len(end) else ():
                rows.flat[rows.starts[row + 1] - len(end) : rows.starts[row + 1]] = end
        return Tokens(rows, truncated, reasons | unfit)

    def read(self, texts: list[str], framed: bool) -> list[NDArray[np.int32]]:
        """The ids of each whole text, with the special ids around them if `framed`. Only without a limit.

        A text that is not valid Unicode raises UnicodeError.
        """
        found, bad = self._encode_all(texts)
        if bad:
            raise UnicodeError(_NOT_UNICODE)
        return list(found.put_around(self._before, self._after, np.ones(len(texts), bool)) if framed else found)

    def bare(self, texts: list[str]) -> tuple[Ragged, dict[int, str]]:
        """The ids of each whole text without special ids, and why a text is bad. Only without a limit."""
        return self._encode_all(texts)

    @property
    def by_words(self) -> bool:
        """Whether words are looked up: the model's tokenizer reads them one by one."""
        return self._words is not None

    def _write(self, text: str, prompt: str) -> str:
        return prompt + text if self.chat is None else self.chat.render(text, prompt)

    def frame(self, bare: Ragged, framed: NDArray[np.bool_]) -> tuple[Ragged, dict[int, str]]:
        """Rows with the special ids around them, and the reason for each framed row that the model cannot take."""
        rows = bare.put_around(self._before, self._after, framed)
        unfit = dict.fromkeys(np.flatnonzero(framed & (rows.lengths == 0)).tolist(), "the text has no tokens")
        return rows, unfit | self._not_embedded(rows)

    @property
    def frame_tokens(self) -> int:
        """The number of special tokens around a text."""
        return len(self._before) + len(self._after)

    @property
    def ids_before(self) -> int:
        """The number of them before it."""
        return len(self._before)

    def strip(self, row: NDArray[np.int32]) -> NDArray[np.int32]:
        """A row without the special ids around it."""
        return row[len(self._before) : len(row) - len(self._after)]

    def spell(self, texts: list[str]) -> tuple[Spelled, dict[int, str]]:
        """Ids of each whole text, without special ids, with their positions in it; and why a text is bad."""
        if self._words is not None and self._rule is not None and self._rule.spells:
            try:
                found, odd = self._words.spell(texts)
            except UnicodeError:
                pass
            else:
                return self._spell_again(found, texts, odd) if odd else (found, {})
        return self._spell_whole(texts)

    def _spell_again(self, found: Spelled, texts: list[str], odd: list[int]) -> tuple[Spelled, dict[int, str]]:
        """Replace the rows of texts that have to be tokenized whole."""
        whole, _ = self._spell_whole([texts[k] for k in odd])
        ids = found.ids.replace(odd, whole.ids)
        starts, stops = (
            Ragged(own, found.ids.starts).replace(odd, Ragged(other, whole.ids.starts)).flat
            for own, other in ((found.starts, whole.starts), (found.stops, whole.stops))
        )
        return Spelled(ids, starts, stops), {}

    def _spell_whole(self, texts: list[str]) -> tuple[Spelled, dict[int, str]]:
        ids: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        spans: list[NDArray[np.int32]] = [np.zeros((0, 2), np.int32)]
        bad: dict[int, str] = {}
        for first in range(0, len(texts), _SPELLED_TOGETHER):
            for k, encoding in enumerate(self._spell_some(texts[first : first + _SPELLED_TOGETHER]), first):
                if encoding is None:
                    bad[k] = _NOT_UNICODE
                ids.append(np.array(encoding.ids if encoding is not None else (), np.int32))
                spans.append(np.array(encoding.offsets if encoding is not None else (), np.int32).reshape(-1, 2))
        starts, every = starts_of(np.array([len(row) for row in ids[1:]], np.int64)), np.concatenate(spans)
        return Spelled(Ragged(np.concatenate(ids), starts), every[:, 0], every[:, 1]), bad

    def _spell_some(self, texts: list[str]) -> list[Any]:
        try:
            found: list[Any] = self._backend.encode_batch(texts, add_special_tokens=False)
        except (TypeError, UnicodeError):
            return [None] if len(texts) == 1 else [each for text in texts for each in self._spell_some([text])]
        return found

    def _not_embedded(self, rows: Ragged) -> dict[int, str]:
        """Rows with an id that the model has no embedding for; such an id crashes a GPU."""
        at = np.flatnonzero(rows.flat >= self._embedded)
        owners = np.searchsorted(rows.starts, at, side="right") - 1
        return {
            int(row): f"its token {self._backend.id_to_token(int(rows.flat[i]))!r} is not in the model's vocabulary"
            for row, i in zip(owners, at, strict=True)
        }

    def prompt_tokens(self, prompt: str) -> int:
        """The number of tokens at the start of each text that belong to the prompt."""
        if not prompt or self.chat is not None:
            # sentence-transformers does not count the prompts of messages.
            return 0
        row = self.encode([prompt]).rows[0]
        return len(row) - (len(row) > 0 and int(row[-1]) in self._special_ids)

    def _encode_all(self, texts: list[str]) -> tuple[Ragged, dict[int, str]]:
        if self._words is not None:
            try:
                return self._encode_words(self._words, texts), {}
            except UnicodeError:
                pass
        found = self._encode_whole(texts)
        return ragged(ids or () for ids in found), {k: _NOT_UNICODE for k, ids in enumerate(found) if ids is None}

    def _encode_words(self, words: Words, texts: list[str]) -> Ragged:
        """Tokenize word by word; of a huge text, only enough whole words to fill the limit."""
        heads, cut = texts, dict[int, str]()
        if self._head is not None and self._room is not None and self._rule is not None:
            enough = self._room * _HEAD_CHARS_PER_TOKEN
            cut = {k: text[: find_cut(text, enough, self._rule)] for k, text in enumerate(texts) if len(text) > enough}
            heads = [cut.get(k, text) for k, text in enumerate(texts)] if cut else texts
        found, odd = words.encode(heads)
        lengths = found.lengths
        again = sorted({*odd, *(k for k in cut if lengths[k] <= (self._room or 0))})
        if not again:
            return found
        return found.replace(again, ragged(ids or () for ids in self._encode_whole([texts[k] for k in again])))

    def _encode_whole(self, texts: list[str]) -> list[list[int] | None]:
        """The ids of each text, None for one that is not valid Unicode; for a huge text, the ids of its head."""
        huge = {k for k, text in enumerate(texts) if self._head is not None and len(text) > self._head}
        rest = ["" if k in huge else text for k, text in enumerate(texts)]
        try:
            encodings: list[Any] = self._encode_batch(rest, add_special_tokens=False)
        except (TypeError, UnicodeError):
            encodings = [self._encode_valid(text) for text in rest]
        found: list[list[int] | None] = [None if encoding is None else encoding.ids for encoding in encodings]
        for k in huge:
            found[k] = self._encode_head(texts[k], self._head or len(texts[k]))
        return found

    def _encode_valid(self, text: str) -> Any:
        try:
            return self._encode_batch([text], add_special_tokens=False)[0]
        except (TypeError, UnicodeError):
            return None

    def _encode_head(self, text: str, size: int) -> list[int] | None:
        while True:
            try:
                encoding = self._backend.encode(text[:size], add_special_tokens=False)
            except (TypeError, UnicodeError):
                return None
            if size >= len(text) or self._settled(encoding):
                ids: list[int] = encoding.ids
                return ids
            size *= _GROWTH

    def _settled(self, encoding: Any) -> bool:
        """Whether the kept tokens are final, whatever text follows the head."""
        extra = len(encoding.ids) - (self._room or 0)
        if extra <= 0:
            return False
        words = encoding.word_ids
        last_kept, last = words[(self._room or 0) - 1], words[-1]
        if last_kept is not None and last is not None and last - last_kept >= _SAFE_WORDS:
            return True
        return extra >= _SAFE_TOKENS


def load_tokenizer(folder: ModelFolder, max_tokens: int | None) -> Tokenizer:
    """Load the folder's tokenizer; its limit is the one sentence-transformers computes."""
    backend = open_backend(folder.transformer, folder.tokenizer_options)
    made = backend.tokenizer
    if folder.lower_case:
        from tokenizers import normalizers

        parts = [normalizers.Lowercase(), *([made.normalizer] if made.normalizer else [])]
        made.normalizer = normalizers.Sequence(parts)
    embedded = int(folder.config.get("vocab_size") or folder.config.get("text_config", {}).get("vocab_size", _NO_LIMIT))
    limits = [n for n in (_model_limit(folder, backend.longest), max_tokens) if n is not None]
    pad_id = backend.pad_id if backend.pad_id is not None else folder.config.get("pad_token_id")
    return Tokenizer(
        made,
        limit=min(limits, default=None),
        pad_id=int(pad_id or 0) if int(pad_id or 0) < embedded else 0,
        embedded=embedded,
        special_ids=set(backend.special_ids),
        from_left=backend.from_left,
        chat=None if folder.chat is None else _open_chat(folder, folder.chat, made),
        marker=() if not folder.marker else [_find_marker(folder, made)],
    )


def _find_marker(folder: ModelFolder, backend: Any) -> int:
    """The id of a marker: PyLate has "[D] " as one token, with its space."""
    for name in (folder.marker, *folder.marker.split()[:1]):
        if (found := backend.token_to_id(name)) is not None:
            return int(found)
    raise ModelError(
        f"{folder.transformer.name} marks texts by {folder.marker!r}, which is no token of its tokenizer.",
        hint="Save the model again with PyLate, which adds it.",
    )


def _open_chat(folder: ModelFolder, form: ChatForm, backend: Any) -> ChatTexts:
    def encode(text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    kind = str(folder.config.get("model_type"))
    return ChatTexts(folder.transformer, kind, form, folder.tokenizer_options, encode)


def first_position(folder: ModelFolder) -> int:
    """The position of a text's first token: some models start counting after their padding id."""
    return position_of_first(folder.config)


def position_of_first(config: dict[str, Any]) -> int:
    kind = config["model_type"]
    return int(_PADDING_IDS.get(kind, config.get("pad_token_id", 1))) + 1 if kind in _OFFSET_POSITIONS else 0


def count_positions(config: dict[str, Any]) -> int | None:
    """The number of tokens that a model has positions for; None if it has no such limit."""
    positions = config.get("max_position_embeddings") or -1
    return positions - position_of_first(config) if positions > 0 else None


def _model_limit(folder: ModelFolder, tokenizer_limit: int) -> int | None:
    kind, positions = folder.config["model_type"], folder.config.get("max_position_embeddings", -1)
    limits = [tokenizer_limit if folder.max_tokens is None else folder.max_tokens]
    if positions != -1 and (folder.max_tokens is None or kind in _LEARNT_POSITIONS):
        limits.append(positions - first_position(folder))
    limits += _stored_positions(folder)
    lowest = min(limits)
    return lowest if lowest < _NO_LIMIT else None


def _stored_positions(folder: ModelFolder) -> Iterator[int]:
    """How many tokens the model's tables of positions have rows for: a longer text would read beyond them."""
    config = folder.config
    unread = config.get("position_embedding_type", "absolute") != "absolute" or not config.get(
        "position_biased_input", 1
    )
    if unread or config.keys() & {"vision_config", "audio_config"}:
        return  # A table may be stored that nothing reads, or that is for images.
    for name, shape in stored_shapes(folder):
        if (found := _POSITION_TABLE.search(name)) and len(shape) == 2:
            yield shape[0] - max(first_position(folder), _UNUSED_ROWS.get(found[2], 0))


def _frame(backend: Any) -> tuple[list[int], list[int]]:
    """The special ids that the tokenizer puts before and after a text."""
    for probe in _PROBES:
        bare = backend.encode(probe, add_special_tokens=False).ids
        framed = backend.encode(probe, add_special_tokens=True).ids
        for start in range(len(framed) - len(bare) + 1):
            if bare and framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
    raise ModelError("The tokenizer splits a text by special tokens.", hint="shardmill cannot run this model.")
