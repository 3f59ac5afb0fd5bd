"""What a worker's environment needs to classify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.models.classifier import Classifier
from shardmill.tasks.by_adapter import any_adapter


def extras_for(params: Mapping[str, Any], gpu: bool) -> tuple[str, ...]:
    pairs = bool(params.get("labels"))
    return Classifier(params["model"], reads_pairs=pairs, adapter=any_adapter(params.get("adapter"))).extras(gpu)
