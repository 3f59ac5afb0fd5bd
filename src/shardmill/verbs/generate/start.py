"""Starts `generate`: the prompt becomes the text of an item, the schema a parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping

from shardmill.core.errors import UsageError
from shardmill.run.request import Request
from shardmill.run.result import Run

_ARGUMENTS = "Write an object: --template-arguments '{\"enable_thinking\": false}'"


def start(request: Request) -> Run:
    """Answer a prompt for every item of a source."""
    request, options, params = request.of_own_task(), request.options, request.params
    if options.template and options.messages:
        raise UsageError("Both --template and --messages are given.", hint="Give one of them.")
    text = request.work.get("text")
    if options.messages:
        text, params["messages"] = f"{{{options.messages}:json}}", True
    elif options.template:
        text = options.template
    if options.schema_ is not None:
        params["response_schema"] = _read_schema(options.schema_)
    if options.template_arguments:
        params["template_arguments"] = read_arguments(options.template_arguments)
    if not params.get("model"):
        raise UsageError("No --model was given.", hint="Pass a folder of a model that generates: --model ./Qwen3-0.6B")
    if not text:
        raise UsageError("No prompt was given.", hint='Write one: --template "Translate into French: {body}"')
    return request.with_work(text=text, params=params).carry_out()


def read_arguments(given: object) -> dict[str, object]:
    """Arguments of a chat template: a mapping, or JSON text."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise UsageError(f"--template-arguments is not JSON: {error}.", hint=_ARGUMENTS) from error
    if not isinstance(given, Mapping):
        raise UsageError(f"--template-arguments is not an object: {str(given)[:100]}.", hint=_ARGUMENTS)
    return dict(given)


def _read_schema(given: object) -> dict[str, object]:
    """The schema itself, or that in a file."""
    if isinstance(given, Mapping):
        return dict(given)
    from shardmill.models.answer_schema import AnswerSchema

    return AnswerSchema.read(str(given)).value
