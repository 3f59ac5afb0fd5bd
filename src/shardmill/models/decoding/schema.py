"""JSON by a schema while it is generated: llguidance says which tokens may follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError, UsageError
from shardmill.core.extras import missing_package

_BITS = 32
# One blank after a comma and a colon, as most models write JSON: free spacing lets a model write blanks for ever.
_SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar:
    """A schema over the tokens of a model, which end with one of `ends`."""

    def __init__(self, schema: str, tokenizer: Any, *, words: int, ends: Sequence[int]) -> None:
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise missing_package("llguidance") from error
        if not ends:
            raise ModelError("The model has no end token.", hint="Name it in generation_config.json (eos_token_id).")
        grammar = LLMatcher.grammar_from_json_schema(schema, defaults=_SPACING)
        if said := LLMatcher.validate_grammar(grammar):
            raise _unusable(said.splitlines()[0])
        try:
            # The model may have more words than its tokenizer, never fewer that count. One end token is enough:
            # no other is part of JSON.
            known = from_tokenizer(tokenizer, n_vocab=max(words, len(tokenizer)), eos_token=ends[0])
        except ValueError as error:
            raise ModelError(f"A schema cannot guide this tokenizer: {str(error)[:200]}") from error
        self.words = words
        self._first = LLMatcher(known, grammar)
        if self._first.is_error():
            raise _unusable(self._first.get_error())

    def begin(self) -> Any:
        """A matcher at the start of a text."""
        return self._first.deep_copy()


class Guide:
    """Which tokens each of some rows may choose next: `masks` is (rows, words of 32 bits)."""

    def __init__(self, grammar: Grammar, rows: int) -> None:
        from llguidance import LLExecutor

        self._grammar, self._matchers = grammar, dict[int, Any]()
        self._executor = LLExecutor()
        self.masks: NDArray[np.int32] = np.full((rows, -(-grammar.words // _BITS)), -1, np.int32)

    def begin(self, rows: Sequence[int]) -> None:
        """Some rows start a text."""
        self._matchers.update((row, self._grammar.begin()) for row in rows)
        self._fill(rows)

    def advance(self, rows: Sequence[int], tokens: Sequence[int], live: Sequence[bool]) -> None:
        """Each row has chosen a token; those that are not `live` are at their end."""
        going = []
        for row, token, goes_on in zip(rows, tokens, live, strict=True):
            if goes_on and self._matchers[row].consume_token(token):
                going.append(row)
        self._fill(going)

    def _fill(self, rows: Sequence[int]) -> None:
        from llguidance.numpy import fill_next_token_bitmask_par

        if not rows:
            return
        fill_next_token_bitmask_par(self._executor, [(self._matchers[row], row) for row in rows], self.masks)


def _unusable(why: str) -> UsageError:
    return UsageError(f"The schema cannot be used: {why[:300]}", hint="Change it so that some JSON fits it.")
