"""Texts and conversations -> prompts, and tokens -> text, by the model's own tokenizer and chat template."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.core.extras import missing_package
from shardmill.core.random import COARSE, SLOTS, draw5, make_key
from shardmill.models.code import loading_options
from shardmill.models.decoding.controls import Controls
from shardmill.models.decoding.generation_config import own_stops
from shardmill.models.decoding.generative import GenerativeFolder, find_limit
from shardmill.models.decoding.languages import tell_languages
from shardmill.models.decoding.options import Asked, GenerationOptions
from shardmill.models.decoding.prompt import Completion, Encoded, Made, Prompt

_NO_LIMIT = 1 << 31
_NOT_UNICODE = "the text is not valid Unicode"
# A token holds a byte or more, but the bytes of one character may be spread over four.
_MORE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class _Bad:
    why: str


class TextCodec:
    """Reads and writes texts for one model and one way to generate.

    `least_tokens` and `least_new` are the fewest tokens, of prompt and answer together and of the answer; `first` is
    the token that each answer begins with, that of the language that is asked for. `stops` are the caller's and the
    model's own, which may be names of special tokens.
    """

    def __init__(self, folder: GenerativeFolder, options: GenerationOptions) -> None:
        self.tokenizer = _load(folder)
        self.first = tell_languages(self.tokenizer, folder, options)
        self._controls = Controls(self.tokenizer)
        self._crossed, self._options = folder.crossed, options
        self._chats = not folder.crossed and bool(self.tokenizer.chat_template)
        text = {**folder.config, **(folder.config.get("text_config") or {})}
        self._check_arguments(folder)
        self._embedded = int(text.get("vocab_size", _NO_LIMIT))
        self.limit = find_limit(folder, min(int(self.tokenizer.model_max_length), _NO_LIMIT), options.max_new_tokens)
        self.least_tokens = self.least_new = 0
        self._own_stops = own_stops(folder.generation)
        self.stops = (*options.stops, *self._own_stops)
        self._tail = max((len(stop.encode()) for stop in self.stops), default=0) + _MORE_TOKENS

    def _check_arguments(self, folder: GenerativeFolder) -> None:
        """Refuse arguments that the chat template does not read: a word that is misspelt would change nothing."""
        given = self._options.template_arguments
        if given and not self._chats:
            raise ModelError(
                f"{folder.root.name} has no chat template, which takes arguments.", hint="Leave out template_arguments."
            )
        template = self.tokenizer.chat_template
        told = " ".join(template.values()) if isinstance(template, dict) else str(template)
        if unread := [name for name in given if not re.search(rf"\b{re.escape(name)}\b", told)]:
            raise ModelError(
                f"The chat template of {folder.root.name} reads no {unread[0]!r}.",
                hint="Leave it out of template_arguments, or look up its name in the template.",
            )

    def encode(self, asked: Sequence[Asked | None], items: Sequence[int] | None = None) -> Encoded:
        """Prompts. `items` number the texts for the draws; without them a prompt's own tokens do."""
        rendered = [None if each is None else self._render(each) for each in asked]
        texts = {i: text for i, text in enumerate(rendered) if isinstance(text, str)}
        bad = {i: said.why for i, said in enumerate(rendered) if isinstance(said, _Bad)}
        prompts: list[Prompt | None] = [None] * len(asked)
        for (i, text), ids in zip(texts.items(), self._ids(list(texts.values())), strict=True):
            why = self._fault(text, ids)
            if why is not None:
                bad[i] = why
            elif ids is not None:
                prompts[i] = Prompt(ids, self._options.max_new_tokens, None, self._least(len(ids)))
        if self._options.temperature is not None:
            self._draw(prompts, items)
        return Encoded(prompts, bad)

    def _least(self, tokens: int) -> int:
        return max(self.least_new, self.least_tokens - (1 if self._crossed else tokens))

    def _render(self, asked: Asked) -> str | _Bad:
        """The text that the tokenizer reads. What the item says steers nothing, whatever it contains."""
        system, asked = self._options.system, self._controls.hide(asked)
        if isinstance(asked, str):
            if not self._chats:
                return f"{system}\n\n{asked}" if system else asked
            asked = [{"role": "user", "content": asked}]
        if not self._chats:
            return _Bad("the model takes a text, not messages: it has no chat template")
        if not asked or not all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in asked):
            return _Bad("the messages are not a list of objects with role and content")
        if system and asked[0]["role"] != "system":
            asked = [{"role": "system", "content": system}, *asked]
        try:
            rendered: str = self.tokenizer.apply_chat_template(
                list(asked), tokenize=False, add_generation_prompt=True, **self._options.template_arguments
            )
        except Exception as error:
            # The template is the model's, and may raise anything of its own.
            return _Bad(f"the model's chat template refuses the messages: {str(error)[:200]}")
        return rendered

    def _ids(self, texts: list[str]) -> list[NDArray[np.int32] | None]:
        """The ids of each text; None for one that is not valid Unicode."""
        if not texts:
            return []
        try:
            return [*self._controls.read(texts, add_special_tokens=not self._chats)]
        except (TypeError, UnicodeError):
            return [None] if len(texts) == 1 else [ids for text in texts for ids in self._ids([text])]

    def _fault(self, text: str, ids: NDArray[np.int32] | None) -> str | None:
        if ids is None:
            return _NOT_UNICODE
        if not len(ids):
            return "the text has no tokens"
        if len(ids) > self.limit:
            return f"{len(ids):,} tokens are more than the {self.limit:,} that the model takes beside the new ones"
        if int(ids.max()) >= self._embedded:
            return "it has a token that is not in the model's vocabulary"
        added = 0 if self._chats else self.tokenizer.num_special_tokens_to_add()
        return self._controls.fault(text, ids, added)

    def draw_again(self, prompts: Sequence[Prompt | None], answer: int) -> list[Prompt | None]:
        """The same prompts with the draws of a further answer, from 1 on."""
        found = list(prompts)
        self._draw(found, None, f"generate {answer}")
        return found

    def _draw(self, prompts: list[Prompt | None], items: Sequence[int] | None, use: str = "generate") -> None:
        """Give each prompt a draw for every new token: a function of the seed, the use and the item."""
        at = [i for i, prompt in enumerate(prompts) if prompt is not None]
        numbers = [items[i] if items is not None else _number(prompts[i]) for i in at]
        ids, key = np.array(numbers, np.uint64), make_key(self._options.seed, use)
        limit = self._options.max_new_tokens
        blocks = [np.stack(draw5(ids, key, block=block)) for block in range(-(-limit // SLOTS))]
        draws = (np.concatenate(blocks)[:limit].T * COARSE).astype(np.float32)
        for i, row in zip(at, draws, strict=True):
            prompt = prompts[i]
            assert prompt is not None
            prompts[i] = replace(prompt, draws=row)

    def decode(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        """The text of some tokens, without special ones and the language that they begin with."""
        ids = ids[1:] if self.first is not None and len(ids) and int(ids[0]) == self.first else ids
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def reaches_stop(self, made: Made) -> bool:
        """Whether a stop string is among the last tokens."""
        return self._has_stop(made.ids[-self._tail :])

    def _has_stop(self, ids: NDArray[np.int64]) -> bool:
        text = self.decode(ids)
        if any(stop in text for stop in self._options.stops):
            return True
        if not self._own_stops:
            return False
        whole: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return any(stop in whole for stop in self._own_stops)

    def finish(self, prompt: Prompt, made: Made) -> Completion:
        """The answer, which ends before the first stop string."""
        ids, text = made.ids, self.decode(made.ids)
        reason = "stop" if made.ended else "length"
        if self.stops and self._has_stop(ids):
            # Rows are looked at every few steps; those after the stop string do not count.
            while self._has_stop(ids[:-1]):
                ids = ids[:-1]
            text, reason = self.decode(ids), "stop"
            text = text[: min((text.index(stop) for stop in self.stops if stop in text), default=len(text))]
        scores = None if made.scores is None else made.scores[: len(ids)]
        return Completion(text, ids, reason, len(prompt.ids), scores)


def _number(prompt: Prompt | None) -> int:
    assert prompt is not None
    return int.from_bytes(hashlib.blake2b(prompt.ids.tobytes(), digest_size=8).digest(), "little")


def _load(folder: GenerativeFolder) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise missing_package(error.name or "transformers", "generate") from error
    try:
        return AutoTokenizer.from_pretrained(str(folder.root), **loading_options(folder.root))
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        lacks = "sentencepiece" in str(error).lower() and find_spec("sentencepiece") is None
        raise ModelError(
            f"The tokenizer of {folder.root.name} cannot be loaded: {reason[0][:200]}",
            hint="pip install sentencepiece" if lacks else "Pass a folder that contains tokenizer.json.",
        ) from error
