"""From the options of `apply` to the work that calls a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.calls import describe_call
from shardmill.errors import UsageError
from shardmill.template import NO_TEXT


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
    if batch := params.pop("batch", None):
        execution = {**execution, "batch_tokens": batch}
    if work.get("text"):
        params["text"] = True
    if arguments:
        params["arguments"] = {**params.get("arguments", {}), **arguments}
    made = {"text": NO_TEXT, **work, "task": task, "params": {**called, **params}}
    return made, {"device": "cpu", **execution}
