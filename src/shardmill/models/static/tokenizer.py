"""The tokenizer of static embeddings: tokenizer.json as it is, and nothing around a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.core.extras import missing_package
from shardmill.models.ragged import Ragged, starts_of
from shardmill.models.static.files import StaticTable
from shardmill.models.tokenizer import Tokenizer, Tokens
from shardmill.models.words import Spelled

_ONLY_UNKNOWN = "no token of the text is in the model's vocabulary"


class StaticTokenizer(Tokenizer):
    """By model2vec's rules a text is cut at `most_chars` before it is tokenized, and tokens `unknown` are left out."""

    def __init__(self, backend: Any, *, most_chars: int | None = None, unknown: int | None = None, **how: Any) -> None:
        super().__init__(backend, pad_id=0, special_ids=set(), **how)
        self._most_chars, self._unknown = most_chars, unknown

    def encode(self, texts: Sequence[str | None], prompt: str = "") -> Tokens:
        """Tokenize `prompt` + each text."""
        most = self._most_chars
        whole = [None if text is None else prompt + text for text in texts]
        over = [most is not None and text is not None and len(text) > most for text in whole]
        found = super().encode([text[:most] if text is not None else None for text in whole])
        known = self._is_known(found.rows.flat)
        rows = found.rows if known is None else _keep(found.rows, known)
        emptied = np.flatnonzero((rows.lengths == 0) & (found.rows.lengths > 0)).tolist()
        # Those that are cut twice are counted already.
        cut = found.truncated + int((np.array(over, bool) & (found.rows.lengths < (self.limit or 0))).sum())
        return Tokens(rows, cut, dict.fromkeys(emptied, _ONLY_UNKNOWN) | found.bad)

    def spell(self, texts: list[str]) -> tuple[Spelled, dict[int, str]]:
        """Ids of each whole text with their positions in it, unknown ones left out; and why a text is bad."""
        spelled, bad = super().spell(texts)
        if (known := self._is_known(spelled.ids.flat)) is None:
            return spelled, bad
        return Spelled(_keep(spelled.ids, known), spelled.starts[known], spelled.stops[known]), bad

    def _is_known(self, ids: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Which ids are averaged; None for all."""
        if self._unknown is None:
            return None
        known = ids != self._unknown
        return None if known.all() else known


def _keep(rows: Ragged, kept: NDArray[np.bool_]) -> Ragged:
    return Ragged(rows.flat[kept], starts_of(kept.astype(np.int64))[rows.starts])


def load_static_tokenizer(table: StaticTable, max_tokens: int | None) -> StaticTokenizer:
    """The tokenizer of a folder, whose vocabulary must have one token for each vector."""
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise missing_package("tokenizers") from error
    name = table.folder.name
    try:
        text = (table.folder / "tokenizer.json").read_text(encoding="utf-8")
        backend = Library.from_str(text)
    except Exception as error:  # The library's errors have no class of their own.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name}/tokenizer.json cannot be read: {reason[0][:200]}", hint="Fetch it again.") from error
    vocabulary = backend.get_vocab()
    if len(vocabulary) != table.rows or max(vocabulary.values(), default=-1) >= table.rows:
        raise ModelError(
            f"{name} has vectors of {table.rows:,} tokens, and its tokenizer has {len(vocabulary):,}.",
            hint="Its tokenizer does not belong to its weights: fetch the model again.",
        )
    truncation = backend.truncation or {}
    limit = table.max_length if table.model2vec else truncation.get("max_length")
    limit = min((n for n in (limit, max_tokens) if n is not None), default=None)
    backend.no_truncation()
    backend.no_padding()
    # What it puts around a text has no part in the mean.
    backend.post_processor = None
    from_left = not table.model2vec and truncation.get("direction") == "left"
    how: dict[str, Any] = {"limit": limit, "from_left": from_left, "embedded": table.rows}
    if not table.model2vec:
        return StaticTokenizer(backend, **how)
    typical = int(np.median([len(token) for token in vocabulary]))
    most_chars = None if limit is None else limit * typical
    return StaticTokenizer(backend, most_chars=most_chars, unknown=_find_unknown(backend, text), **how)


def _find_unknown(backend: Any, text: str) -> int | None:
    """The id of the token for what is not in the vocabulary."""
    if hasattr(backend.model, "unk_token"):
        token = backend.model.unk_token
        return None if token is None else backend.token_to_id(token)
    said = json.loads(text)["model"].get("unk_id")
    return said if isinstance(said, int) else None
