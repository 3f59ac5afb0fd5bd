"""Which way to summarize a model fits."""

from __future__ import annotations

from shardmill.core.errors import ModelError
from shardmill.models.decoding.generative import read_generative
from shardmill.models.folder import read_transformer_config
from shardmill.models.location import find_model


def find_method(model: str | None, endpoint: str | None) -> str:
    """`generative` for a server or a model that writes texts; `extractive` for one that embeds, or without a model."""
    if endpoint:
        return "generative"
    if not model:
        return "extractive"
    folder = find_model(model).path
    try:
        read_generative(folder)
    except ModelError:
        names = read_transformer_config(folder).get("architectures") or [""]
        if "For" in str(names[0]) and not (folder / "modules.json").exists():
            raise
        return "extractive"
    return "generative"
