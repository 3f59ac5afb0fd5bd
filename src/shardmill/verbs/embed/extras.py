"""What a worker's environment needs to embed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.models.extras import extras_of_encoder
from shardmill.models.names import MINILM
from shardmill.tasks.by_adapter import any_adapter


def extras_for(params: Mapping[str, Any], gpu: bool) -> tuple[str, ...]:
    if params.get("pictures"):
        return ("embed", "pictures")
    return extras_of_encoder(params.get("model") or MINILM, gpu, any_adapter(params.get("adapter")))
