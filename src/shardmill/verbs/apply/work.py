"""From the options of `apply` to the work that calls a function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardmill.core.errors import UsageError
from shardmill.core.functions import describe_call
from shardmill.core.template import NO_TEXT


def apply_work(
    work: dict[str, Any], execution: dict[str, Any], arguments: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[work]` and `[execution]` that call a function, from options: `column`, `batch` and `call` of its `params`.

    It runs on the CPU unless a device is named.
    """
    if (task := work.get("task", "apply")) != "apply":
        raise UsageError(f"The task is {task!r}, not apply.", hint="shardmill run --spec FILE runs any task.")
    params = dict(work.get("params", {}))
    if not (call := params.pop("call", None)):
        raise UsageError("No function was given.", hint="Name one: --call package.module:function or file.py:function")
    called = {"call": call} if params.get("code") else describe_call(call)
    if columns := params.pop("column", None):
        params["fields"] = [
            name for each in ([columns] if isinstance(columns, str) else columns) for name in each.split(",")
        ]
    if (batch := params.pop("batch", None)) is not None:
        if batch < 1:
            raise UsageError(f"Batch size must be at least 1 (got {batch}).", hint="For example: --batch 1024")
        execution = {**execution, "batch_tokens": batch}
    if work.get("text"):
        params["text"] = True
    if arguments:
        for name, value in arguments.items():
            if not _is_plain(value):
                raise UsageError(
                    f"The argument {name!r} cannot be sent to workers: {value!r}.",
                    hint="Give a text, a number, true or false, a list, or a dict whose keys are texts.",
                )
        params["arguments"] = {**params.get("arguments", {}), **arguments}
    made = {"text": NO_TEXT, **work, "task": task, "params": {**called, **params}}
    return made, {"device": "cpu", **execution}


def _is_plain(value: Any) -> bool:
    """Whether a value is the same after it was in the plan, which is JSON; a tuple is a list there."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
