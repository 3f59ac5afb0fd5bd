"""Pairs as a causal re-ranker takes them: in its chat template, or in the prompt that Qwen3-Reranker was trained with.

A pair that is too long is cut before what the prompt writes after it: the model answers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.backend import Backend, open_backend
from shardmill.models.chat import ChatForm, ChatTexts
from shardmill.models.pair_tokens import PairRows, PairTokenizer, rows_of
from shardmill.models.rerankers.folder import Reranker

# As its card has them.
_QWEN3 = "qwen3"
_LONGEST = 8192
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
_PROBE = ("0123", "4567")


class PairChat(ChatTexts):
    """A folder's chat template, with a message of the query and one of the document."""

    reads_task = False

    def render_pair(self, first: str, second: str, prompt: str) -> str:
        """What is tokenized of a pair; the prompt is the system's message."""
        said = [("system", prompt)] if prompt else []
        return self.write([*said, ("query", first), ("document", second)])

    def render(self, text: str, prompt: str) -> str:
        return self.render_pair(text, text, prompt)

    @property
    def takes_pairs(self) -> bool:
        """Whether the template writes both texts."""
        try:
            written = self.render_pair(*_PROBE, "")
        except ModelError:
            return False
        return all(probe in written for probe in _PROBE)


class PromptTokenizer(PairTokenizer):
    """A folder's tokenizer, with a prompt around each pair: that of a chat template, else that of Qwen3-Reranker."""

    def __init__(self, backend: Backend, chat: PairChat | None, prompt: str) -> None:
        super().__init__(backend)
        self.typed = False
        self._prompt, self._chat = prompt, chat
        if chat is None:
            self.longest = min(self.longest, _LONGEST)
            self._before, self._after = self._ids(_BEFORE), self._ids(_AFTER)

    def encode(self, firsts: Sequence[str], seconds: Sequence[str], limit: int) -> PairRows:
        pairs = zip(firsts, seconds, strict=True)
        if self._chat is None:
            instruct = self._prompt or _INSTRUCT
            bodies = [f"<Instruct>: {instruct}\n<Query>: {first}\n<Document>: {second}" for first, second in pairs]
            room = limit - len(self._before) - len(self._after)
            return self._cut(bodies, room, self._before, self._after)
        written = [self._chat.render_pair(first, second, self._prompt) for first, second in pairs]
        return self._restore(self._cut(written, limit, [], []), self._chat.end(self._prompt).tolist(), limit)

    def _cut(self, texts: list[str], room: int, before: list[int], after: list[int]) -> PairRows:
        if room < 1:
            raise ModelError("The prompt leaves no room for a pair.", hint="Raise max_tokens.")
        made: list[Any] = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        kept = [ids[-room:] if self._side == "left" else ids[:room] for ids in (each.ids for each in made)]
        truncated = sum(len(each.ids) > room for each in made)
        return rows_of([[*before, *ids, *after] for ids in kept], truncated)

    def _restore(self, rows: PairRows, end: list[int], limit: int) -> PairRows:
        """As sentence-transformers does: of rows as long as the limit, the end is that of the template."""
        end = end[-limit:]
        for row in rows.ids if end else ():
            if len(row) >= limit:
                row[-len(end) :] = end
        return rows

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def open_tokens(reranker: Reranker, prompt: str | None, *, named_types: bool = True) -> PairTokenizer:
    """The tokenizer of a re-ranker's pairs, after one of its prompts, or a text of the user's."""
    backend = open_backend(reranker.transformer, dict(reranker.tokenizer_options))
    text = reranker.prompt_text(prompt)
    if reranker.words is None:
        return PairTokenizer(backend, named_types=named_types, prompt=text)
    chat = _open_chat(reranker, backend)
    if chat is not None or prompts_by_card(reranker):
        return PromptTokenizer(backend, chat, text)
    return PairTokenizer(backend, prompt=text)


def prompts_by_card(reranker: Reranker) -> bool:
    """Whether pairs are put into the prompt of Qwen3-Reranker, since the folder names none."""
    if not reranker.guessed or reranker.config.get("model_type") != _QWEN3:
        return False
    return reranker.chat is None or not _load_chat(reranker, reranker.chat).takes_pairs


def notes_of(reranker: Reranker) -> list[str]:
    """What the user should know of a re-ranker before a run."""
    if not prompts_by_card(reranker):
        return []
    return [
        f"{reranker.name} has no template for pairs: each is put into the prompt of Qwen3-Reranker, and its score is "
        "that of yes against no."
    ]


def _open_chat(reranker: Reranker, backend: Backend) -> PairChat | None:
    if reranker.chat is None:
        return None
    chat = _load_chat(reranker, reranker.chat, backend)
    if chat.takes_pairs:
        return chat
    if reranker.guessed and reranker.config.get("model_type") == _QWEN3:
        return None
    raise ModelError(
        f"The chat template of {reranker.name} does not write a query and a document.",
        hint="Give it a template with messages of the roles query and document, as sentence-transformers wants it.",
    )


def _load_chat(reranker: Reranker, form: ChatForm, backend: Backend | None = None) -> PairChat:
    def encode(text: str) -> list[int]:
        assert backend is not None
        ids: list[int] = backend.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    kind = str(reranker.config.get("model_type"))
    return PairChat(reranker.transformer, kind, form, dict(reranker.tokenizer_options), encode)


def token_ids(reranker: Reranker, tokenizer: Any) -> tuple[int, ...]:
    """The ids of a causal re-ranker's words."""
    assert reranker.words is not None
    found = []
    for word in (reranker.words.true, reranker.words.false):
        if word is None:
            continue
        made = tokenizer.token_to_id(word) if isinstance(word, str) else word
        if made is None:
            raise ModelError(
                f"The tokenizer of {reranker.name} has no token {word!r}, whose logit would be the score.",
                hint="Choose a re-ranker, or save it with sentence-transformers and a LogitScore.",
            )
        found.append(int(made))
    return tuple(found)
