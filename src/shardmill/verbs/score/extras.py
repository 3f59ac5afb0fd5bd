"""What a worker's environment needs to score pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.models.extras import extras_of_pairs
from shardmill.models.kinds import RERANKER
from shardmill.tasks.by_adapter import any_adapter


def extras_for(params: Mapping[str, Any], gpu: bool) -> tuple[str, ...]:
    return extras_of_pairs(params["model"], RERANKER, gpu, any_adapter(params.get("adapter")))
