"""The extras of shardmill that a new environment needs to run a model: with torch only where it must be."""

from __future__ import annotations

from shardmill.core.errors import MissingExtra
from shardmill.models import pair_networks
from shardmill.models.backend import read_backend
from shardmill.models.code import loading_options
from shardmill.models.colbert.folder import read_token_folder
from shardmill.models.folder import ModelFolder, read_folder
from shardmill.models.location import find_model
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.plain import read_network
from shardmill.models.sparse.folder import read_sparse_folder


def extras_of_encoder(model: str, gpu: bool, adapter: str | None = None) -> tuple[str, ...]:
    """What embeds texts: torch on a GPU, and on a CPU if the model cannot run without."""
    return _extras_of_folder(read_folder(find_model(model, adapter).path), gpu)


def extras_of_sparse(model: str, gpu: bool) -> tuple[str, ...]:
    """What makes sparse vectors of texts, likewise."""
    return _extras_of_folder(read_sparse_folder(find_model(model).path), gpu)


def extras_of_tokens(model: str, gpu: bool) -> tuple[str, ...]:
    """What makes token vectors of texts, likewise."""
    return _extras_of_folder(read_token_folder(find_model(model).path), gpu)


def _extras_of_folder(folder: ModelFolder, gpu: bool) -> tuple[str, ...]:
    if folder.static is not None:
        return ("light",)
    if gpu and folder.exported is None:
        return ("embed",)
    try:
        if folder.exported is None:
            read_network(folder)
        read_backend(folder.transformer, {**folder.tokenizer_options, **loading_options(folder.transformer)})
    except NotDescribed:
        return ("embed",)
    except MissingExtra:
        # This machine may have no tokenizers; the workers' will.
        pass
    return ("light",)


def extras_of_pairs(model: str, kind: str, gpu: bool, adapter: str | None = None) -> tuple[str, ...]:
    """What a re-ranker or a reader runs in, likewise."""
    if not gpu:
        try:
            pair_networks.read_network(find_model(model, adapter).path, kind)
            return ("light",)
        except NotDescribed:
            pass
    return ("embed",)


def extras_of_writer(endpoint: object) -> tuple[str, ...]:
    """What writes texts: a server, or a model in torch."""
    return ("endpoint",) if endpoint else ("generate",)
