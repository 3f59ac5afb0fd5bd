"""Starts `score`: the text of an item is the second of a pair; with candidates it is the query."""

from __future__ import annotations

from shardmill.core.errors import UsageError
from shardmill.run.request import Request
from shardmill.run.result import Run

_BOTH = "Say both texts of a pair: --query-text query --text passage. Or a list: --query-text query --candidates COLUMN"


def start(request: Request) -> Run:
    """Score every pair of a source."""
    request, params = request.of_own_task(), request.params
    text, query = request.work.get("text"), request.options.query_text
    if not params.get("model"):
        raise UsageError("No --model was given.", hint="Pass the folder of a cross-encoder: --model ./bge-reranker")
    if params.get("candidates"):
        if text and query:
            raise UsageError("Both --text and --candidates are given.", hint="Give one of them.")
        text, query = query or text, ""
    elif query:
        params["query_text"] = query
    if not text or not (params.get("query_text") or params.get("candidates")):
        raise UsageError("One text of the pairs is missing.", hint=_BOTH)
    return request.with_work(text=text, params=params).carry_out()
