"""Which way to summarize a model fits."""

from __future__ import annotations

from shardmill.errors import ModelError
from shardmill.models.decoding.generative import read_generative
from shardmill.models.location import find_model


def find_method(model: str | None, endpoint: str | None) -> str:
    """`generative` for a server or a model that writes texts; `extractive` for any other, or without a model."""
    if endpoint:
        return "generative"
    if not model:
        return "extractive"
    try:
        read_generative(find_model(model).path)
    except ModelError:
        return "extractive"
    return "generative"
