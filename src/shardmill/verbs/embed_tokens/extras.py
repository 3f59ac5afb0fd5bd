"""What a worker's environment needs to make token vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.models.extras import extras_of_tokens


def extras_for(params: Mapping[str, Any], gpu: bool) -> tuple[str, ...]:
    return extras_of_tokens(params["model"], gpu)
