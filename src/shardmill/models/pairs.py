"""Models that read two texts together, as a question and a passage: tokens of pairs, and the model's logits.

Readers and cross-encoders are computed in float32: near ties between spans or passages are settled by low bits. Only
`fast` ones, whose scores are the result, take half precision on a GPU. On a CPU, OpenVINO runs the networks that are
described here, without torch. All else is torch's. Design: docs/design/generation-and-answers.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ModelError
from shardmill.models.backend import open_backend
from shardmill.models.kinds import CAUSAL, RERANKER, check_kind
from shardmill.models.networks.stored import Reals
from shardmill.models.pair_networks import choose_network
from shardmill.models.pair_tokens import PairRows, PairTokenizer, PairTokens
from shardmill.models.ragged import token_batches
from shardmill.models.rerankers.folder import Reranker, read_reranker
from shardmill.models.rerankers.prompting import open_tokens, token_ids

# Tokens of one batch, with padding. On a GPU enough to keep it busy; much larger ones fill its memory with
# attention in float32, and then wait for memory more than for results.
_BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}


class PairModel:
    """A loaded reader or re-ranker, with its tokenizer. `limit` is the maximum number of tokens of a pair.

    A `prompt` of a re-ranker is the name of one of its own, or a text.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        device: Device,
        *,
        named_types: bool = True,
        prompt: str | None = None,
        fast: bool = False,
    ) -> None:
        check_kind(folder, kind)
        self._named_types, self._prompt = named_types, prompt
        self._folder, self.budget = folder, _BATCH_TOKENS[device.kind]
        self._reranker: Reranker | None = None
        words: Sequence[int] = ()
        if kind == RERANKER:
            self._reranker = read_reranker(folder)
            folder, kind = self._reranker.transformer, self._reranker.kind
            words = token_ids(self._reranker, self.tokenizer) if kind == CAUSAL else ()
        self._network, self._why = choose_network(folder, kind, device, lambda: self._tokens, words, fast=fast)
        self.limit = min(self._tokens.longest, self._network.longest)
        if self._reranker is not None and not self._network.padded:
            from shardmill.models.packed_pairs import PackedPairs, find_budget

            assert isinstance(self._network, PackedPairs)
            word = int(self._tokens.encode(["word"], ["word"], self.limit)[0].ids[-2])
            self.budget = find_budget(self._network, self._reranker, device, word)

    @cached_property
    def _tokens(self) -> PairTokenizer:
        if self._reranker is not None:
            return open_tokens(self._reranker, self._prompt, named_types=self._named_types)
        return PairTokenizer(open_backend(self._folder, {}), named_types=self._named_types)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the tokenizers library, which cuts nothing."""
        return self._tokens.tokenizer

    @property
    def padded(self) -> bool:
        """Whether the pairs of a batch are padded to its longest."""
        return self._network.padded

    @property
    def precision(self) -> str:
        return self._network.precision

    @property
    def kernel(self) -> str:
        """What computes it."""
        return self._network.name

    @property
    def device_clock(self) -> dict[str, float] | None:
        """Seconds in which a GPU was busy with batches, and idle between them."""
        clock = getattr(self._network, "clock", None)
        return {"busy_s": round(clock.busy_s, 3), "idle_s": round(clock.idle_s, 3)} if clock and clock.busy_s else None

    def pair(self, ids: Sequence[int], types: Sequence[int]) -> PairTokens:
        """A pair of ids and types; a model whose tokenizer names no types gets zeros."""
        return self._tokens.pair(ids, types)

    @property
    def note(self) -> str:
        """What computes it, and why nothing faster does."""
        return f"{self._network.name} ({self._why})" if self._why else self._network.name

    def encode(self, firsts: Sequence[str], seconds: Sequence[str]) -> PairRows:
        """Tokenize pairs; of one that is too long, the longer text is cut."""
        return self._tokens.encode(firsts, seconds, self.limit)

    def score(self, pairs: Sequence[PairTokens]) -> Reals:
        """The relevance of each pair, from a re-ranker: its logit, or that of the last label less the first."""
        logits = self.logits(pairs)
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, -1] - logits[:, 0]

    def spans(self, pairs: Sequence[PairTokens]) -> list[Reals]:
        """Start and end logits of each token of each pair, from a reader, as an array with two rows."""
        return [logits.T for logits in self.token_logits(pairs)]

    def logits(self, pairs: Sequence[PairTokens]) -> Reals:
        """The logits of each pair, a row per pair."""
        return np.stack(self._run(pairs))

    def token_logits(self, pairs: Sequence[PairTokens]) -> list[Reals]:
        """Those of each pair from a model of tokens, a row per token."""
        return [logits[: len(pair.ids)] for logits, pair in zip(self._run(pairs), pairs, strict=True)]

    def begin(self, pairs: Sequence[PairTokens]) -> Callable[[], Reals]:
        """Start one batch, and return a function that waits for its logits, a row per pair."""
        self._check_ids(pairs)
        if not self._network.padded:
            fetch: Callable[[], Reals] = self._network.begin(pairs)  # type: ignore[attr-defined]
            return fetch
        made = self._network(*self._tokens.pad(pairs))
        return lambda: made

    def _run(self, pairs: Sequence[PairTokens]) -> list[Reals]:
        made = [np.zeros(0, np.float32)] * len(pairs)
        lengths = np.array([len(pair.ids) for pair in pairs], np.int64)
        for batch in token_batches(lengths, self.budget):
            self._run_batch(pairs, batch.tolist(), made)
        return made

    def _run_batch(self, pairs: Sequence[PairTokens], batch: list[int], made: list[Reals]) -> None:
        """Run one batch, in halves if it does not fit."""
        try:
            for i, logits in zip(batch, self.begin([pairs[i] for i in batch])(), strict=True):
                made[i] = logits
        except DeviceOutOfMemory:
            if len(batch) == 1:
                raise
            self.budget = max(1, self.budget // 2)
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                self._run_batch(pairs, half, made)

    def _check_ids(self, pairs: Sequence[PairTokens]) -> None:
        largest = max(int(pair.ids.max()) for pair in pairs)
        if largest >= self._network.known_ids:
            raise ModelError(
                f"{self._folder.name} has no weights for the token {self.tokenizer.id_to_token(largest)!r}.",
                hint="Its tokenizer does not belong to its weights: fetch the model again.",
            )
