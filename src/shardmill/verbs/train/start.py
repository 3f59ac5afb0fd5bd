"""Starts `train`: prompts become a parameter, and a study says what is left out."""

from __future__ import annotations

from shardmill.core.errors import SourceError, UsageError
from shardmill.run.request import Request, key_values
from shardmill.run.result import Run
from shardmill.verbs.train.settle import COLUMNS


def start(request: Request) -> Run:
    """Fine-tune an embedding model on pairs of texts."""
    params = request.params
    if prompts := dict(key_values(request.options.prompt, "--prompt", "question='query: '")):
        params["prompts"] = prompts
    if place := request.options.study:
        from shardmill.verbs.train.best import best_training

        best = best_training(place)
        request = request.with_work(**{**best, **request.work})
        params = {**best["params"], **params}
    request = request.of_own_task()
    if not params.get("model"):
        raise UsageError("No model was given.", hint="Pass an embedding model: --model all-MiniLM-L6-v2")
    try:
        return request.with_work(params=params).carry_out()
    except SourceError as error:
        if "columns" not in params and any(repr(name) in error.message for name in COLUMNS):
            error.hint = f"{error.hint.partition(' Did you')[0]} Name the columns of the pairs: --columns FIRST,SECOND"
        raise
