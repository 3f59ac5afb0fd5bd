"""Starts `apply`: the options that describe the function become parameters of its task."""

from __future__ import annotations

from dataclasses import replace

from shardmill.run.request import Request, read_parameters
from shardmill.run.result import Run
from shardmill.verbs.apply.work import apply_work

# Parameters of the task that a spec may have; others are arguments of the function.
_OF_TASK = ("call", "code", "fields", "columns", "arguments")


def start(request: Request) -> Run:
    """Call a function with every item of a source, in batches."""
    options, params = request.options, request.params
    own = {"call": options.call, "column": options.column, "batch": options.batch}
    of_task = {name: params.pop(name) for name in _OF_TASK if name in params}
    of_task |= {name: value for name, value in own.items() if value}
    arguments = {**params, **read_parameters(options.param), **options.arguments}
    work, execution = apply_work({**request.work, "params": of_task}, request.execution, arguments)
    return replace(request, work=work, execution=execution).carry_out()
