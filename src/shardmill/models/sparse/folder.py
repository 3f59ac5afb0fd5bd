"""Reads the folder of a model of sparse vectors: a SparseEncoder of sentence-transformers, or a masked language model.

A folder may have two routes, one for documents and one for queries, which are then a table of weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.folder import (
    ModelFolder,
    Pooling,
    inside,
    pick_options,
    read_json,
    read_prompts,
    read_sentence_config,
    read_transformer_config,
)
from shardmill.models.heads import read_heads
from shardmill.models.kinds import check_sparse
from shardmill.models.networks.description import Head
from shardmill.models.sparse.head import describe_words

_TRANSFORMERS = ("MLMTransformer", "Transformer")
_STRATEGIES, _ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpladePooling(Pooling):
    """The weight of a word: log(1 + relu(logit)), its largest among the tokens of a text, or the sum of all (`sums`).

    `twice` takes that logarithm twice. `weights` are those of the matrices of the head. `most` is how many words a text
    keeps unless somebody says; `query` is the folder with the weights of words in queries, if those are not run through
    the network.
    """

    head: Head
    weights: int
    sums: bool = False
    twice: bool = False
    most: int | None = None
    query: Path | None = None

    @property
    def token_weights(self) -> int:
        return self.weights


def read_sparse_folder(root: Path) -> ModelFolder:
    """Read a model folder; a ModelError names what shardmill does not support."""
    check_sparse(root)
    listed = read_json(root / "modules.json", missing=None)
    if listed is None:
        return _masked(root, {}, root.name)
    kinds = [_kind(module.get("type", "")) for module in listed]
    folders = [inside(root, str(module.get("path", ""))) for module in listed]
    most = read_json(root / "config_sentence_transformers.json", missing={}).get("max_active_dims")
    query: Path | None = None
    if kinds == ["Router"]:
        kinds, folders, query = _documents(root, folders[0])
    if len(kinds) != 2 or kinds[0] not in _TRANSFORMERS or kinds[1] != "SpladePooling":
        raise ModelError(
            f"{root.name} makes its sparse vectors by {', '.join(kinds)}.",
            hint="shardmill supports a masked language model followed by SpladePooling.",
        )
    said = read_json(folders[1] / "config.json")
    return _masked(folders[0], said, root.name, most=most, query=query, **read_prompts(root))


def _masked(
    folder: Path,
    said: Mapping[str, Any],
    name: str,
    *,
    most: int | None = None,
    query: Path | None = None,
    **prompts: Any,
) -> ModelFolder:
    strategy, activation = said.get("pooling_strategy", "max"), said.get("activation_function", "relu")
    if strategy not in _STRATEGIES or activation not in _ACTIVATIONS:
        raise ModelError(
            f"{name} pools by {strategy!r} with the activation {activation!r}.",
            hint=f"Supported: {', '.join(_STRATEGIES)}; {', '.join(_ACTIVATIONS)}.",
        )
    config = read_transformer_config(folder)
    sentence = read_sentence_config(folder, "fill-mask", "logits")
    shapes = {stored: about["shape"] for stored, about in read_heads(folder)}
    head = describe_words(config, shapes, name)
    words = int(shapes[head.steps[-1][0].weight][0])
    return ModelFolder(
        folder,
        config,
        SpladePooling(
            ("splade",),
            head=head,
            weights=sum(math.prod(shapes[linear.weight]) for linear, _, _ in head.steps),
            sums=strategy == "sum",
            twice=activation == "log1p_relu",
            most=most,
            query=query,
        ),
        (),
        words,
        max_tokens=sentence.get("max_seq_length"),
        lower_case=bool(sentence.get("do_lower_case")),
        config_options=pick_options(sentence, "config_kwargs", "config_args"),
        tokenizer_options=pick_options(sentence, "processor_kwargs", "tokenizer_args"),
        **prompts,
    )


def _kind(said: str) -> str:
    package, _, name = str(said).rpartition(".")
    return name if package.startswith("sentence_transformers") else str(said)


def _documents(root: Path, router: Path) -> tuple[list[str], list[Path], Path | None]:
    """The modules of documents, and the folder with the weights of queries if those have others."""
    said = read_json(router / "router_config.json")
    types, routes = said.get("types", {}), said.get("structure", {})
    documents, queries = routes.get("document") or [], routes.get("query") or []
    kinds = [_kind(types.get(each, "")) for each in documents]
    folders = [inside(router, each) for each in documents]
    if queries == documents:
        return kinds, folders, None
    if [_kind(types.get(each, "")) for each in queries] != ["SparseStaticEmbedding"]:
        raise ModelError(
            f"{root.name} has a network of its own for queries: {', '.join(queries) or 'nothing'}.",
            hint="shardmill supports queries of the same network, or of one SparseStaticEmbedding.",
        )
    return kinds, folders, inside(router, queries[0])
