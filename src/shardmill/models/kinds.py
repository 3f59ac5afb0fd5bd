"""What a model folder is for, by the architecture in its config.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError

READER, RERANKER, CAUSAL = "ForQuestionAnswering", "ForSequenceClassification", "ForCausalLM"
TAGGER, MASKED = "ForTokenClassification", "ForMaskedLM"
_WITHOUT_VECTORS = (READER, RERANKER, TAGGER)
_NAMES = {READER: "question-answering model", RERANKER: "cross-encoder", TAGGER: "token classifier"}
_CLASSIFY, _SPARSE = "shardmill classify --model", "shardmill embed-sparse --model"
_EMBED, _TOKENS = "shardmill embed --model", "shardmill embed-tokens --model"
SCORE = "shardmill score --model` and `shardmill answer --rerank"
# What only a model of token vectors has in modules.json and config_sentence_transformers.json, and its architecture.
_TOKEN_SIGNS = ('"pylate.', '.MultiVectorMask"', '"MultiVectorEncoder"', '"ColBERT"', '"document_prefix"')
COLBERT = "HF_ColBERT"
# Modules of sentence-transformers that make sparse vectors.
_SPARSE_MODULES = ("MLMTransformer", "SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder")
# The end of an architecture's name, and where a model of that kind fits.
_FITS = (
    (READER, "shardmill answer --reader"),
    (RERANKER, SCORE),
    (TAGGER, _CLASSIFY),
    (MASKED, _SPARSE),
    (COLBERT, _TOKENS),
    (CAUSAL, "shardmill generate --model"),
    ("ForConditionalGeneration", "shardmill summarize --model"),
    ("LMHeadModel", "shardmill generate --model"),
    ("Model", "shardmill embed --model"),
)


def check_kind(folder: Path, wanted: str) -> None:
    """Refuse a folder whose architecture does not end in `wanted`, and say which task its model fits."""
    found = _architecture(folder)
    if found.endswith(wanted) or (wanted == RERANKER and found.endswith(CAUSAL) and _ranks(folder)):
        return
    fits = fitting_verb(folder)
    raise ModelError(
        f"{folder.name} is no {_NAMES[wanted]}: its architecture is {found or 'not named in config.json'}.",
        hint=f"It fits `{fits}`. Pass a model whose architecture ends in {wanted}."
        if fits
        else f"Pass a model whose architecture ends in {wanted}.",
    )


def check_classifies(folder: Path) -> str:
    """The kind of a classifier, of texts or of tokens; any other model is refused, with the task that it fits."""
    found = _architecture(folder)
    for kind in (RERANKER, TAGGER):
        if found.endswith(kind):
            return kind
    fits = fitting_verb(folder)
    raise ModelError(
        f"{folder.name} is no classifier: its architecture is {found or 'not named in config.json'}.",
        hint=f"{f'It fits `{fits}`. ' if fits else ''}Pass a model whose architecture ends in {RERANKER} or {TAGGER}.",
    )


def check_embeds(folder: Path) -> None:
    """Refuse a folder whose model reads or ranks instead of making vectors, and say which task it fits."""
    if not _has_modules(folder) and (found := _architecture(folder)).endswith(_WITHOUT_VECTORS):
        fits = _fitting(folder, found)
        raise ModelError(
            f"{folder.name} makes no vectors: its architecture is {found}.",
            hint=f"It fits `{fits}`. Choose an embedding model." if fits else "Choose an embedding model.",
        )


def refuse_reranker(folder: Path) -> None:
    """Refuse a re-ranker as sentence-transformers saves it where vectors are wanted."""
    if _is_saved_reranker(folder):
        raise ModelError(
            f"{folder.name} makes no vectors: it is a re-ranker, which scores pairs of texts.",
            hint=f"It fits `{SCORE}`. Choose an embedding model.",
        )


def refuse_sparse(folder: Path) -> None:
    """Refuse a model of sparse vectors, as sentence-transformers saves it, where dense ones are wanted."""
    if makes_sparse(folder):
        raise ModelError(
            f"{folder.name} makes sparse vectors, with a weight for each word of its vocabulary.",
            hint=f"It fits `{_SPARSE}`. Choose an embedding model.",
        )


def makes_sparse(folder: Path) -> bool:
    """Whether a folder of sentence-transformers has a module that makes sparse vectors."""
    said = [folder / "modules.json", *folder.glob("*/router_config.json"), folder / "router_config.json"]
    texts = [path.read_text(encoding="utf-8") for path in said if path.exists()]
    return any(f'.{name}"' in text for text in texts for name in _SPARSE_MODULES)


def check_sparse(folder: Path) -> None:
    """Refuse a folder whose model makes no sparse vectors, and say which task it fits."""
    found = "" if _has_modules(folder) else _architecture(folder)
    if makes_sparse(folder) or found.endswith(MASKED):
        return
    fits = fitting_verb(folder)
    why = (
        "its modules.json has no SpladePooling" if _has_modules(folder) else f"its architecture is {found or 'unknown'}"
    )
    raise ModelError(
        f"{folder.name} makes no sparse vectors: {why}.",
        hint=f"{f'It fits `{fits}`. ' if fits else ''}Pass a SparseEncoder, or a model whose architecture ends in "
        f"{MASKED}.",
    )


def refuse_tokens(folder: Path) -> None:
    """Refuse a model of token vectors where one vector for each text is wanted."""
    if makes_tokens(folder):
        raise ModelError(
            f"{folder.name} makes a vector for each token of a text, as ColBERT does.",
            hint=f"It fits `{_TOKENS}`. Choose an embedding model.",
        )


def makes_tokens(folder: Path) -> bool:
    """Whether sentence-transformers, PyLate or colbert-ai have saved a folder with a model of token vectors."""
    if not _has_modules(folder):
        return (folder / "config.json").exists() and _architecture(folder) == COLBERT
    said = [folder / "modules.json", folder / "config_sentence_transformers.json"]
    texts = [path.read_text(encoding="utf-8") for path in said if path.exists()]
    return any(sign in text for text in texts for sign in _TOKEN_SIGNS)


def check_tokens(folder: Path) -> None:
    """Refuse a folder whose model makes no token vectors, and say which task it fits."""
    if makes_tokens(folder):
        return
    found = "" if _has_modules(folder) else _architecture(folder)
    fits = fitting_verb(folder) or _EMBED
    why = "its modules make one for a text" if _has_modules(folder) else f"its architecture is {found or 'unknown'}"
    raise ModelError(
        f"{folder.name} makes no vectors of tokens: {why}.",
        hint=f"It fits `{fits}`. Pass a ColBERT model of sentence-transformers, PyLate or colbert-ai.",
    )


def fitting_verb(folder: Path) -> str:
    """Where a model fits, by all that its folder says; "" if that is unknown."""
    if makes_tokens(folder):
        return _TOKENS
    if makes_sparse(folder):
        return _SPARSE
    if _is_saved_reranker(folder):
        return SCORE
    return _EMBED if _has_modules(folder) else _fitting(folder, _architecture(folder))


def _is_saved_reranker(folder: Path) -> bool:
    """Whether sentence-transformers has saved a folder as a re-ranker."""
    path = folder / "config_sentence_transformers.json"
    return path.exists() and '"CrossEncoder"' in path.read_text(encoding="utf-8")


def note_kind(folder: Path) -> str:
    """A sentence about a model that makes vectors without having been trained for it; "" about any other."""
    if _has_modules(folder) or not (found := _architecture(folder)).endswith(_WITHOUT_VECTORS):
        return ""
    return (
        f"{folder.name} is no embedding model: its architecture is {found}. Its vectors are means of its last layer, "
        f"which was not trained for them. It fits `{_fitting(folder, found)}`."
    )


def note_pooling(folder: Path, modes: Sequence[str]) -> str:
    """A sentence about a model whose pooling was chosen for it; "" about one that says it."""
    if _has_modules(folder) or "mean" not in modes:
        return ""
    return (
        f"{folder.name} has no modules.json, so each vector is the mean over the tokens. If the model's card names "
        "another pooling, such as cls, write that file."
    )


def _architecture(folder: Path) -> str:
    return str((_read_config(folder).get("architectures") or [""])[0])


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = {**json.loads((folder / "config.json").read_text(encoding="utf-8"))}
        return config
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"No config.json that can be read in {folder}.", hint="Pass the folder of a whole model."
        ) from error


def _fitting(folder: Path, architecture: str) -> str:
    # A re-ranker gives one number; without a word on labels, transformers takes two.
    if architecture.endswith(RERANKER) and len(_read_config(folder).get("id2label") or "01") > 1:
        return _CLASSIFY
    return next((verb for end, verb in _FITS if architecture.endswith(end)), "")


def _ranks(folder: Path) -> bool:
    """Whether a causal model may re-rank pairs: its folder says so, or it may be Qwen3-Reranker without such files."""
    if _has_modules(folder):
        return '.LogitScore"' in (folder / "modules.json").read_text(encoding="utf-8")
    template = next((p for p in (folder / "chat_template.jinja", folder / "tokenizer_config.json") if p.exists()), None)
    said = template.read_text(encoding="utf-8") if template is not None else ""
    of_pairs = "query" in said and "document" in said
    return of_pairs or _read_config(folder).get("model_type") == "qwen3"


def _has_modules(folder: Path) -> bool:
    """Only folders of sentence-transformers have the file."""
    return (folder / "modules.json").exists()
