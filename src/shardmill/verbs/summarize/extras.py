"""What a worker's environment needs to summarize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.models.extras import extras_of_encoder, extras_of_writer
from shardmill.models.names import MINILM


def extras_for(params: Mapping[str, Any], gpu: bool) -> tuple[str, ...]:
    if params.get("method") == "generative":
        model = extras_of_writer(params.get("endpoint"))
    else:
        model = extras_of_encoder(params.get("model") or MINILM, gpu)
    return (*model, "summarize") if params.get("reference") else model
