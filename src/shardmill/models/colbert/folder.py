"""Reads the folder of a model of token vectors, as sentence-transformers, PyLate or Stanford's colbert-ai save it."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.folder import (
    TOKENS,
    Dense,
    ModelFolder,
    Normalize,
    Pooling,
    Step,
    inside,
    pick_options,
    read_dense,
    read_json,
    read_prompts,
    read_sentence_config,
    read_transformer_config,
)
from shardmill.models.heads import read_heads
from shardmill.models.kinds import check_tokens

_WORKS_ON = "token_embeddings"
_PUNCTUATION = tuple(string.punctuation)
_QUERY_LENGTH = 32
# The matrix of a model of colbert-ai, among the weights of its transformer.
_MATRIX = "linear.weight"
_PYLATE_KEYS = ("query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens", "skiplist_words")


@dataclass(frozen=True, slots=True)
class Expansion:
    """A query is made `length` tokens long by a token, the mask if no other is named, and is cut there if `fixed`.

    These tokens look at the query; the query looks at them only if it `attends`.
    """

    length: int
    attends: bool = False
    fixed: bool = True
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPooling(Pooling):
    """A vector for every token. Tokens in `skipped` give none, in texts and, if `query_skips`, in queries.

    `query_marker` stands in a query where the folder's `marker` stands in a text; `query_length` is the most tokens of
    a query, before it is expanded.
    """

    skipped: tuple[str, ...] = ()
    query_skips: bool = False
    query_marker: str = ""
    query_length: int | None = None
    expansion: Expansion | None = None


def read_token_folder(root: Path) -> ModelFolder:
    """Read a model folder; a ModelError names what shardmill does not support."""
    check_tokens(root)
    listed = read_json(root / "modules.json", missing=None)
    return _stanford(root) if listed is None else _listed(root, listed)


def _listed(root: Path, listed: Sequence[dict[str, str]]) -> ModelFolder:
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in listed]
    folders = [inside(root, str(module.get("path", ""))) for module in listed]
    unknown = [kind for kind in kinds[1:] if kind not in ("Dense", "MultiVectorMask", "Normalize")]
    if kinds[:1] != ["Transformer"] or unknown:
        raise ModelError(
            f"{root.name} makes its token vectors by {', '.join(kinds)}.",
            hint="shardmill supports a Transformer, then Dense, MultiVectorMask and Normalize.",
        )
    whole = read_json(root / "config_sentence_transformers.json", missing={})
    sentence = read_sentence_config(folders[0])
    by_pylate = any(key in whole for key in _PYLATE_KEYS)
    steps: list[Step] = [
        Normalize() if kind == "Normalize" else read_dense(folder, _WORKS_ON)
        for kind, folder in zip(kinds, folders, strict=True)
        if kind in ("Dense", "Normalize")
    ]
    if "MultiVectorMask" in kinds:
        mask = read_json(folders[kinds.index("MultiVectorMask")] / "config.json", missing={})
    else:  # PyLate has neither this module nor Normalize, and does what both do.
        skipped = whole.get("skiplist_words")
        mask = {"skiplist_words": _PUNCTUATION if skipped is None and by_pylate else skipped}
        steps += [] if Normalize() in steps else [Normalize()]
    if mask.get("keep_only_token_ids"):
        raise ModelError(
            f"{root.name} keeps the vectors of some tokens only, those of images.",
            hint="shardmill supports models of texts.",
        )
    sides = mask.get("skiplist_tasks") or ["document"]
    sides = [sides] if isinstance(sides, str) else sides
    words = tuple(mask.get("skiplist_words") or ())
    expansion = _read_expansion(sentence, whole, by_pylate=by_pylate)
    prompts = read_prompts(root)
    prompts["default_prompt"] = "document"
    pooling = TokenPooling(
        (TOKENS,),
        skipped=words if "document" in sides else (),
        query_skips="query" in sides and bool(words),
        query_marker=whole.get("query_prefix") or "",
        query_length=_read_query_length(sentence, whole, expansion) or sentence.get("max_seq_length"),
        expansion=expansion,
    )
    length = sentence.get("document_length", whole.get("document_length"))
    return _finish(
        root,
        folders[0],
        pooling,
        steps,
        max_tokens=length or sentence.get("max_seq_length"),
        marker=whole.get("document_prefix") or "",
        lower_case=bool(sentence.get("do_lower_case")),
        config_options=pick_options(sentence, "config_kwargs", "config_args"),
        tokenizer_options=pick_options(sentence, "processor_kwargs", "tokenizer_args"),
        **prompts,
    )


def _read_expansion(sentence: dict[str, Any], whole: dict[str, Any], *, by_pylate: bool) -> Expansion | None:
    """As sentence-transformers 6 says it, or as PyLate does, which expands unless it says otherwise."""
    said = sentence.get("query_expansion", whole.get("query_expansion"))
    if said is not None:
        fixed = said.get("strategy") == "fixed"
        return Expansion(int(said["length"]), bool(said.get("attend")), fixed, said.get("token"))
    if not by_pylate or "query_expansion" in sentence or whole.get("do_query_expansion") is False:
        return None
    return Expansion(int(whole.get("query_length") or _QUERY_LENGTH), bool(whole.get("attend_to_expansion_tokens")))


def _read_query_length(sentence: dict[str, Any], whole: dict[str, Any], expansion: Expansion | None) -> int | None:
    if expansion is not None and expansion.fixed:
        return expansion.length
    said: int | None = sentence.get("query_length", whole.get("query_length"))
    return said if said is None or expansion is None else max(said, expansion.length)


def _stanford(root: Path) -> ModelFolder:
    said = read_json(root / "artifact.metadata", missing={})
    shapes = {name: about["shape"] for name, about in read_heads(root)}
    weights = root / "model.safetensors"
    if _MATRIX not in shapes or not weights.exists():
        raise ModelError(
            f"{root.name} has no matrix {_MATRIX} in its model.safetensors.",
            hint="Its weights do not belong to its config.json: fetch it again.",
        )
    width, inputs = shapes[_MATRIX]
    length = said.get("query_maxlen") or _QUERY_LENGTH
    pooling = TokenPooling(
        (TOKENS,),
        skipped=_PUNCTUATION if said.get("mask_punctuation", True) else (),
        query_marker=said.get("query_token_id") or "[unused0]",
        query_length=length,
        expansion=Expansion(length, bool(said.get("attend_to_mask_tokens"))),
    )
    steps: list[Step] = [Dense(weights, inputs, width, bias=False, activation="Identity", residual=False), Normalize()]
    marker = said.get("doc_token_id") or "[unused1]"
    return _finish(root, root, pooling, steps, max_tokens=said.get("doc_maxlen"), marker=marker)


def _finish(root: Path, transformer: Path, pooling: TokenPooling, steps: Sequence[Step], **said: Any) -> ModelFolder:
    made = [step for step in steps if isinstance(step, Dense)]
    if not made:
        raise ModelError(
            f"{root.name} has no Dense layer after its transformer.",
            hint="Pass a whole ColBERT model, as it was saved.",
        )
    config = read_transformer_config(transformer)
    return ModelFolder(transformer, config, pooling, tuple(steps), made[-1].out_features, **said)
