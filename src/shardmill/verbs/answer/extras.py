"""What a worker's environment needs to answer questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.models.extras import extras_of_encoder, extras_of_pairs, extras_of_writer
from shardmill.models.kinds import READER, RERANKER
from shardmill.models.names import MINILM
from shardmill.verbs.answer.retriever import look_up


def extras_for(params: Mapping[str, Any], gpu: bool) -> tuple[str, ...]:
    model = params.get("model") or look_up(params["over"]).params.get("model") or MINILM
    readers = [(params[name], kind) for name, kind in (("reader", READER), ("rerank", RERANKER)) if params.get(name)]
    pairs = [extra for each, kind in readers for extra in extras_of_pairs(each, kind, gpu)]
    writer = extras_of_writer(params.get("endpoint")) if params.get("generator") else ()
    return ("answer", *extras_of_encoder(model, gpu), *pairs, *writer)
