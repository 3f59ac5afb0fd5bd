"""Special tokens in an item's text are read as text: only the tokenizer and its chat template may steer a model."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.tokenizer import Tokenizer

# A noncharacter of Unicode, which no text contains.
_BREAK = "\ufdd0"
# Where transformers reads texts for all tokenizers of the tokenizers library; some classes read them in their own way.
_PLAIN_CALLS = "transformers.tokenization_utils"


class Controls:
    """The special tokens of a tokenizer: `hide` breaks those of a text in two, `read` leaves out the breaks."""

    def __init__(self, tokenizer: Any) -> None:
        special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        names = sorted({*special, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True)
        self._tokenizer = tokenizer
        # A name of one character cannot be broken: what has it is refused by `fault`.
        self._whole = re.compile("|".join(re.escape(name) for name in names if len(name) > 1) or r"(?!)")
        # A look-ahead finds names that overlap as well.
        self._starts = re.compile(f"(?={self._whole.pattern})")
        ids = {tokenizer.convert_tokens_to_ids(name) for name in names} - {None, tokenizer.unk_token_id}
        self._steers = np.zeros(max(ids, default=-1) + 1, bool)
        self._steers[list(ids)] = True

    def hide(self, value: Any) -> Any:
        """A text, or the texts of a message, with a break after the first character of each special token."""
        if isinstance(value, str):
            cuts = [0, *(found.start() + 1 for found in self._starts.finditer(value)), len(value)]
            return _BREAK.join(value[a:b] for a, b in pairwise(cuts)) if len(cuts) > 2 else value
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(each) for key, each in value.items()}
        return [self.hide(each) for each in value] if isinstance(value, Sequence) else value

    def read(self, texts: list[str], *, add_special_tokens: bool) -> list[NDArray[np.int32]]:
        """The ids of texts as the tokenizer gives them, the broken names as plain text."""
        found: list[Any] = [None] * len(texts)
        for tokenizer, broken in ((self._tokenizer, False), (self._breaking, True)):
            at = [i for i, text in enumerate(texts) if (_BREAK in text) is broken]
            if at and not broken and self._reader is not None:
                for i, ids in zip(at, self._reader.read([texts[i] for i in at], add_special_tokens), strict=True):
                    found[i] = ids
            elif at:
                # A text that is too long is set aside, or cut into windows; transformers would warn of it as well.
                read = tokenizer(
                    [texts[i] for i in at],
                    return_attention_mask=False,
                    verbose=False,
                    add_special_tokens=add_special_tokens,
                )
                for i, ids in zip(at, read["input_ids"], strict=True):
                    found[i] = np.array(ids, np.int32)
                    if broken:
                        found[i] = found[i][found[i] != self._break_id]
        return found

    def fault(self, text: str, ids: NDArray[np.int32], added: int) -> str | None:
        """Why a text must not be asked: it has more special tokens than were written by the template and `added`."""
        inside = ids[ids < len(self._steers)]
        more = int(self._steers[inside].sum()) > len(self._whole.findall(text)) + added
        return "a part of the text would become a special token of the model" if more else None

    @cached_property
    def _reader(self) -> Tokenizer | None:
        """The same tokenizer with words that are looked up; None if it does not read words one by one."""
        kind = type(self._tokenizer)
        calls = [getattr(kind, name, None) for name in ("__call__", "_encode_plus", "_batch_encode_plus")]
        own = any(call is not None and not call.__module__.startswith(_PLAIN_CALLS) for call in calls)
        if own or not getattr(self._tokenizer, "is_fast", False):
            return None
        backend = self._tokenizer.backend_tokenizer
        # As transformers does it before each call.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = self._tokenizer.split_special_tokens
        try:
            made = Tokenizer(backend, limit=None, pad_id=0, special_ids=set(), from_left=False)
        except ModelError:
            return None  # It splits a text by special tokens.
        return made if made.by_words else None

    @cached_property
    def _breaking(self) -> Any:
        from transformers import AddedToken

        made = copy.deepcopy(self._tokenizer)
        made.add_tokens([AddedToken(_BREAK, normalized=False)], special_tokens=True)
        return made

    @cached_property
    def _break_id(self) -> int:
        return int(self._breaking.convert_tokens_to_ids(_BREAK))
