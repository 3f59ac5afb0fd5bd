"""The ways in which vectors of the right model come out wrong, each as a different use of the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardmill.models.embedder import TextEmbedder
from shardmill.models.folder import POOLING_MODES, Dense, LayerNorm
from shardmill.models.tokenizer import count_positions
from shardmill.verbs.audit.agreement import Reals

# Prompts that models in use were trained with: whoever takes one model's prompt for another's takes one of these.
_PROMPTS = (
    *("query: ", "passage: ", "search_query: ", "search_document: ", "clustering: ", "classification: "),
    "Represent this sentence for searching relevant passages: ",
    *("task: search result | query: ", "title: none | text: "),
)
_LENGTHS = (16, 32, 64, 100, 128, 200, 250, 256, 300, 384, 500, 510, 512, 1000, 1024, 2048, 4096, 8192)
# Their directions are those of the mean.
_LIKE_MEAN = "mean_sqrt_len_tokens"


def _as_they_are(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Way:
    """One use of a model: what it is called, and what is different."""

    name: str
    seen: str
    prompt: str | None = None
    folder: dict[str, Any] = field(default_factory=dict)
    change: Callable[[str], str] = _as_they_are

    def make(self, embedder: TextEmbedder, texts: Sequence[str]) -> Reals:
        """The vectors that it gives; NaN for a text without tokens."""
        return embed(embedder.used_otherwise(prompt=self.prompt, **self.folder), [*map(self.change, texts)])

    def matters(self, embedder: TextEmbedder, texts: Sequence[str]) -> bool:
        """Whether any of these texts comes out differently: other tokens, or another pooling."""
        if "pooling" in self.folder:
            return True
        if "max_tokens" in self.folder:
            longest = int(embedder.encode(texts).rows.lengths.max())
            return bool(longest >= min(self.folder["max_tokens"] + 1, embedder.tokenizer.limit or longest + 1))
        other = embedder.used_otherwise(prompt=self.prompt, **self.folder).encode([*map(self.change, texts)]).rows
        own = embedder.encode(texts).rows
        return not (np.array_equal(own.flat, other.flat) and np.array_equal(own.starts, other.starts))


def embed(embedder: TextEmbedder, texts: Sequence[str]) -> Reals:
    return embedder.embed_texts(texts).astype(np.float64)


def find_ways(embedder: TextEmbedder) -> Iterator[Way]:
    """All that is tried, in this order: pooling, prompt, cut, case, blanks."""
    yield from _poolings(embedder)
    yield from _prompts(embedder)
    yield from _cuts(embedder)
    yield Way("case", "texts were lower-cased", change=str.lower)
    options = {**embedder.folder.tokenizer_options, "do_lower_case": False}
    yield Way("case", "texts were not lower-cased", folder={"lower_case": False, "tokenizer_options": options})
    yield Way("blanks", "line breaks and blanks were replaced by one blank", change=lambda text: " ".join(text.split()))


def _poolings(embedder: TextEmbedder) -> Iterator[Way]:
    own = embedder.folder.pooling
    if not own.modes:
        return  # The network pools by itself, or there is none.
    if len(own.modes) > 1 and any(isinstance(step, Dense | LayerNorm) for step in embedder.folder.steps):
        return
    named = "+".join(own.modes)
    for mode in POOLING_MODES:
        if (mode,) != own.modes and mode != _LIKE_MEAN and (mode, *own.modes) != ("mean", _LIKE_MEAN):
            yield Way("pooling", f"pooled by {mode}, not {named}", folder={"pooling": replace(own, modes=(mode,))})


def _prompts(embedder: TextEmbedder) -> Iterator[Way]:
    own = embedder.prompt
    for prompt in dict.fromkeys(("", *embedder.folder.prompts.values(), *_PROMPTS)):
        if prompt == own:
            continue
        right = f"not {own!r}" if own else "not without one"
        seen = f"embedded with the prompt {prompt!r}, {right}" if prompt else f"embedded without the prompt {own!r}"
        yield Way("prompt", seen, prompt=prompt)


def _cuts(embedder: TextEmbedder) -> Iterator[Way]:
    own = embedder.tokenizer.limit
    most = count_positions(embedder.folder.config)
    # Of several longer cuts that explain the same rows, the longest is told: a text may end before all of them.
    longer = [tokens for tokens in _LENGTHS if tokens > (own or 0)]
    for tokens in (*longer[::-1], *(tokens for tokens in _LENGTHS if tokens not in longer)):
        if tokens != own and tokens > embedder.tokenizer.frame_tokens and (most is None or tokens <= most):
            limit = f"{own:,} tokens" if own else "the end"
            yield Way("cut", f"cut at {tokens:,} tokens, not at {limit}", folder={"max_tokens": tokens})
